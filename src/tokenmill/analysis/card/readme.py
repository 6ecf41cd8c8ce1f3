"""The dataset card: Markdown with a YAML header that the Hub reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from tokenmill.analysis.card.public_facts import (
    IDENTITY,
    CardFields,
    PublicFacts,
    is_web_address,
    public_name,
)
from tokenmill.analysis.destinations import MARKER
from tokenmill.analysis.html.markup import escape
from tokenmill.analysis.statistics import Breakdown
from tokenmill.analysis.visible_text import display_name
from tokenmill.humanize import count, escape_control_characters, size

TO_FILL_IN = "**to be filled in**"
OPTIONS = {"license": "--license", "creator": "--creator", "url": "--url", "published": "--published"}

# The Hub's classes of size, by the number of documents that they end at.
SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (1_000_000_000, "100M<n<1B"),
    (10_000_000_000, "1B<n<10B"),
    (100_000_000_000, "10B<n<100B"),
    (1_000_000_000_000, "100B<n<1T"),
)
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]#|~$"})


def readme(facts: PublicFacts, fields: CardFields) -> str:
    """The whole card."""
    name = fields.name or facts.default_name
    description = fields.description or facts.summary
    sections = [
        "\n".join(["---", *_header(facts, fields, name), "---"]),
        MARKER,
        f"# {_text(name)}",
        _prose(description),
        *(f"> **A trial:** {each.run.trial} of its sources." for each in facts.stores.members if each.run.trial),
        *_to_fill_in(fields),
        _contents(facts, fields),
        _sources(facts),
        _skipped(facts),
        *(_by_column(column) for column in facts.statistics.columns),
        _files(facts),
        _checksums(facts),
    ]
    return "\n\n".join(sections) + "\n"


def _header(facts: PublicFacts, fields: CardFields, name: str) -> Iterator[str]:
    """The lines of the YAML header. A JSON string is a YAML string, too."""
    yield f"pretty_name: {_yaml(name)}"
    if fields.license is None:
        yield "# license: to be filled in"
    elif is_web_address(fields.license):
        yield "license: other"
        yield f"license_name: {_yaml(fields.license.rstrip('/').rpartition('/')[2])}"
        yield f"license_link: {_yaml(fields.license)}"
    else:
        yield f"license: {_yaml(fields.license.lower())}"
    documents = facts.statistics.documents
    yield f"size_categories:\n- {_yaml(next((text for end, text in SIZES if documents < end), 'n>1T'))}"
    yield "task_categories:\n- text-generation"
    repositories = sorted(set(facts.hub_datasets.values()))
    if repositories:
        yield "\n".join(["source_datasets:", *(f"- {_yaml(f'extended|{repository}')}" for repository in repositories)])
    yield "tags:\n- tokenized\n- tokenmill"
    yield "viewer: false"


def _to_fill_in(fields: CardFields) -> Iterator[str]:
    if fields.missing:
        options = ", ".join(f"{name} (`{OPTIONS[name]}`)" for name in fields.missing)
        yield f"> **To be filled in before this is published:** {options}, here and in `croissant.json`."


def _contents(facts: PublicFacts, fields: CardFields) -> str:
    statistics, job = facts.statistics, facts.stores.job
    ratio = "" if statistics.bytes_per_token is None else f", {statistics.bytes_per_token:.2f} bytes per token"
    rows = [
        ("tokens", f"{statistics.tokens:,}"),
        ("documents", f"{statistics.documents:,}"),
        ("text", f"{size(statistics.text_bytes)}{ratio}"),
        ("tokenizer", _text(facts.tokenizer)),
        ("vocabulary", f"{job.tokenizer.vocabulary_size:,} ids, stored as {job.tokenizer.dtype}"),
        ("begin token of a document", "none" if job.begin is None else str(job.begin)),
        ("end token of a document", "none" if job.end is None else str(job.end)),
        ("column of the text", _text(job.column)),
        ("license", TO_FILL_IN if fields.license is None else _text(fields.license)),
        ("creator", TO_FILL_IN if fields.creator is None else _text(fields.creator)),
        ("address", TO_FILL_IN if fields.url is None else _text(fields.url)),
        ("published", TO_FILL_IN if fields.published is None else fields.published),
    ]
    kept = facts.stores.kept_columns
    if kept:
        rows.append(("columns kept beside the tokens", ", ".join(map(_text, kept))))
    if statistics.duplicates is not None:
        rows.append(("documents equal to an earlier one", f"{statistics.duplicates.documents:,}"))
    return f"## Contents\n\n{_table(('', ''), rows)}"


def _sources(facts: PublicFacts) -> str:
    """The largest sources. Their hashes are in `croissant.json`."""
    breakdown = facts.statistics.sources
    rows = [
        (
            share.name if share is breakdown.others else _text(public_name(share.name)),
            f"{share.documents:,}",
            f"{share.tokens:,}",
        )
        for share in breakdown.shares
    ]
    datasets = [f"- `{_code(address)}`" for address in facts.hub_datasets]
    derived = "\n".join(["Derived from these datasets of the Hub:", "", *datasets, "", ""]) if datasets else ""
    return (
        f"## Sources\n\n{derived}{_table(('source', 'documents', 'tokens'), rows)}\n\n"
        f"`croissant.json` lists the sources with all recorded hashes. A local file has the {IDENTITY}."
    )


def _skipped(facts: PublicFacts) -> str:
    heading = "## Rows that are not in the dataset"
    skipped = facts.skipped
    if not skipped:
        return f"{heading}\n\nEvery row of the sources is a document."
    rows = [(_text(reason), f"{number:,}") for reason, number in skipped.items()]
    lists = "".join(f"\n\nList of denied rows: BLAKE3 `{blake3}`." for blake3 in facts.deny_lists)
    return f"{heading}\n\n{_table(('reason', 'rows'), rows)}{lists}"


def _by_column(column: Breakdown) -> str:
    rows = [(_text(display_name(share.name)), f"{share.documents:,}", f"{share.tokens:,}") for share in column.shares]
    note = "\n\nThere are too many values to count each: these are minimum counts." if column.folded else ""
    return f"## Tokens by {_text(column.by)}\n\n{_table(('value', 'documents', 'tokens'), rows)}{note}"


def _files(facts: PublicFacts) -> str:
    """What is described, and how it is read."""
    prefixes = [prefix.rstrip("/") or "." for prefix in facts.prefixes]
    opened = json.dumps(prefixes[0] if len(prefixes) == 1 else prefixes, ensure_ascii=False)
    stores = "a token store" if len(prefixes) == 1 else f"{count(len(prefixes), 'token store')}, read as one"
    code = f"```python\nimport tokenmill\n\nstore = tokenmill.open({opened})\nprint(len(store), store[0])\n```"
    return (
        f"## Files\n\nThe dataset is {stores}. Its tokens are Arrow files in `parts/`; `manifest.parquet` has the"
        f" counts and the checksum of each.\n\n{code}\n\n`tokenmill export` writes the files of a trainer from it, and"
        " `tokenmill verify` compares its files with their checksums."
    )


def _checksums(facts: PublicFacts) -> str:
    rows = [(_text(file.name), f"`{file.sha256}`") for _, _, files in facts.files for file in files]
    versions = ", ".join(f"{name} {version}" for name, version in facts.stores.members[0].run.versions.items())
    return f"## How it was made\n\nMade with {_text(versions)}.\n\n{_table(('file', 'sha256'), rows)}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: str) -> str:
    """Untrusted text as Markdown in one line: without markup, HTML and control characters."""
    return escape(escape_control_characters(value).translate(_MARKDOWN))


def _prose(value: str) -> str:
    """A description that a person wrote: its paragraphs stay, and it cannot contain HTML."""
    lines = [escape_control_characters(line) for line in value.replace("\r\n", "\n").split("\n")]
    return "\n".join(line.replace("<", "&lt;") for line in lines).strip()


def _code(value: str) -> str:
    """Untrusted text between backticks."""
    return escape_control_characters(value).replace("`", "'").replace("|", "\\|")


def _yaml(value: str) -> str:
    return json.dumps(escape_control_characters(value), ensure_ascii=False)
