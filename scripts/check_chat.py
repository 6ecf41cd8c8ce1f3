"""Render conversations by the chat templates of others, and compare text, tokens and masks with transformers.

    python -m scripts.chat_material DIR
    python -m scripts.check_chat DIR [--only NAME ...] [--conversations N] [--others N]

E1: the text is `apply_chat_template(tokenize=False)`, or both refuse. E2: the ids are those of `tokenize=True`. E3: if
the template has {% generation %}, the mask is `return_assistant_tokens_mask`; where it is not, the tags are replaced by
characters and rendered by transformers, and ours has to be what these say. E4: without tags, how many turns are found,
and whether they agree with renderings of the first messages, where those are the begin of the whole text.

For the templates that have a segmenter written by hand (tests/chat/segmenters.py), the text of its pieces is compared
with transformers, and what it says is trained on with ours.

Templates of NAMED get all conversations, the others a part of each shape. What transformers says is kept in DIR.
The exit code is 1 on a difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tests.chat.own_segmenters import SEGMENTERS as OWN
from tests.chat.pieces import REFUSALS, given, trained_bytes
from tests.chat.segmenters import SEGMENTERS as BY_NAME
from tests.chat.segmenters import with_rest
from tests.support.chat_shapes import SHAPES, conversations
from tokenmill.chat.renderer import CannotRender, Rendered, Renderer
from tokenmill.chat.spec import Chat
from tokenmill.spans import Spans
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import Tokenizer, choose_engine

READER = Path(__file__).resolve().parent / "readers/render_chats.py"
DATE = "2026-11-18"
IN_BLOCK = re.compile(r"\{%[-+]?\s*(?:macro|call)\b|\{%[-+]?\s*set\s+\w+\s*[-+]?%\}")
TEMPLATES = Path(__file__).resolve().parents[1] / "tests/chat/templates"
SEGMENTERS = {**BY_NAME, **{f"own-{name}": segmenter for name, segmenter in OWN.items()}}
BATCH = 500
# A conversation for the templates of this repository: transformers masks all of it, because its span ends at token 0.
STOP_FIRST = {
    "shape": "a stop first",
    "messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "Is there anybody?"}],
    "tools": None,
}
# The templates that get all conversations.
NAMED = (
    "trl-qwen2_5",
    "trl-qwen3",
    "trl-qwen3_5_think",
    "trl-llama3",
    "trl-llama3_2",
    "trl-gemma3",
    "trl-gemma4",
    "trl-gptoss",
    "trl-deepseekv3",
    "trl-phi3_5",
    "llamacpp-glm-4.6",
    "llamacpp-mistralai-mistral-nemo-instruct-2407",
    "trl-nemotron_3_nano",
    "trl-lfm2_2_5",
    "llamacpp-huggingfacetb-smollm3-3b",
    "llamacpp-moonshotai-kimi-k2",
)
LINE = "{:<46} {:>5} {:>5} {:>5} {:>5} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}"
HEADINGS = (
    "template",
    "rows",
    "raise",
    "skip",
    "E1",
    "E2",
    "E3",
    "defect",
    "turns",
    "stable",
    "agree",
    "differ",
    "hand",
)


@dataclass
class Result:
    """What was found for one template. Each difference has a sentence; `skipped` are rows without certain places."""

    name: str
    tags: bool
    rows: int = 0
    raises: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    text: int = 0
    ids: int = 0
    masks: int = 0
    defects: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    stable: int = 0
    agree: int = 0
    differ: int = 0
    by_hand: int = 0
    refused: str = ""
    differences: list[str] = field(default_factory=list)
    examples: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def line(self) -> str:
        """A row of the table."""
        skipped = sum(self.skipped.values())
        masks = (self.masks, sum(self.defects.values())) if self.tags else ("", "")
        prefixes = ("", "", "", "") if self.tags else (self.turns, self.stable, self.agree, self.differ)
        counts = (self.rows, self.raises, skipped, self.text, self.ids, *masks, *prefixes)
        return LINE.format(self.name[:46], *counts, self.by_hand if self.name in SEGMENTERS else "")


def chosen_rows(name: str, count: int, others: int) -> list[int]:
    """The conversations for a template: all, or so many, of every shape as many. Ours get one more."""
    if name.startswith("own-"):
        return [*range(min(count, others)), count]
    if name in NAMED or others >= count:
        return list(range(count))
    first = int(hashlib.sha256(name.encode()).hexdigest(), 16) % (count // len(SHAPES))
    step = max(1, count // others)
    # Consecutive rows have all shapes in turn.
    block = len(SHAPES)
    rows = [(first + start) * block + row for start in range(0, count // block, step) for row in range(block)]
    return sorted(row % count for row in rows)


def own_records() -> list[dict[str, Any]]:
    """The templates of this repository, which spell the tags in all ways, as records of the index."""
    records = []
    for path in sorted(TEMPLATES.glob("*.jinja")):
        record = {"name": f"own-{path.stem}", "file": str(path), "generation": path.stem.startswith("tags")}
        record |= {"vocabulary": "llama-bpe", "constants": {"bos_token": "<s>", "eos_token": "</s>"}}
        records.append(record | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    return records


def reference(folder: Path, records: list[dict[str, Any]], count: int, others: int) -> Path:
    """Where transformers' lines are; they are made if they are not there."""
    chats = [json.dumps(each, ensure_ascii=False) for each in conversations(count)]
    index = (folder / "index.json").read_bytes()
    key = hashlib.sha256("\n".join([*chats, str(others)]).encode() + READER.read_bytes() + index).hexdigest()[:12]
    out = folder / f"reference-{key}"
    out.mkdir(exist_ok=True)
    (out / "conversations.jsonl").write_text("\n".join([*chats, json.dumps(STOP_FIRST)]) + "\n")
    missing = [record for record in records if not (out / f"{record['name']}.done").exists()]
    if missing:
        cases = []
        for record in missing:
            rows = chosen_rows(record["name"], count, others)
            case = {"name": record["name"], "rows": rows, "prefixes": rows[:: max(1, len(rows) // 400)]}
            case |= {"file": str(folder / record["file"]), "constants": record["constants"]}
            cases.append(case | {"vocabulary": str(folder / f"vocab/{record['vocabulary']}.json")})
        cases.sort(key=lambda case: case["vocabulary"])
        task = {"conversations": str(out / "conversations.jsonl"), "out": str(out), "date": DATE, "templates": cases}
        (out / "task.json").write_text(json.dumps(task))
        command = [str(folder / "environment/bin/python"), str(READER), str(out / "task.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for name in done.stdout.split():
            (out / f"{name}.done").touch()
        if done.returncode:
            sys.exit(f"transformers failed:\n{done.stderr[-3000:]}")
    return out


@lru_cache(1)
def encoder(path: Path) -> Tokenizer:
    """Our tokenizer of a vocabulary, with `--special parse`."""
    vocabulary = resolve(str(path))
    vocabulary = replace(vocabulary, spec=msgspec.structs.replace(vocabulary.spec, parse_special=True))
    return Tokenizer(vocabulary.spec, vocabulary.content, choose_engine(vocabulary, "auto").engine).load()


def encode(tokenizer: Tokenizer, batch: list[Rendered]) -> Iterator[tuple[list[int], list[int]]]:
    """The ids and the mask of each text."""
    offsets = np.cumsum([0, *(2 * len(each.spans) for each in batch)])
    values = np.array([edge for each in batch for span in each.spans for edge in span], np.uint32)
    encoded = tokenizer.encode_pieces(
        pa.array([each.text for each in batch], pa.large_string()), Spans(values, offsets)
    )
    assert encoded.train is not None
    for number in range(len(batch)):
        ids = encoded.document(number).tolist()
        mask = [0] * len(ids)
        edges = encoded.train.document(number).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            mask[begin:end] = [1] * (end - begin)
        yield ids, mask


def overlap(offsets: list[list[int]], spans: list[list[int]]) -> list[int]:
    """The rule: a token is trained on if its characters overlap a span. Of an empty token, none does."""
    return [int(any(begin < stop and start < end for start, stop in spans)) for begin, end in offsets]


def defect(expected: list[int], mask: list[int] | None, spans: list[list[int]], offsets: list[list[int]]) -> str:
    """Which of its three known defects explains a mask of transformers that is not the rule's."""
    if mask is None:
        return "no mask"
    ends = {end for _, end in spans}
    wrong = [place for place, (a, b) in enumerate(zip(expected, mask, strict=True)) if a != b]
    if any(span[1] and all(begin >= span[1] for begin, _ in offsets[1:]) for span in spans):
        return "a span ends at token 0"
    if all(expected[place] and offsets[place][1] in ends for place in wrong):
        return "the last character is several tokens"
    return ""


def compare_masks(result: Result, line: dict[str, Any], ids_mask: list[int], where: str, template: str) -> None:
    """E3 for one row."""
    result.masks += 1
    mask = line["mask"]
    if mask == ids_mask and (line["tagged"] is None or overlap(line["offsets"], line["tagged"]) == ids_mask):
        return
    if line["tagged"] is None:
        result.differences.append(f"{where}: E3: the mask differs, and the tags cannot be replaced: {mask} {ids_mask}")
        return
    expected = overlap(line["offsets"], line["tagged"])
    if ids_mask != expected:
        places = [place for place, (a, b) in enumerate(zip(expected, ids_mask, strict=True)) if a != b]
        shown = [(place, line["text"][slice(*line["offsets"][place])], expected[place]) for place in places[:4]]
        same = "and transformers agrees with the tags" if mask == expected else "and transformers differs too"
        result.differences.append(f"{where}: E3: (token, text, by the tags) {shown} {same}")
        return
    kind = defect(expected, mask, line["tagged"], line["offsets"])
    kind = kind or ("tags in what is written later" if IN_BLOCK.search(template) else "unexplained")
    result.defects[kind] += 1
    result.examples.setdefault(kind, f"{where}: expected {sum(expected)} of {len(expected)}, got {sum(mask or [])}")
    if kind == "unexplained":
        result.differences.append(f"{where}: E3: transformers differs from the tags, for no known reason")


def compare_by_hand(
    result: Result, line: dict[str, Any], chat: dict[str, Any], rendered: Rendered | None, where: str
) -> None:
    """The segmenter against transformers, and ours against the segmenter. Ours is None if it was not rendered."""
    try:
        pieces = SEGMENTERS[result.name](given(chat["messages"]), chat["tools"])
    except REFUSALS as error:
        if "error" not in line:
            result.differences.append(f"{where}: by hand: refused, {type(error).__name__}: {error}")
        return
    if "error" in line:
        result.differences.append(f"{where}: by hand: not refused: {line['error']}")
        return
    pieces = list(with_rest(pieces, line["text"]))
    text = "".join(piece for piece, _ in pieces)
    if text != line["text"]:
        result.differences.append(f"{where}: by hand: {first_difference(line['text'], text)}")
    elif rendered is not None:
        spans, data = trained_bytes(pieces), text.encode()
        result.by_hand += 1
        if spans != rendered.spans:
            shown = [[data[begin:end].decode()[-200:] for begin, end in each] for each in (spans, rendered.spans)]
            result.differences.append(f"{where}: by hand: expected {shown[0]}, trained is {shown[1]}")


def compare_prefixes(result: Result, line: dict[str, Any], rendered: Rendered, where: str) -> None:
    """E4 for one row: turns against renderings of the first messages."""
    text = line["text"]
    widths = np.cumsum([0, *(len(character.encode()) for character in text)])
    places = {int(byte): place for place, byte in enumerate(widths)}
    spans = [(places[begin], places[end]) for begin, end in rendered.spans]
    result.turns += len(line["prefixes"])
    for number, before, until in line["prefixes"]:
        if before is None or until is None or not text.startswith(before) or not text.startswith(until):
            continue
        if len(until) <= len(before):  # a turn without any text
            continue
        result.stable += 1
        inside = [span for span in spans if span[0] < len(until) and span[1] > len(before)]
        rest = text[max((end for _, end in inside), default=len(before)) : len(until)]
        begins = inside and inside[0][0] == len(before)
        # A stop that begins the next turn is trained on too. After a stop there is white space or the end of the text.
        ends = inside and (inside[-1][1] >= len(until) or not rest.strip() or len(until) == len(text))
        if begins and ends and len(inside) == 1:
            result.agree += 1
            continue
        result.differ += 1
        shown = [text[begin:end][-60:] for begin, end in inside]
        result.differences.append(
            f"{where}: E4: message {number}: prefix renderings say {text[len(before) : len(until)][:200]!r} "
            f"after {before[-40:]!r}, trained is {shown!r}"
        )


def check(task: tuple[Path, Path, dict[str, Any]]) -> Result:
    """Compare all rows of one template."""
    folder, out, record = task
    started = time.monotonic()
    result = Result(record["name"], record["generation"])
    tokenizer = encoder(folder / f"vocab/{record['vocabulary']}.json")
    template = (folder / record["file"]).read_bytes().decode()
    chats = [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]
    constants = {**record["constants"], "date": DATE}
    try:
        renderer = Renderer(
            Chat(template=template, constants=constants, special_tokens=tuple(tokenizer.spec.special_tokens))
        )
        renderer.turns  # noqa: B018 - it is learnt here
    except Exception as error:  # noqa: BLE001 - reported
        result.refused = f"{type(error).__name__}: {error}"
        return result
    batch: list[tuple[dict[str, Any], Rendered, str]] = []
    with (out / f"{record['name']}.jsonl").open() as lines:
        for text in lines:
            line = json.loads(text)
            row = line["row"]
            where = f"{record['name']} {row} ({chats[row]['shape']})"
            result.rows += 1
            rendered = None
            try:
                (rendered,) = renderer.render({"messages": chats[row]["messages"], "tools": chats[row]["tools"]})
            except CannotRender as error:
                if "refused" in error.reason:
                    result.raises += 1
                    if "error" not in line:
                        result.differences.append(f"{where}: E1: refused: {error}")
                else:
                    result.skipped[f"{error.reason}: {error.detail}"[:160]] += 1
                continue
            except Exception as error:  # noqa: BLE001 - reported
                result.differences.append(f"{where}: fails: {type(error).__name__}: {error}"[:1500])
                continue
            finally:
                if record["name"] in SEGMENTERS:
                    compare_by_hand(result, line, chats[row], rendered, where)
            if "error" in line:
                result.differences.append(f"{where}: E1: rendered, but transformers raises {line['error']}")
                continue
            result.text += 1
            if rendered.text != line["text"]:
                result.differences.append(f"{where}: E1: {first_difference(line['text'], rendered.text)}")
                continue
            batch.append((line, rendered, where))
            if len(batch) == BATCH:
                compare_batch(result, batch, tokenizer, template)
                batch = []
    if batch:
        compare_batch(result, batch, tokenizer, template)
    result.seconds = time.monotonic() - started
    return result


def compare_batch(
    result: Result, batch: list[tuple[dict[str, Any], Rendered, str]], tokenizer: Tokenizer, template: str
) -> None:
    """E2, E3 and E4 of some rows."""
    encoded = encode(tokenizer, [rendered for _, rendered, _ in batch])
    for (line, rendered, where), (ids, mask) in zip(batch, encoded, strict=True):
        result.ids += 1
        if ids != line["ids"]:
            result.differences.append(f"{where}: E2: the ids differ")
        elif result.tags:
            compare_masks(result, line, mask, where, template)
        elif "prefixes" in line:
            compare_prefixes(result, line, rendered, where)


def first_difference(expected: str, text: str) -> str:
    """Where two texts differ."""
    place = next(
        (i for i, (a, b) in enumerate(zip(expected, text, strict=False)) if a != b), min(len(expected), len(text))
    )
    return f"at {place}: expected {expected[place - 30 : place + 40]!r}, got {text[place - 30 : place + 40]!r}"


def main() -> int:
    """Check all templates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="what scripts.chat_material made")
    parser.add_argument("--only", nargs="*", help="names of templates")
    parser.add_argument("--conversations", type=int, default=5_000, help="for the named templates")
    parser.add_argument("--others", type=int, default=250, help="about how many for each other template")
    parser.add_argument("--report", help="write all differences and reasons to this file, as JSON")
    options = parser.parse_args()
    folder = Path(options.directory).resolve()
    records = [*json.loads((folder / "index.json").read_text()), *own_records()]
    records = [each for each in records if not options.only or each["name"] in options.only]
    started = time.monotonic()
    out = reference(folder, records, options.conversations, options.others)
    print(f"transformers: {time.monotonic() - started:.0f} s")
    records.sort(key=lambda each: each["vocabulary"])  # loaded once for those that follow each other
    with ProcessPoolExecutor(2) as pool:
        results = list(pool.map(check, [(folder, out, record) for record in records]))
    results.sort(key=lambda result: result.name)
    print(LINE.format(*HEADINGS))
    for result in results:
        print(result.line() if not result.refused else f"{result.name:<46} refused: {result.refused[:90]}")
    show_totals(results, records)
    if options.report:
        report = [{**vars(each), "skipped": dict(each.skipped), "defects": dict(each.defects)} for each in results]
        Path(options.report).write_text(json.dumps(report, ensure_ascii=False, indent=1))
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if any(result.differences for result in results) else 0


def show_totals(results: list[Result], records: list[dict[str, Any]]) -> None:
    """The sums, and some of what differs."""
    untagged = [each for each in results if not each.tags]
    accepted = [each for each in untagged if not each.refused and each.turns]
    found = len(accepted), len(untagged), len({each["sha256"] for each in records})
    print(
        f"\nwithout tags: marks are accepted for {found[0]} of {found[1]} templates ({found[2]} different ones in all)"
    )
    for heading in ("rows", "raises", "text", "ids", "masks", "turns", "stable", "agree", "differ", "by_hand"):
        print(f"{heading:<8} {sum(getattr(each, heading) for each in results):>9,}")
    print(f"skipped  {sum(sum(each.skipped.values()) for each in results):>9,}")
    for kind in sorted({kind for each in results for kind in each.defects}):
        example = next(each.examples[kind] for each in results if kind in each.examples)
        print(f"defect of transformers: {kind}: {sum(each.defects[kind] for each in results):,}; as {example}")
    for result in results:
        for sentence in result.differences[:3]:
            print(sentence[:600])
        if len(result.differences) > 3:
            print(f"{result.name}: and {len(result.differences) - 3:,} more")


if __name__ == "__main__":
    sys.exit(main())
