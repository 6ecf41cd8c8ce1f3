"""Damaged input: what is read of it is what is there, and everything else is an error that names the file."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.damage import WRITERS, Reading, ReadOurs, damage, ending, read_plainly
from tests.support.source_files import KINDS, Kind, read_all, read_all_and_bad, read_slice, source
from tokenmill import sources
from tokenmill.errors import RunFailed, SourceError
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Cause, Died, Done, RetryPolicy
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.pipeline.unit.messages import RowCounts
from tokenmill.pipeline.unit.plan import SplitFiles
from tokenmill.sources.documents import BadRow, ReadOptions, Slice

CASES = int(os.environ.get("TOKENMILL_DAMAGE_CASES", "330"))
SEED = int(os.environ.get("TOKENMILL_DAMAGE_SEED", "20251"))
ONCE = RetryPolicy(max_crashes=1)
DOCUMENTS = [
    f"{i}: {'as before ' * (i % 3)}{'é' * (i % 5)}{i * 7919 % 10007}" if i % 11 else ("" if i else None)
    for i in range(60)
]


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalExecutor]:
    """Two workers."""
    with LocalExecutor(("damage",)) as executor:
        yield executor.start(2, memory_bytes=2 << 30)


def readings(pool: LocalExecutor, function, paths: list[str]) -> dict[str, Reading | Died]:
    """What a reader makes of each file, dead or alive."""
    found: dict[str, Reading | Died] = {}
    for outcome in pool.run(function, paths, ONCE):
        assert isinstance(outcome, Done | Died), outcome
        found[outcome.item] = outcome.value if isinstance(outcome, Done) else outcome
    return found


def test_a_damaged_file_is_read_as_it_is_or_named(pool, tmp_path: Path) -> None:
    """What is read of a damaged file is what another reader finds there, or what was there before; else it is named.

    Never fewer rows without an error, never a hang. A flipped letter in a plain text, in a page of Parquet without
    checksum or in a zstd frame without one makes another valid file, and nobody can tell.
    """
    rng = random.Random(SEED)
    whole = {kind: write(DOCUMENTS) for kind, write in WRITERS.items()}
    for kind, data in whole.items():
        (tmp_path / f"whole {kind}{ending(kind)}").write_bytes(data)
    done: dict[str, tuple[str, str]] = {}
    for case in range(CASES):
        kind = list(WRITERS)[case % len(WRITERS)]
        path = f"{tmp_path}/{case}{ending(kind)}"
        what, data = damage(rng, whole[kind], kind)
        Path(path).write_bytes(data)
        done[path] = (kind, what)
    ours = readings(pool, ReadOurs(), [*(f"{tmp_path}/whole {kind}{ending(kind)}" for kind in WRITERS), *done])
    plain = readings(pool, read_plainly, list(done))
    before = {kind: ours[f"{tmp_path}/whole {kind}{ending(kind)}"] for kind in WRITERS}
    wrong = {}
    fates: Counter[str] = Counter()
    for path, (kind, what) in done.items():
        fate, fault = judged(path, kind, ours[path], plain[path], before[kind])
        fates[fate] += 1
        if fault:
            wrong[path] = f"{kind}, {what}: {fault}"
    assert not wrong, "\n".join(f"{path}: {fault}" for path, fault in wrong.items())
    assert fates["refused"] > CASES / 4, fates
    assert fates["read"] > CASES / 20, fates


def judged(path: str, kind: str, ours: Reading | Died, plain: Reading | Died, before: Reading | Died):
    """What became of a file, and what is wrong with that."""
    if isinstance(ours, Died):
        harmless = ours.end.cause is Cause.CRASH and kind.startswith(("parquet", "arrow"))
        return "died", None if harmless else f"the reader {ours.end}: {ours.output_tail}"
    if ours.error is not None:
        return "refused", None if path in ours.error else f"not named: {ours.error}"
    assert isinstance(before, Reading), f"the reader died of the file that is not damaged: {before}"
    if ours.rows == before.rows or (isinstance(plain, Reading) and ours.rows == plain.rows):
        return "read", None
    return "wrong", f"rows {ours.rows}, and others find {plain}"


@pytest.fixture
def deadly(pool, tmp_path: Path) -> str:
    """A Parquet file that kills whoever reads its footer: found by flipping bits of the schema in it."""
    data = WRITERS["parquet plain"](["one", "two"])
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    paths = []
    for place, bit in itertools.product(range(start, start + 120), range(8)):
        path = tmp_path / f"{place}-{bit}.parquet"
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :])
        paths.append(str(path))
    files = ((source(path),) for path in paths)
    for outcome in pool.run(SplitFiles(ReadOptions(), 1000), files, ONCE):
        if isinstance(outcome, Died):
            return outcome.item[0].path
    pytest.skip("this version of pyarrow survives every bit flip in the schema of a footer")


@pytest.mark.processes
def test_a_footer_that_kills_its_reader_is_named(pool, deadly: str, tmp_path: Path) -> None:
    """One such file among many sound ones costs the lives of workers, not that of the caller, and it is named."""
    directory = tmp_path / "in"
    directory.mkdir()
    for number in range(150):
        (directory / f"{number:03}.parquet").write_bytes(WRITERS["parquet plain"](["one", "two"]))
    found = sources.discover([str(directory)]).table
    assert len(plan_units(found, ReadOptions(), 10, pool)) == 150
    os.replace(deadly, directory / "077.parquet")
    found = sources.discover([str(directory)]).table
    with pytest.raises(SourceError, match="a worker died while it read the footer of a source") as caught:
        plan_units(found, ReadOptions(), 10, pool)
    message = str(caught.value)
    assert "077.parquet\n" in message
    assert "was killed" in message
    assert "compare it with the original" in message
    with pytest.raises(SourceError, match="died while it read the footer"):
        tokenmill.plan(str(directory), tokenizer=SMALL_JSON)
    with pytest.raises(SourceError, match="died while it read the footer"):
        tokenmill.prepare(str(directory), tokenizer=SMALL_JSON, out=str(tmp_path / "out"))


@pytest.mark.parametrize("command", ["plan", "prepare"])
def test_a_missing_column_in_one_file_of_many_is_named(tmp_path: Path, command: str) -> None:
    """So is a column of another type: the first such file, with the columns it has."""
    for number in range(30):
        name = "text" if number != 17 else "body"
        pq.write_table(pa.table({name: ["x"]}), tmp_path / f"{number:02}.parquet")
    out = {"out": str(tmp_path / "out")} if command == "prepare" else {}
    with pytest.raises(SourceError, match="no column named 'text'") as caught:
        getattr(tokenmill, command)(str(tmp_path / "*.parquet"), tokenizer=SMALL_JSON, **out)
    assert "17.parquet" in str(caught.value)
    assert "body (string)" in str(caught.value)


@pytest.mark.parametrize(("max_bad", "said"), [("0.1%", "0.1%"), (0.01, "1%")])
def test_the_share_of_bad_rows_is_that_of_the_rows_read(tmp_path: Path, max_bad: str | float, said: str) -> None:
    """A run that is given up counts what it has read, and asks for the column. No limit would help."""
    for number in range(8):
        (tmp_path / f"{number}.jsonl").write_text('{"meta": {"a": 1}, "text": "%s"}\n' % ("x" * 1000) * 1000)
    with pytest.raises(RunFailed, match=r"rows read so far") as caught:
        tokenmill.prepare(
            str(tmp_path), tokenizer=SMALL_JSON, column="meta", max_bad=max_bad, workers=1, out=str(tmp_path / "out")
        )
    message = caught.value.text
    counts = re.search(r"^([\d,]+) of the ([\d,]+) rows read so far", message)
    assert counts is not None
    assert counts[1] == counts[2]
    assert f"100.00%, more than --max-bad {said}\n" in message
    assert "Check --column meta: most values are not text" in message
    assert "100%" not in message.partition("\n")[2], "a higher limit would make it worse"


@pytest.mark.parametrize(
    ("bad", "rows", "advice"), [(1, 1000, "0.2%"), (645, 10_000, "10%"), (5, 10, "100%"), (1, 100_000, "0.1%")]
)
def test_the_limit_that_is_advised_is_larger_than_the_share(bad: int, rows: int, advice: str) -> None:
    """It is the next round figure."""
    assert RowCounts(Counter({"not valid UTF-8": bad}), rows, "text").sufficient_limit() == advice


@pytest.mark.parametrize("command", ["plan", "prepare"])
def test_a_column_that_json_lines_lack_is_refused_before_any_work(tmp_path: Path, command: str) -> None:
    """Nothing is frozen and nothing is left behind, and the message comes once, however many files there are."""
    for number in range(9):
        (tmp_path / f"{number}.jsonl").write_text('{"id": 1, "content": "x"}\n' * 10)
    out = {"out": str(tmp_path / "out")} if command == "prepare" else {}
    with pytest.raises(SourceError, match="has the column 'text'") as caught:
        getattr(tokenmill, command)(str(tmp_path / "*.jsonl"), tokenizer=SMALL_JSON, **out)
    message = caught.value.text
    assert message.count("columns      id, content\n") == 1
    assert "0.jsonl" in message
    assert "--column NAME" in message
    assert not (tmp_path / "out").exists()


def test_sources_with_different_columns_need_stores_of_their_own(tmp_path: Path) -> None:
    """The message tells which source has the column, and which has not. Lines may lack it, files with a schema not."""
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"body": "x"}\n')
    told = f"(?s)file +{tmp_path}/a.parquet\n.*has it +{tmp_path}/b.jsonl "
    with pytest.raises(SourceError, match=told) as caught:
        tokenmill.prepare(str(tmp_path), tokenizer=SMALL_JSON, column="body", out=str(tmp_path / "out"))
    assert "stores of their own" in str(caught.value)
    assert "column=NAME" not in str(caught.value)


def test_a_bad_row_does_not_stop_a_dry_run(tmp_path: Path) -> None:
    """The sample is taken from the other rows, and from the first batch that has some."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"no object\n" * 1000 + b'{"text": "a few words"}\n' * 1000)
    estimate = tokenmill.plan(str(path), tokenizer=SMALL_JSON)
    assert estimate.tokens.low > 0


def varint(number: int) -> bytes:
    """A number as Thrift's compact protocol writes it."""
    number = (number << 1) ^ (number >> 63)
    number &= (1 << 64) - 1
    encoded = b""
    while number > 0x7F:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


@pytest.mark.parametrize("figure", ["rows", "size"])
@pytest.mark.parametrize("absurd", [-1, -(2**62), 2**31, 2**40, 2**60, 2**63 - 1])
def test_an_absurd_figure_in_a_footer_is_refused(tmp_path: Path, figure: str, absurd: int) -> None:
    """Announced rows and sizes are not believed, nor memory set aside for them: the file is named."""
    path = tmp_path / "x.parquet"
    rows = 12_345
    pq.write_table(pa.table({"text": ["some text"] * rows}), path, use_dictionary=False, write_statistics=False)
    true = rows if figure == "rows" else pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert varint(true) in footer
    footer = footer.replace(varint(true), varint(absurd))
    path.write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    believed = figure == "size" and 0 < absurd <= 2**40  # a size is a hint, and text may be compressed to nothing
    try:
        assert len(read_all(str(path))) == rows
        assert believed
    except SourceError as error:
        assert str(path) in str(error)  # noqa: PT017 - it depends on the case
        assert not believed


def test_absurd_rows_of_a_record_batch_are_refused(tmp_path: Path) -> None:
    """So are those of an Arrow message, in a column that has no buffers to compare them with."""
    path = tmp_path / "x.arrow"
    table = pa.table({"text": pa.nulls(0x01020304)})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    data = path.read_bytes()
    for absurd in (-1, 2**43, 2**62, 2**63 - 1):
        path.write_bytes(data.replace((0x01020304).to_bytes(8, "little"), absurd.to_bytes(8, "little", signed=True)))
        with pytest.raises(SourceError, match=r"x\.arrow"):
            read_all(str(path))


@pytest.fixture(params=KINDS)
def kind(request) -> Kind:
    """Each kind in turn."""
    return KINDS[request.param]


def test_a_file_that_shrinks_or_grows_in_mid_read_is_refused(kind: Kind, tmp_path: Path) -> None:
    """Whatever was read of it before, the read ends with an error that names it."""
    path = f"{tmp_path}/file{kind.ending}"
    options = ReadOptions(separator=kind.separator, batch_bytes=10_000)
    documents = [random.Random(i).randbytes(400).hex() for i in range(1000)]
    for change in ("shrinks", "grows", "is gone"):
        kind.write(path, documents, 100)
        file = source(path)
        stop = int(sources.split_file(file, options, 1 << 30).stop[-1])
        stream = sources.read_documents(file, Slice(0, stop), options)
        next(stream)
        if change == "is gone":
            os.unlink(path)
        else:
            os.truncate(path, file.size // 2 if change == "shrinks" else file.size + 100)
        with pytest.raises(SourceError, match=path):
            list(stream)


def test_a_replaced_file_is_refused_by_its_time(kind: Kind, tmp_path: Path) -> None:
    """The same size and another time: refused. With its size and time set to be the same, nothing tells."""
    path = f"{tmp_path}/file{kind.ending}"
    options = ReadOptions(separator=kind.separator)
    kind.write(path, ["one", "two"], 1)
    file, status = source(path), os.stat(path)
    stop = int(sources.split_file(file, options, 1 << 30).stop[-1])
    kind.write(f"{path}.new{kind.ending}", ["eno", "owt"], 1)
    os.replace(f"{path}.new{kind.ending}", path)
    os.truncate(path, file.size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(SourceError, match="changed since the run was planned"):
        read_slice(file, 0, stop, options)


@dataclass(frozen=True, slots=True)
class ReadBad:
    """The function that reads a file and tells its rows that are no documents, and how many are."""

    options: ReadOptions

    def __call__(self, path: str) -> tuple[int, list[BadRow]]:
        """Run by a worker."""
        stream, bad = read_all_and_bad(path, self.options)
        return len(stream), bad


LONGER = pytest.mark.skipif(not os.environ.get("TOKENMILL_LONG_TESTS"), reason="set TOKENMILL_LONG_TESTS to run it")


@pytest.mark.parametrize(
    ("name", "separator", "size"),
    [
        ("bomb.jsonl.gz", None, 1 << 30),
        ("bomb.txt.gz", "\n", 100 << 20),
        pytest.param("bomb.jsonl.gz", None, 8 << 30, marks=LONGER),
        pytest.param("line.jsonl", None, 2 << 30, marks=LONGER),
    ],
)
def test_a_bomb_is_told_and_takes_no_memory(tmp_path: Path, name: str, separator: str | None, size: int) -> None:
    """One endless line of zeros, small as it is on the disk, is passed over; what stands after it is read."""
    path = f"{tmp_path}/{name}"
    digest = blake3()
    with gzip.open(path, "wb", compresslevel=1) if name.endswith("gz") else open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
            digest.update(bytes(1 << 20))
        file.write(b'\n{"text": "after"}\n')
    options = ReadOptions(separator=separator, on_bad="quarantine", document_bytes=10_000_000)
    with LocalExecutor(("test_bad_input",)) as pool:
        (outcome,) = pool.start(1).run(ReadBad(options), [path])
    assert isinstance(outcome, Done), outcome
    documents, (bad,) = outcome.value
    assert documents == 1
    assert (bad.row, bad.reason, bad.blake3, len(bad.raw)) == (0, "too long", digest.hexdigest(), 64 << 10)
    assert f"{size:,} bytes" in bad.detail
    assert outcome.worker.peak_bytes < 250 << 20, outcome.worker


def count_rows(path: str) -> int:
    """The rows of a file, none of them kept. Run by a worker."""
    file = source(path)
    stop = int(sources.split_file(file, ReadOptions(), 1 << 40).stop[-1])
    return sum(len(documents.rows) for documents in sources.read_documents(file, Slice(0, stop), ReadOptions()))


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize(("value_bytes", "rows"), [(10_000_000, 100), (900_000, 1500)])
def test_one_long_value_in_every_row_takes_no_memory(tmp_path: Path, name: str, value_bytes: int, rows: int) -> None:
    """A dictionary holds a value once, and a gigabyte of rows may name it: they are made a few at a time."""
    path = str(tmp_path / name)
    values = pa.array(["x" * value_bytes, "y"])
    column = pa.DictionaryArray.from_arrays(pa.array([0] * (rows - 1) + [1], pa.int32()), values)
    table = pa.table({"text": column})
    if name.endswith(".parquet"):
        version = "2.0" if rows == 100 else "1.0"
        pq.write_table(table, path, dictionary_pagesize_limit=1 << 30, data_page_version=version)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    assert os.path.getsize(path) < 2 * value_bytes
    with LocalExecutor(("test_bad_input",)) as pool:
        (outcome,) = pool.start(1).run(count_rows, [path])
    assert isinstance(outcome, Done), outcome
    assert outcome.value == rows
    assert outcome.worker.peak_bytes < 450 << 20, outcome.worker
