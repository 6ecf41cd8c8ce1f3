"""A store from an untrusted place: nothing outside it is read or written, nothing hangs, nothing grows without bound.

The files in tests/support/fuzz were found by scripts/fuzz_readers.py; each is read again here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import DATA, TESTS
from tests.support.command import run

FUZZ = TESTS / "support" / "fuzz"

import tokenmill  # noqa: E402
from tests.support.arguments import PrepareArguments  # noqa: E402
from tests.support.corpora import SMALL_TIKTOKEN  # noqa: E402
from tests.support.fuzz.targets import END, TARGETS, fate, make_base, with_hashes  # noqa: E402
from tests.support.small_stores import list_part, rewrite_part, rewrite_run, write_again  # noqa: E402
from tokenmill.errors import CorruptStore, SourceError, StoreError, TokenmillError  # noqa: E402
from tokenmill.exports.job import read_frozen  # noqa: E402
from tokenmill.pipeline.planning.freeze import load_existing  # noqa: E402
from tokenmill.storage import Folder, folder_at, stat  # noqa: E402
from tokenmill.storage.untrusted.malformed import MalformedDataError  # noqa: E402
from tokenmill.storage.untrusted.parquet_pages import RowGroup, count_pages, read_groups, read_parquet  # noqa: E402
from tokenmill.storage.untrusted.tables import read_batch  # noqa: E402
from tokenmill.store import tables  # noqa: E402
from tokenmill.store.job import require_run  # noqa: E402
from tokenmill.store.part import (  # noqa: E402
    MAX_INT64,
    ErasedRange,
    PartContent,
    PartSummary,
    SkippedRow,
    open_part,
    read_summary,
)
from tokenmill.store.part_ranges import open_ranged  # noqa: E402

pytestmark = pytest.mark.timeout(60)
FILES = [
    "run.json",
    "plan.parquet",
    "sources.parquet",
    "manifest.parquet",
    "parts/00000000.arrow",
    ".lock",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound store with its exports."""
    directory = tmp_path_factory.mktemp("untrusted") / "base"
    make_base(directory, DATA)
    return directory


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    return Path(shutil.copytree(base / "sound", tmp_path / "store"))


def use(directory: Path) -> None:
    """Look at a store in every way that starts no worker."""
    folder = folder_at(str(directory))
    load_existing(folder, require_run(folder))
    tokenmill.status(str(directory))
    opened = tokenmill.open(str(directory))
    opened.document(0)
    list(opened)
    list(opened.skipped())


def edit_run(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change run.json, and put the hashes of the tables beside it right."""
    rewrite_run(directory, partial(with_hashes, directory))
    rewrite_run(directory, change)


@pytest.mark.parametrize(
    "path", sorted(path for name in TARGETS for path in (FUZZ / name).glob("*")), ids=lambda p: p.name
)
def test_inputs_of_the_fuzzer_end_as_they_may(base: Path, path: Path) -> None:
    """Every input that the fuzzer kept is read, or refused with a TokenmillError."""
    assert fate(base, path.parent.name, path.read_bytes()) is None


def test_sound_files_are_read(base: Path) -> None:
    """What tokenmill writes itself passes every check."""
    for name, target in TARGETS.items():
        fate(base, name, (base / target.file).read_bytes())
        target.read(base)
        shutil.copyfile(base / "sound/manifest.parquet", base / "store/manifest.parquet")


@pytest.mark.parametrize("name", [*FILES, "parts"])
def test_links_that_leave_the_store_are_refused(store: Path, tmp_path: Path, name: str) -> None:
    """A file of the store that is a symbolic link to somewhere else is not read, even if what is there is right."""
    outside = tmp_path / "outside"
    if (store / name).exists():
        (store / name).rename(outside)
    else:
        outside.write_text("1\n")
    (store / name).symlink_to(outside)
    with pytest.raises(CorruptStore, match="leads outside"):
        use(store)


def test_a_link_to_the_store_and_links_inside_it_are_fine(store: Path, tmp_path: Path) -> None:
    """A store that is itself reached over a link can be used, and so can one with links that stay in it."""
    (tmp_path / "link").symlink_to(store)
    (store / "parts").rename(store / "elsewhere")
    (store / "parts").symlink_to("elsewhere")
    use(tmp_path / "link")


@pytest.mark.parametrize("name", ["parts", "log.jsonl", ".lock", "tokenizer", "drivers"])
def test_prepare_writes_nothing_through_links(base: Path, store: Path, tmp_path: Path, name: str) -> None:
    """A run that is resumed in somebody else's directory does not follow links out of it."""
    outside = tmp_path / "outside"
    shutil.rmtree(store / "parts")
    (store / "manifest.parquet").unlink()
    (store / "parts").mkdir()
    if (store / name).is_dir():
        (store / name).rename(outside)
    else:
        outside.write_text("precious")
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(outside)
    before = sorted(outside.iterdir()) if outside.is_dir() else outside.read_text()
    sources = [str(base / file) for file in ("a.jsonl", "b.jsonl")]
    words: PrepareArguments = {
        "tokenizer": SMALL_TIKTOKEN,
        "eot": END,
        "engine": "tiktoken",
        "unit_bytes": 150,
        "workers": 1,
    }
    with pytest.raises(TokenmillError):
        tokenmill.prepare(sources, out=str(store), **words)
    assert before == (sorted(outside.iterdir()) if outside.is_dir() else outside.read_text())


def test_export_writes_nothing_through_links(store: Path, tmp_path: Path) -> None:
    """An export goes to the store's own directory, or to the one that was asked for, never where a link leads."""
    shutil.rmtree(store / "nanogpt")
    outside = tmp_path / "outside"
    outside.mkdir()
    (store / "nanogpt").symlink_to(outside)
    with pytest.raises(CorruptStore, match="leads outside"):
        tokenmill.export(str(store), to="nanogpt", val="none", workers=1)
    assert not list(outside.iterdir())


def test_a_file_with_a_second_name_is_not_changed_in_place(store: Path, tmp_path: Path) -> None:
    """Logs and locks that are hard links of something else are refused: what they name stays as it is."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("log.jsonl", ".lock"):
        (store / name).unlink(missing_ok=True)
        os.link(precious, store / name)
    folder = folder_at(str(store))
    with pytest.raises(CorruptStore, match="not a file of its own"):
        folder.append("log.jsonl", b"x")
    with pytest.raises(CorruptStore, match="not a file of its own"), folder.locks.exclusive(".lock"):
        pass
    assert precious.read_text() == "precious"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_refused(store: Path, name: str) -> None:
    """Nobody waits for a pipe that nobody writes to."""
    (store / name).unlink(missing_ok=True)
    os.mkfifo(store / name)
    with pytest.raises(CorruptStore, match="not a regular file"):
        use(store)


@pytest.mark.timeout(20)
def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    """A source is a regular file, also if a store names it."""
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(SourceError, match="not a regular file"):
        stat(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a\0b", "parts/../../x"])
def test_names_stay_inside(store: Path, name: str) -> None:
    """A name from a file of the store cannot leave it."""
    with pytest.raises(CorruptStore, match="points outside"):
        folder_at(str(store)).path(name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("units", 10**18),
        ("units", -1),
        ("units", 30),
        ("planned_units", 30),
        ("sources", 10**30),
        ("job.tokenizer.vocabulary_size", 1 << 40),
        ("job.tokenizer.vocabulary_size", 0),
        ("job.tokenizer.file", "../../x.tiktoken"),
        ("job.tokenizer.file", "/etc/passwd"),
        ("job.tokenizer.kind", "pickle"),
        ("job.end", 10**12),
        ("job.keep", ["url", "url"]),
        ("job.keep", [""]),
        ("job.where", "("),
        ("job.where", "(" * 5000),
        ("job.template", "{"),
        ("job.deny", "../../x"),
        ("job.dedup", "x\0y"),
        ("job.min_tokens", -1),
        ("job.max_tokens", 1 << 70),
        ("plan_blake3", "../../x"),
        ("sources_blake3", ""),
    ],
)
def test_what_run_json_tells_is_compared(store: Path, field: str, value: object) -> None:
    """Counts, names and ids of run.json are refused if they cannot be, before anything is made of that size."""

    def change(run: dict[str, Any]) -> None:
        *path, last = field.split(".")
        for key in path:
            run = run[key]
        run[last] = value

    edit_run(store, change)
    with pytest.raises(CorruptStore, match=r"run\.json is damaged"):
        use(store)


def packed(table: pa.Table, **options: Any) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1 << 26, data_page_size=1 << 28, **options)
    return sink.getvalue()


def bomb(kind: str) -> pa.Buffer:
    """A small file of much: a text that repeats, rows that repeat, or bytes that repeat."""
    if kind == "text":
        text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5000, np.int32)), pa.array(["x" * 300_000]))
        return packed(pa.table({"path": text}), store_schema=False)
    return packed(pa.table({"unit": np.zeros(6_000_000, np.int64)}), use_dictionary=kind == "rows")


@pytest.mark.parametrize("kind", ["rows", "bytes", "text"])
def test_small_files_stay_small(kind: str) -> None:
    """A table that would be many times larger than its file is refused before there is memory for it."""
    data = bomb(kind)
    assert data.size < 40_000
    held = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(MalformedDataError, match="would"):
        read_parquet(data)
    grown = pa.default_memory_pool().max_memory() - max(peak, held)
    assert grown < 10 << 20


EMPTY_STRUCTS = {"a footer": (4, 1 << 22), "many values": (4, 1 << 21), "a field that is not used": (2, 1 << 21)}


@pytest.mark.parametrize("place", EMPTY_STRUCTS)
def test_footers_of_empty_structures_stay_small(place: str) -> None:
    """A byte of a footer can be a structure: the bytes and the values of a footer are limited."""
    field, count = EMPTY_STRUCTS[place]
    footer = bytes([field << 4 | 9, 0xFC]) + varint(count) + bytes(count + 1)
    data = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert peak_of(lambda: read_parquet(pa.py_buffer(data)), "its footer") < 1 << 20


def test_page_headers_of_empty_structures_stay_small() -> None:
    """The header of a page has no length, and cannot go on to the end of the file."""
    data = packed(pa.table({"unit": np.arange(1000)}), use_dictionary=False)
    start = read_groups(data)[0].columns[0][0]
    header = bytes([0x19, 0xFC]) + varint(1 << 20)  # its first field is a list of structures
    forged = bytes(data)[:start] + header + bytes(1 << 20)
    groups = [RowGroup(1000, [(start, len(forged) - start, 1000)])]
    assert peak_of(lambda: count_pages(pa.py_buffer(forged), groups), "too many values") < 1 << 20


def varint(number: int) -> bytes:
    return bytes([*((number >> shift & 127) | 128 for shift in range(0, 28, 7)), number >> 28])


def peak_of(read: Callable[[], object], reason: str) -> int:
    """The peak of the memory of Python objects while something is read and refused."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedDataError, match=reason):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_texts_that_share_their_starts_are_refused() -> None:
    """Such pages are small and their texts are not, so only plain pages are read without measuring the texts."""
    table = pa.table({"path": ["x" * 300_000] * 500})
    data = packed(table, use_dictionary=False, column_encoding={"path": "DELTA_BYTE_ARRAY"})
    with pytest.raises(MalformedDataError):
        read_parquet(data)
    plain = packed(pa.table({"path": ["a", "bc"]}), use_dictionary=False)
    assert read_parquet(plain)["path"].to_pylist() == ["a", "bc"]


def test_a_plan_of_a_million_units_in_a_few_bytes_is_refused(store: Path) -> None:
    """Counts that agree with each other, and with nothing on the disk, are no counts."""
    columns = {
        field.name: pa.nulls(3_000_000, field.type)
        if field.name == "detail"
        else np.zeros(3_000_000, field.type.to_pandas_dtype())
        for field in tables._SCHEMAS["plan.parquet"]
    }
    (store / "plan.parquet").write_bytes(packed(pa.table(columns, schema=tables._SCHEMAS["plan.parquet"])))
    edit_run(store, lambda run: run.update(units=3_000_000, planned_units=3_000_000))
    with pytest.raises(CorruptStore, match=r"plan\.parquet is damaged"):
        use(store)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("plan", "source", 7),
        ("plan", "sources", 0),
        ("plan", "sources", (1 << 32) - 1),
        ("plan", "text_bytes", -1),
        ("plan", "text_bytes", (1 << 63) - 1),
        ("sources", "kind", "pickle"),
        ("manifest", "unit", 5),
        ("manifest", "documents", -3),
        ("manifest", "documents", 1000),
        ("manifest", "tokens", (1 << 63) - 1),
        ("manifest", "tokens", None),
        ("manifest", "blake3", "0" * 64),
    ],
)
def test_tables_fit_each_other(store: Path, name: str, column: str, value: object) -> None:
    """A value that does not fit the other files of the store is refused, however well its own file is made."""
    path = store / f"{name}.parquet"
    table = pq.read_table(path)
    place = table.column_names.index(column)
    values = [value, *table[column].to_pylist()[1:]]
    changed = (
        pa.array(values, pa.string()).dictionary_encode() if column == "kind" else pa.array(values, table[column].type)
    )
    tables.publish_table(folder_at(str(store)), path.name, table.set_column(place, column, changed))
    edit_run(store, lambda _: None)
    with pytest.raises(CorruptStore, match="damaged"):
        use(store)


def test_a_table_without_rows_is_read() -> None:
    """A store of nothing has tables of nothing."""
    empty = tables.MANIFEST_SCHEMA.empty_table()
    assert read_parquet(packed(empty), tables.MANIFEST_SCHEMA).equals(empty)


def test_tables_have_their_columns(store: Path) -> None:
    """A table without a column, or with one of another type, is refused with both lists."""
    for changed in (
        pq.read_table(store / "manifest.parquet").drop_columns(["tokens"]),
        pa.table({"unit": ["a"]}),
    ):
        tables.publish_table(folder_at(str(store)), "manifest.parquet", changed)
        with pytest.raises(CorruptStore, match="its columns are"):
            use(store)


def arrow(table: pa.Table, *, compression: str | None = None, times: int = 1) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(times):
            writer.write_table(table)
    return sink.getvalue()


def test_batches_are_as_they_are_in_memory() -> None:
    """Files that are packed, or have several batches or other columns, are refused before they are unpacked."""
    table = pa.table({"length": np.zeros(1_000_000, np.int64)})
    schema = table.schema
    assert len(read_batch(arrow(table), schema)[1]) == len(table)
    held = pa.default_memory_pool().max_memory()
    refused = {
        "packed": arrow(table, compression="zstd"),
        "2 batches": arrow(table, times=2),
        "0 batches": arrow(table, times=0),
        "columns are": arrow(pa.table({"length": [1.5]})),
        "dictionaries": arrow(pa.table({"length": pa.array([1]).dictionary_encode()})),
        "null": arrow(pa.table({"length": pa.array([1, None], pa.int64())})),
        "not an Arrow file": pa.py_buffer(b"ARROW1\0\0" + bytes(40)),
    }
    for reason, data in refused.items():
        with pytest.raises(MalformedDataError, match=reason):
            read_batch(data, schema)
    assert pa.default_memory_pool().max_memory() - held < 64 << 20


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": np.array([1, 2, 3], np.uint32)}, "tokens are uint32"),
        ({"source": np.array([9, 9], np.uint32)}, "source 9, of 2"),
        ({"row": np.array([5, 6], np.uint64)}, "not the part that the manifest describes"),
        ({"offsets": np.array([0, 3, 2], np.int64)}, "lengths it states"),
        ({"offsets": np.array([0, -5, 3], np.int64)}, "lengths it states"),
        ({"tokens": np.array([1, 2, 3], np.int64)}, "its columns are"),
    ],
)
def test_a_part_fits_its_store(store: Path, change: dict[str, Any], reason: str) -> None:
    """A part whose own checksum is right is refused if it is not one that the store can have."""
    columns = {
        "tokens": np.array([1, 2, 3], np.uint16),
        "offsets": np.array([0, 1, 3], np.int64),
        "source": np.zeros(2, np.uint32),
        "row": np.zeros(2, np.uint64),
    }
    write_again(folder_at(str(store)), PartSummary(0, "", 2, 3, 9), PartContent(**{**columns, **change}))
    with pytest.raises(CorruptStore, match=reason):
        use(store)


@pytest.mark.parametrize(
    "skipped",
    [
        SkippedRow(0, 0, 0, -5, "null"),
        SkippedRow(0, 0, 0, MAX_INT64, "null"),
        SkippedRow(-1, 0, 0, 1, ""),
        SkippedRow(0, 5, 2, 1, "null"),
        SkippedRow(0, 5, 6, 3, "null"),
        SkippedRow(0, 5, 6, 0, "null"),
    ],
)
def test_what_a_part_skips_is_counted_with_care(store: Path, skipped: SkippedRow) -> None:
    """Counts of skipped rows that cannot be are refused, not added up."""
    folder = folder_at(str(store))
    summary, content = open_part(folder, 0)
    write_again(
        folder, PartSummary(0, summary.job, summary.documents, summary.tokens, 1, "", (skipped, skipped)), content
    )
    with pytest.raises(CorruptStore, match="part 0 is damaged"):
        open_part(folder, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 2),
        ("history", []),
        ("files_hash", "../../x"),
        ("selector_hash", ""),
        ("identity", "x" * 64),
        ("request", "../../x; ls"),
        ("documents_hash", "/etc/passwd"),
        ("documents", -1),
        ("tokens", 1 << 63),
    ],
)
def test_what_a_claim_states_is_compared(store: Path, field: str, value: object) -> None:
    """Names that lead elsewhere, or that a shell would run, and impossible counts are refused by every reader."""
    shutil.rmtree(store / "nanogpt", ignore_errors=True)
    tokenmill.erase(store, rows=[(Path(tokenmill.open(store).document(0).source).name, 0)], request="r", workers=1)
    path = store / "changes/00000001.json"
    claim = json.loads(path.read_text())
    (claim["history"][0] if field in claim["history"][0] else claim)[field] = value
    path.write_text(json.dumps(claim))
    with pytest.raises(CorruptStore, match=r"00000001\.json is damaged"):
        tokenmill.open(store)


ERASED = {
    "2^29 documents": (1 << 29, [[0, (1 << 29) - 1, 1]]),
    "2^40 documents": (1 << 40, [[0, (1 << 40) - 1, 1]]),
    "2^62 documents": (1 << 62, [[0, (1 << 62) - 1, 1]]),
    "overlapping ranges": (None, [[0, 1, 1]] * 2),
    "ranges in no order": (None, [[1, 1, 1], [0, 0, 1]]),
    "a range after the last document": (None, [[0, 1 << 40, 1]]),
    "a range that ends before it begins": (None, [[1, 0, 1]]),
    "no change": (None, [[0, 0, 0]]),
}


@pytest.mark.parametrize("read", [open_part, read_summary, open_ranged])
@pytest.mark.parametrize("forged", ERASED)
def test_what_a_part_states_is_compared_before_memory_is_allocated(
    store: Path, forged: str, read: Callable[[Folder, int], object]
) -> None:
    """Erased ranges that overlap, or documents that the file cannot hold, are damage, and no array is made of them."""
    folder = folder_at(str(store))
    summary, content = open_part(folder, 0)
    documents, erased = ERASED[forged]
    forged_summary = msgspec.structs.replace(
        summary, documents=documents or summary.documents, erased=tuple(ErasedRange(*one) for one in erased)
    )
    write_again(folder, forged_summary, content)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptStore, match="part 0 is damaged"):
            read(folder, 0)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_what_drivers_tell_is_for_people(store: Path) -> None:
    """Files of drivers that tell nothing are left out, and the state of the run is told all the same."""
    garbage = [b"\xff\xfe", b"[" * 100_000, b"{}", b'{"driver": 5}', b'{"deaths": -1}', b"null", b"", b"x" * 3_000_000]
    [one] = (store / "drivers").iterdir()
    one.write_bytes(one.read_bytes().replace(b'"deaths":0', b'"deaths":1'))
    for number, data in enumerate(garbage):
        (store / "drivers" / f"{number}.json").write_bytes(data)
    assert tokenmill.status(str(store)).deaths == 1


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return run(*words, code=None)


def test_a_token_beyond_the_vocabulary_is_shown_by_its_number(store: Path) -> None:
    """`inspect --doc` shows what is there, also if no vocabulary has it."""
    folder = folder_at(str(store))
    summary, content = open_part(folder, 0)
    tokens = content.tokens.copy()
    tokens[0] = 60_000
    written = write_again(folder, summary, PartContent(tokens, content.offsets, content.source, content.row))
    list_part(folder, written)
    shown = command("inspect", str(store), "--doc", "0")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "<60000>" in shown.stdout


def test_another_vocabulary_is_not_used(store: Path) -> None:
    """The vocabulary in the store is the one that run.json names by its hash, or none."""
    file = next((store / "tokenizer").iterdir())
    file.write_bytes(file.read_bytes().replace(b" 300\n", b" 9300\n"))
    shown = command("inspect", str(store), "--doc", "0")
    assert shown.returncode == 3
    assert "vocabulary" in shown.stderr
    assert "Traceback" not in shown.stderr
    with pytest.raises(CorruptStore, match="not the vocabulary"):
        tokenmill.open(str(store)).vocabulary()


def test_damage_ends_in_a_sentence_and_code_3(store: Path) -> None:
    """The command names the file, the reason, and the command that helps."""
    (store / "manifest.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    shown = command("status", str(store))
    assert shown.returncode == 3
    assert shown.stderr.startswith(f"error: {store}/manifest.parquet is damaged\n  reason ")
    assert "Run the same `tokenmill prepare` again" in shown.stderr
    assert shown.stderr.count("\n") == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [("bins", 1 << 60), ("run_tokens", 0), ("val", "nan"), ("val", "1.5"), ("dtype", "object"), ("shard_tokens", -1)],
)
def test_an_export_is_frozen_with_what_can_be(store: Path, field: str, value: object) -> None:
    """Sizes and types in export.json are refused if no export has them."""
    path = store / "nanogpt/.tokenmill/export.json"
    frozen = json.loads(path.read_text())
    (frozen if field in frozen else frozen["job"])[field] = value
    path.write_text(json.dumps(frozen))
    with pytest.raises(StoreError, match=r"export\.json is damaged"):
        read_frozen(folder_at(str(store / "nanogpt")))


def test_verify_finds_tokens_that_no_vocabulary_has(store: Path) -> None:
    """A part that is right in itself is not right for its store."""

    def change(content: PartContent) -> PartContent:
        tokens = content.tokens.copy()
        tokens[0] = 60_000
        return PartContent(tokens, content.offsets, content.source, content.row)

    rewrite_part(store, change)
    with pytest.raises(CorruptStore, match="it holds token 60000, of 1200"):
        tokenmill.verify(str(store), workers=1)


def test_workers_load_no_other_vocabulary(store: Path) -> None:
    """What native code is given to read is what run.json names by its hash."""
    file = next((store / "tokenizer").iterdir())
    file.write_bytes(file.read_bytes().replace(b" 300\n", b" 9300\n"))
    with pytest.raises(CorruptStore, match="not the vocabulary"):
        tokenmill.verify(str(store), all=True, workers=1)


@pytest.mark.parametrize(("column", "value"), [("file_tokens", 10**13), ("split", "../../x"), ("last_block", 10**9)])
def test_an_export_that_is_resumed_keeps_to_its_store(store: Path, column: str, value: object) -> None:
    """The shards of a plan that somebody else wrote are stretches of the store, or the plan is refused."""
    state = store / "megatron/.tokenmill"
    table = pq.read_table(state / "plan.parquet")
    changed = pa.array([value, *table[column].to_pylist()[1:]], table[column].type)
    place = table.column_names.index(column)
    tables.publish_table(folder_at(str(state)), "plan.parquet", table.set_column(place, column, changed))
    shutil.rmtree(state / "manifests")
    shutil.rmtree(state / "shards")
    (state / "shards").mkdir()
    with pytest.raises(CorruptStore, match=r"plan\.parquet is damaged"):
        tokenmill.export(str(store), to="megatron", val="none", workers=1)
    assert not list(store.parent.glob("x*"))
