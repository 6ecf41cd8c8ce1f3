"""Standard input and pipes as sources of `prepare`, in processes of their own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON
from tests.support.killing import wait_until

LINES = [json.dumps({"id": row, "text": f"row {row} " + "says more " * (row % 20)}) for row in range(2000)]
DATA = "".join(f"{line}\n" for line in LINES).encode()


def command(*words: object) -> list[str]:
    """A command line of `tokenmill prepare`."""
    return [sys.executable, "-m", "tokenmill", "prepare", "-t", SMALL_JSON, "--workers", "1", *map(str, words)]


def prepare(*words: object, data: bytes = b"", code: int = 0) -> str:
    """Run the command in this process with this standard input; return what it prints for people."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        before = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            return run("prepare", "-t", SMALL_JSON, "--workers", "1", *words, code=code).stderr
        finally:
            os.dup2(before, 0)
            os.close(before)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The documents of the lines in a file."""
    folder = tmp_path_factory.mktemp("file")
    (folder / "a.jsonl").write_bytes(DATA)
    run("prepare", "-t", SMALL_JSON, folder / "a.jsonl", "--out", folder / "out", "--workers", 1)
    return [list(document) for document in tokenmill.open(folder / "out")]


def documents(store: Path) -> list[list[int]]:
    """The documents of a store."""
    return [list(document) for document in tokenmill.open(store)]


def test_standard_input_is_a_source(tmp_path: Path, expected: list[list[int]]) -> None:
    """The store is that of the file; the last line needs no end; the same input, and none, find it complete."""
    out = tmp_path / "out"
    said = prepare("-", "--out", out, data=DATA.rstrip(b"\n"))
    assert f"rows from standard input are in no file: they are copied to {out}/spool first" in said
    assert documents(out) == expected
    assert "already done" in prepare("-", "--out", out, data=DATA)
    said = prepare("-", "--out", out)
    assert f"no rows come from standard input: the run goes on with those in {out}/spool" in said
    said = prepare("-", "--out", out, data=DATA[:1000], code=1)
    assert "the rows from standard input are not those that this run was started with" in said


def test_named_pipes_are_sources(tmp_path: Path, expected: list[list[int]]) -> None:
    """Several pipes are read one after the other, whatever their names end in."""
    half = DATA.index(b"\n", len(DATA) // 2) + 1
    pipes = [tmp_path / "one.gz", tmp_path / "two"]
    for pipe in pipes:
        os.mkfifo(pipe)
    writers = [
        threading.Thread(target=pipe.write_bytes, args=(data,))
        for pipe, data in zip(pipes, (DATA[:half], DATA[half:]), strict=True)
    ]
    for writer in writers:
        writer.start()
    prepare(*pipes, "--out", tmp_path / "out")
    for writer in writers:
        writer.join()
    assert documents(tmp_path / "out") == expected


@pytest.mark.parametrize("when", ["copied", "complete"])
def test_a_run_that_was_killed_goes_on(when: str, tmp_path: Path, expected: list[list[int]]) -> None:
    """A spool that is not complete begins again with all rows; one that is complete needs no input."""
    out, spool = tmp_path / "out", tmp_path / "out/spool"
    with subprocess.Popen(command("-", "--out", out), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(DATA)
        process.stdin.flush()
        if when == "complete":
            process.stdin.close()
        assert wait_until((spool / "spool.json").exists if when == "complete" else spool.exists)
        process.send_signal(signal.SIGKILL)
    if when == "copied":
        (spool / "00000000.jsonl.zst").write_bytes(b"a file that was written before the kill")
    if when == "copied":
        assert "no rows come from standard input" in prepare("-", "--out", out, code=2)
        assert not spool.exists()
        prepare("-", "--out", out, data=DATA)
    else:
        prepare("-", "--out", out)
    assert documents(out) == expected


def test_an_interrupt_removes_the_copy(tmp_path: Path) -> None:
    """Nothing is left when the command is stopped while it reads."""
    out = tmp_path / "out"
    with subprocess.Popen(command("-", "--out", out), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(DATA)
        process.stdin.flush()
        assert wait_until((out / "spool").exists)
        process.send_signal(signal.SIGINT)
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 130
    assert not out.exists()


def test_a_terminal_is_no_source(tmp_path: Path) -> None:
    """Nobody types a corpus."""
    ours, theirs = pty.openpty()
    before = os.dup(0)
    os.dup2(theirs, 0)
    try:
        done = run("prepare", "-", "-t", SMALL_JSON, "--out", tmp_path / "out", code=2)
    finally:
        os.dup2(before, 0)
        for descriptor in (before, ours, theirs):
            os.close(descriptor)
    assert "no rows come from standard input: it is a terminal" in done.stderr
    assert not (tmp_path / "out").exists()


def test_lines_of_text_are_documents(tmp_path: Path) -> None:
    """Empty lines are none, a line ends with LF or CR and LF, and a line that is not UTF-8 is in quarantine."""
    words = ("-", "--stdin", "text", "--max-bad", "1.0", "--out", tmp_path / "out")
    prepare(*words, data=b"\xef\xbb\xbfone\r\n\ntwo\n\xff\n\rthree\r\r\nlast")
    store = tokenmill.open(tmp_path / "out")
    assert [store.text(number) for number in range(4)] == ["one", "two", "\rthree\r", "last"]
    assert '"row":2' in (tmp_path / "out/quarantine.jsonl").read_text()


@pytest.mark.parametrize(
    ("words", "data", "message"),
    [
        ((), b"hello\n", "the first line of standard input is not a JSON object\n  found        hello\n"),
        ((), b"[1]\n", "Say what it is: --stdin text"),
        (("--stdin", "text"), b"\x1f\x8b\x08rest", "standard input is gzip, not lines of text"),
        ((), b"PAR1rest", "Give the file by its path"),
        ((), b"", "no rows come from standard input"),
        (("--stdin", "csv"), b"", "'csv' is not one of"),
        (("README.md",), DATA, "pipes and files cannot be sources of one run"),
        (("--split", "train"), DATA, "no source has splits"),
    ],
)
def test_other_input_is_refused(words: tuple[str, ...], data: bytes, message: str, tmp_path: Path) -> None:
    """The message says what was found and what to do, and nothing is left."""
    assert message in prepare("-", *words, "--out", tmp_path / "out", data=data, code=2)
    assert not (tmp_path / "out").exists()


LIMITED = """
import resource, sys
from pathlib import Path
from tokenmill.executors.progress import Silent
from tokenmill.pipeline.rows.pipes import stream_of_pipes
from tokenmill.pipeline.rows.spool import spool_rows
from tokenmill.storage import folder_at

folder = folder_at(sys.argv[1])
folder.create()
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (160 << 20), -1))
print(spool_rows(folder, lambda: {None: stream_of_pipes(["-"], None)}, "standard input", Silent()).rows)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit that counts")
def test_a_long_stream_is_copied_in_bounded_memory(tmp_path: Path) -> None:
    """A stream that is larger than the memory that a process may add."""
    block = b"".join(b'{"text": "%d %s"}\n' % (row, b"says more " * 100) for row in range(10_000))
    arguments = [sys.executable, "-c", LIMITED, str(tmp_path / "out")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        for _ in range(18):
            process.stdin.write(block)
        process.stdin.close()
        assert process.stdout is not None
        assert process.stdout.read() == b"180000\n"
