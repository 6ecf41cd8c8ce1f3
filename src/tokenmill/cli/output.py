"""How results look: aligned lines for people, JSON for tools."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from rich.text import Text

from tokenmill.cli import options
from tokenmill.errors import UsageError
from tokenmill.exports.formats import FORMATS
from tokenmill.humanize import count, duration, escape_control_characters, number, size, wrap
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.part import NULL
from tokenmill.store.quarantine import TOGETHER
from tokenmill.system import terminal
from tokenmill.tokenizers.token_bytes import token_bytes_lookup

if TYPE_CHECKING:
    from tokenmill.api.finish import FinishResult
    from tokenmill.api.plan import PlanResult
    from tokenmill.api.prepare import PrepareResult
    from tokenmill.api.status import StatusResult
    from tokenmill.api.verify import VerifyResult
    from tokenmill.exports.exporter import ExportResult
    from tokenmill.store.heartbeats import EndRecord
    from tokenmill.store.reader import Store

Result = TypeVar("Result")
TOKEN_STYLES = ("black on #ffd6a5", "black on #caffbf", "black on #9bf6ff", "black on #bdb2ff", "black on #ffadad")
COPIED = ("use",)
"""Lines that are there to be copied, so that only the terminal breaks them."""

SHOWN_TOKENS = 2000
SHOWN_RANGES = 1000


def result(record: Result, as_json: bool, lines: Callable[[Result], Iterable[tuple[str, str]]]) -> None:
    """Print a result in one of the two ways."""
    if as_json:
        _json(record)
    else:
        _table(lines(record))


def marked(before: str, text: str, after: str, *, is_marked: bool) -> None:
    """Some text within text: in reverse where there are colours, in brackets elsewhere, if it is marked at all."""
    console = terminal.console(soft_wrap=True, highlight=False)
    before, text, after = map(terminal.printable, (before, text, after))  # rich drops some characters in silence
    middle = text if not is_marked else (text, "bold reverse") if console.color_system else f"[[{text}]]"
    console.print(Text.assemble("\n", before, middle, after))


def row(kind: str, number: int) -> tuple[str, str]:
    """Where a document is in a source of some kind: its row, or the byte that it starts at."""
    from tokenmill.pipeline.messages import MEASURES  # noqa: PLC0415 - heavy

    return "row" if kind in MEASURES else "byte", f"{number:,}"


def line(text: str) -> None:
    """A line that replaces the last one on a terminal."""
    terminal.replace_line(text)


def end_lines() -> None:
    """Leave the last of such lines, and go on below it."""
    if sys.stderr.isatty():
        terminal.echo(err=True)


def prepared(done: PrepareResult) -> Iterable[tuple[str, str]]:
    """The end of a run."""
    yield "store", done.directory
    yield "documents", f"{done.documents:,}"
    if done.expected_rows is not None:
        yield "rows", f"{done.expected_rows:,}, as the Hub reports"
    yield "tokens", f"{done.tokens:,}"
    yield "text", size(done.text_bytes)
    nulls = done.skipped_reasons.get(NULL, 0)
    if nulls:
        yield (
            "skipped",
            f"{count(nulls, 'row')} without text; `tokenmill inspect {done.directory} --skipped` names them",
        )
    if done.quarantined:
        bad = sorted((reason, n) for reason, n in done.skipped_reasons.items() if reason != NULL)
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in bad)
        yield "quarantine", f"{count(done.quarantined, 'document')}, named in {done.directory}/{TOGETHER}: {reasons}"
    if done.deaths:
        yield "retried", f"units after {count(done.deaths, 'worker death')}"
    if done.units_done_now:
        yield "speed", f"{number(done.tokens_per_second)} tokens/s, {done.bytes_per_second / 1e6:.1f} MB/s of text"
    else:
        yield "done", "everything was there already"
    for notice in done.notices if options.quiet() else []:  # otherwise they have been said
        yield "note", notice
    yield "took", f"{duration(done.seconds)}, {done.units_done_now:,} of {count(done.units, 'unit')} now"
    for export in done.exports:
        yield from exported(export)


def exported(done: ExportResult) -> Iterable[tuple[str, str]]:
    """The end of an export."""
    yield "export", f"{done.directory} ({done.format}, for {done.trainer})"
    tokens = sum(split.tokens for split in done.splits.values())
    for name, split in done.splits.items():
        held = f"{split.tokens:,} tokens of {count(split.documents, 'document')}"
        held += f" in {count(split.shards, 'shard')}" if split.shards > 1 else ""
        yield name, f"{held}, {_percent(split.tokens / max(tokens, 1))} of the tokens" if name == "val" else held
        if split.tokens_left_out:
            yield "left out", f"{split.tokens_left_out:,} tokens that fill no shard (--tail drop)"
    yield "files", f"{done.files:,}, {size(done.bytes)} of {done.dtype}"
    if done.shards_done_now:
        yield "speed", f"{number(done.tokens_per_second)} tokens/s"
    elif done.files:
        yield "done", "everything was there already"
    for notice in done.notices if options.quiet() else []:  # otherwise they have been said
        yield "note", notice
    yield "took", duration(done.seconds)
    if done.use:
        yield "use", done.use


def formats(as_json: bool) -> None:
    """The formats there are."""
    traits = [each.SPEC for each in FORMATS.values()]
    if as_json:
        _json([dataclasses.asdict(each) for each in traits])
        return
    for each in traits:
        shards = "one file a split" if each.shard_tokens is None else f"{number(each.shard_tokens)} tokens a shard"
        whole = "cuts documents" if each.cuts else "whole documents"
        terminal.echo(f"{each.name:<14} {each.trainer}")
        terminal.echo(f"{'':<14} {each.files}; {'/'.join(each.dtypes)}, end token {each.end}")
        terminal.echo(f"{'':<14} {shards}, {whole}; val {each.val or 'none'}")


def estimate(planned: PlanResult) -> Iterable[tuple[str, str]]:
    """The dry run."""
    yield "sources", f"{count(planned.sources, 'file')}, {size(planned.source_bytes)}"
    for notice in planned.notices:
        yield "note", notice
    yield (
        "text",
        f"about {size(planned.text_bytes)}" + (f" in {count(planned.rows, 'row')}" if planned.rows is not None else ""),
    )
    yield "units", f"{planned.units:,} of about {size(planned.unit_bytes)}"
    yield "tokenizer", f"{planned.tokenizer}, engine {planned.engine}"
    yield "begin token", _token(planned.begin_token)
    yield "end token", _token(planned.end_token)
    yield "tokens", f"about {number(planned.tokens)} ({planned.bytes_per_token:.2f} bytes each, from a sample)"
    yield "disk", f"about {size(planned.disk_bytes)}"
    yield "time", f"at most about {duration(planned.seconds)} with {count(planned.workers, 'worker')}"


def status(state: StatusResult) -> Iterable[tuple[str, str]]:
    """How far a run is."""
    share = state.planned_bytes_done / state.planned_bytes if state.planned_bytes else 1.0
    yield "store", state.directory
    who = f"process {state.process}" if isinstance(state.process, int) else f"on {state.process}"
    yield "state", state.state + (f" ({who})" if state.state == "running" else "")
    if state.end is not None:
        yield "stopped", _stopped(state.end)
    limited = f", all that --limit-units {state.limit_units:,} left" if state.limit_units is not None else ""
    if state.state == "damaged":
        yield "note", "parts that the manifest lists are gone; the same `tokenmill prepare` makes them again"
    yield "units", f"{state.units_done:,} of {state.units:,} committed ({share:.1%} of the bytes){limited}"
    yield (
        "tokenizer",
        f"{state.tokenizer}, begin token {_token(state.begin_token)}, end token {_token(state.end_token)}",
    )
    if state.tokens is not None and state.documents is not None:
        yield "holds", f"{state.documents:,} documents, {state.tokens:,} tokens"
    if state.skipped_rows:
        bad = f", {state.quarantined:,} of them in quarantine" if state.quarantined else ""
        yield "skipped", f"{count(state.skipped_rows, 'row')}{bad}"
    if state.bytes_per_second and state.seconds_left is not None:
        rate = f"{number(state.tokens_per_second or 0)} tokens/s, {size(state.bytes_per_second)}/s"
        yield "speed", f"{rate}, {duration(state.seconds_left)} left"
    if state.workers:
        drivers = f", {count(state.drivers, 'driver')}" if state.drivers > 1 else ""
        yield "at work", f"{count(state.workers, 'worker')} on {count(state.nodes, 'node')}{drivers}"
    troubles = ((state.deaths, "worker death"), (state.failures, "failed unit"))
    trouble = [count(n, what) for n, what in troubles if n]
    if trouble:
        retried = f", {state.retries:,} tried again" if state.retries else ""
        yield "trouble", " and ".join(trouble) + f" since it was last started{retried}"
    for name, export in state.exports.items():
        yield "export", f"{name}: {export}"
    if state.state == "stopped":
        yield "next", "run the same `tokenmill prepare` again to finish it"


def _stopped(end: EndRecord) -> str:
    """How a run ended that is not complete, and the exit code of its command."""
    code = f" (exit code {end.exit_code})" if end.exit_code is not None else ""
    return f"{end.outcome}: {end.headline}{code}"


def verification(checked: VerifyResult) -> Iterable[tuple[str, str]]:
    """A store or an export that is right."""
    if checked.units:
        yield "store", checked.directory
        yield "checksums", f"{count(checked.units, 'part')} checked, all as they were written"
        yield "holds", f"{checked.documents:,} documents, {checked.tokens:,} tokens"
    if checked.documents_compared:
        yield (
            "compared",
            f"{checked.documents_compared:,} of {checked.documents:,} documents equal the reference's tokens",
        )
    for name, files in checked.exports.items():
        yield "export", f"{name}: {count(files, 'file')} checked, all as they were written"
    yield "took", duration(checked.seconds)


def finished(done: FinishResult) -> Iterable[tuple[str, str]]:
    """A store that is complete."""
    yield "store", done.directory
    yield "holds", f"{done.documents:,} documents, {done.tokens:,} tokens in {count(done.units, 'part')}"
    if done.skipped_rows:
        bad = f", {done.quarantined:,} of them in quarantine" if done.quarantined else ""
        yield "skipped", f"{count(done.skipped_rows, 'row')}{bad}"
    yield "manifest", "written now" if done.written_now else "was there already"
    yield "took", duration(done.seconds)


def overview(store: Store, as_json: bool) -> None:
    """What a store holds."""
    run = store.run
    facts: dict[str, Any] = {
        "directory": store.directory,
        "documents": len(store),
        "tokens": store.token_count,
        "dtype": str(store.dtype),
        "skipped_rows": int(store.manifest["skipped"].to_numpy().sum()),
        "run": run,
    }
    if as_json:
        _json(facts)
        return
    tokenizer = run.job.tokenizer
    text_bytes = int(store.manifest["text_bytes"].to_numpy().sum())
    lines = [
        ("store", store.directory),
        ("documents", f"{len(store):,}"),
        ("tokens", f"{store.token_count:,} ({store.dtype})"),
        ("text", f"{size(text_bytes)}, {text_bytes / max(store.token_count, 1):.2f} bytes per token"),
        ("tokenizer", f"{tokenizer.name}, {tokenizer.vocabulary_size:,} ids, sha256 {tokenizer.sha256[:16]}..."),
        ("begin token", _token(run.job.begin)),
        ("end token", _token(run.job.end)),
        ("sources", f"{count(run.sources, 'file')}, {size(run.source_bytes)}"),
        ("skipped", count(facts["skipped_rows"], "row")),
        ("made with", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
    ]
    if run.job.limit_units is not None:
        lines.insert(1, ("limited", f"to the first {run.job.limit_units:,} units (--limit-units)"))
    _table(lines)


def document(store: Store, position: int, as_json: bool) -> None:
    """One document, token by token."""
    try:
        found = store.document(position)
    except IndexError:
        raise UsageError(f"there is no document {position}", f"The store holds {len(store):,}, from 0.") from None
    spec = store.job.tokenizer
    lookup = token_bytes_lookup(spec, folder_at(store.directory).read(f"{layout.TOKENIZER}/{spec.file}"))
    tokens = found.tokens.tolist()
    if as_json:
        text = b"".join(map(lookup, tokens)).decode(errors="replace")
        _json({"document": position, "source": found.source, "row": found.row, "tokens": tokens, "text": text})
        return
    _table(
        [
            ("document", f"{position:,}"),
            ("source", found.source),
            row(found.kind, found.row),
            ("tokens", f"{len(tokens):,}"),
        ]
    )
    console = terminal.console(soft_wrap=True, highlight=False)
    shown = Text("\n")
    for place, token in enumerate(tokens[:SHOWN_TOKENS]):
        shown.append(_readable(lookup(token)), TOKEN_STYLES[place % len(TOKEN_STYLES)] if console.color_system else "")
        shown.append("" if console.color_system else "|")
    console.print(shown)
    if len(tokens) > SHOWN_TOKENS:
        terminal.echo(f"... and {len(tokens) - SHOWN_TOKENS:,} more tokens; --json prints all")


def skipped(store: Store, as_json: bool) -> None:
    """The rows that are not in the store."""
    paths = store.sources["path"]
    for place, entry in enumerate(store.skipped()):
        path = paths[entry.source].as_py()
        rows = f"row {entry.first:,}" if entry.rows == 1 else f"rows {entry.first:,} to {entry.last:,}"
        if as_json:
            _json(
                {"source": path, "first": entry.first, "last": entry.last, "rows": entry.rows, "reason": entry.reason}
            )
        elif place < SHOWN_RANGES:
            terminal.echo(escape_control_characters(f"{path}  {rows}  {entry.reason}"))
        else:
            terminal.echo("... and more; --json prints all")
            return


def _readable(piece: bytes) -> str:
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in piece)
    return terminal.printable(text)


def _percent(share: float) -> str:
    """Two digits of a share: 12 %, 1.2 %, 0.051 %."""
    if 0 < share < 1e-4:
        return "less than 0.01 %"
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.2g} %"


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)


def _table(lines: Iterable[tuple[str, str]]) -> None:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name, value in lines:
        line = f"{name:<12} {escape_control_characters(value)}"
        terminal.echo(line if columns is None or name in COPIED else wrap(line, columns))


def _json(record: Any) -> None:
    terminal.echo_json(record)
