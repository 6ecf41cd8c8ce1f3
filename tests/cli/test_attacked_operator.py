"""What an operator sees when something goes wrong: exit codes, records of failures, streams, limits, disks."""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import http.server
import json
import os
import pty
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support import command, dying, poison
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.killing import events, part_files, wait_until
from tests.support.soaking import disks
from tokenmill import errors
from tokenmill.errors import CorruptStore, StorageError, StoreError, TokenizerError, UsageError
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import Cause, Died, ExitReport, Failed, Worker
from tokenmill.pipeline.unit.messages import run_failed
from tokenmill.store.heartbeats import KILLED, REMOVE_CAUSE, RUN_AGAIN, EndRecord, next_step
from tokenmill.system import machine

TOKENS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--engine", "tiktoken", "--workers", "1")
COMMAND = (sys.executable, "-m", "tokenmill")
SOURCE = Path(tokenmill.__file__).parent
needs_disks = pytest.mark.skipif(not disks.available(), reason="no file system may be mounted here")


def below(shell: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command below a shell, which sets limits and redirects streams."""
    words = ["bash", "-c", shell, "bash", *COMMAND, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def status(store: Path) -> dict[str, Any]:
    """What `status --json` prints."""
    found: dict[str, Any] = json.loads(command.run("status", store, "--json").stdout)
    return found


def big_parquet(folder: Path, documents: int) -> str:
    """Documents of 10 kB that have little in common, so that no dictionary makes the file small."""
    texts = [" ".join(f"{number * each:x}" for each in range(1, 1800)) for number in range(10**9, 10**9 + documents)]
    return write_parquet(folder / "big.parquet", texts, row_group_size=5)


# exit codes


def fail(item: str) -> None:
    """Fail as a worker may."""
    if item == "full":
        raise StoreError("cannot write a part") from OSError(errno.ENOSPC, "No space left on device")
    raise {
        "network": StorageError("the server does not answer"),
        "refused": StorageError("the server does not let us in", exit_code=errors.FAILED),
        "corrupt": CorruptStore("a part is damaged"),
        "bug": ValueError("a mistake"),
        "io": OSError(errno.EIO, "Input/output error"),
    }[item]


CODES = {"full": 75, "network": 75, "refused": 1, "corrupt": 3, "bug": 1, "io": 75}


@pytest.fixture(scope="module")
def failures() -> dict[str, Failed[str]]:
    """The failures of a worker, as they come back from its process."""
    with LocalExecutor() as executor:
        outcomes = list(executor.start(1).run(fail, list(CODES)))
    return {outcome.item: outcome for outcome in outcomes if isinstance(outcome, Failed)}


def test_an_exit_code_crosses_the_border_of_a_process(failures: dict[str, Failed[str]]) -> None:
    """A failure of a worker has the exit code of its error, also when the error is raised again."""
    assert {item: failure.exit_code for item, failure in failures.items()} == CODES
    assert failures["full"].error().exit_code == 75
    assert failures["refused"].error().exit_code == 1


@pytest.mark.parametrize(
    ("items", "code"),
    [
        (["full", "network"], 75),
        (["full", "bug"], 1),
        (["corrupt", "network"], 3),
        (["corrupt", "bug"], 1),
    ],
)
def test_a_run_may_pass_only_if_every_failure_may(
    failures: dict[str, Failed[str]], items: list[str], code: int
) -> None:
    """Many failures give 75 if all of them may pass, and else the code of those that last, if they agree."""
    assert work_failed([failures[item] for item in items], str).exit_code == code


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ExitReport(-signal.SIGKILL, Cause.KILLED), 75),
        (ExitReport(0, Cause.NODE_LOST), 75),
        (ExitReport(-signal.SIGKILL, Cause.MEMORY, by_kernel=True), 75),
        (ExitReport(-signal.SIGSEGV, Cause.CRASH), 1),
    ],
)
def test_a_worker_that_was_killed_may_live_next_time(end: ExitReport, code: int) -> None:
    """A death by another hand gives 75, a crash 1."""
    death = Died("item", end, Worker(1, 0), 0.0, 1, True, "", b"", 1)
    assert work_failed([death], str).exit_code == code


def test_what_helps_after_too_many_bad_documents(tmp_path: Path) -> None:
    """`status` and the commands that need a complete store say why it is not, and what finishes it; and it does."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    source.write_text("".join('{"text": "one two"}\n' if row % 10 else '{"text": 5}\n' for row in range(50)))
    prepare = ("prepare", source, "--tokenizer", SMALL_TIKTOKEN, "--eot", "none", "--workers", "1", "--out", out)
    why = "5 documents of 50 cannot be tokenized: 10.00%, more than --max-bad 0.1%"
    helps = "or run the same prepare with a higher limit: --max-bad 20%"
    failed = command.run(*prepare, code=1).stderr
    assert helps in failed
    assert "not done" not in failed
    state = json.loads(command.run("status", out, "--json").stdout)
    assert (state["state"], state["units_done"], state["end"]["headline"]) == ("stopped", 1, why)
    assert [helps in line for line in state["next"]] == [True]
    shown = command.run("status", out).stdout
    assert helps in shown
    assert "again to finish it" not in shown
    for words in (("stats", out), ("export", out, "--to", "llmc"), ("inspect", out), ("verify", out)):
        refused = command.run(*words, code=1).stderr
        assert why in refused
        assert helps in refused
        assert "again to finish it" not in refused
    with pytest.raises(errors.IncompleteStore, match='higher limit: max_bad="20%"'):
        tokenmill.open(str(out))
    command.run(*prepare, "--max-bad", "20%")
    assert "next" not in command.run("status", out).stdout


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (None, RUN_AGAIN),
        (KILLED, RUN_AGAIN),
        (EndRecord("interrupted", exit_code=errors.INTERRUPTED), RUN_AGAIN),
        (EndRecord("failed", exit_code=errors.TRY_AGAIN, advice=("Free some space.",)), RUN_AGAIN),
        (EndRecord("failed", exit_code=errors.FAILED), REMOVE_CAUSE),
        (EndRecord("failed", exit_code=errors.FAILED, advice=("Repair it.",)), "Repair it."),
    ],
)
def test_the_next_step_follows_from_the_end(end: EndRecord | None, expected: str) -> None:
    """The same command finishes what was interrupted, killed, or failed for now, and nothing else."""
    assert next_step(end) == (expected,)


def test_a_run_that_failed_for_now_says_so() -> None:
    """The error of a run takes the exit code of its units, whatever their number."""
    assert run_failed([], 0, 1, "log").exit_code == 75
    assert UsageError("wrong").exit_code == 2
    assert TokenizerError("wrong").exit_code == 1


@contextlib.contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """An object store that gives one answer to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.mark.parametrize(("answer", "code"), [("ExpiredToken", 75), ("AccessDenied", 1)])
def test_credentials_that_expired_can_be_renewed(answer: str, code: int) -> None:
    """Expired credentials end a command with 75, those that do not allow it with 1."""
    body = f"<Error><Code>{answer}</Code><Message>No.</Message></Error>"
    with answering(400 if code == 75 else 403, body) as endpoint:
        command.run("status", "s3://bucket/run", "--endpoint", endpoint, code=code, **KEYS)


def test_a_server_that_does_not_answer_may_answer_later() -> None:
    """An address where nothing listens ends a command with 75."""
    command.run("status", "s3://bucket/run", "--endpoint", "http://127.0.0.1:9", code=75, **KEYS)


@needs_disks
def test_a_full_disk_is_a_failure_for_now(tmp_path: Path) -> None:
    """A disk without room ends a command with 75, and the log or the last pulse keeps the reason for `status`."""
    with disks.small_disk(tmp_path / "disk", 60 << 10) as disk:
        out = tmp_path / "disk" / "store"
        big = big_parquet(tmp_path, 40)
        done = command.process("prepare", big, *TOKENS, "--out", out, "--force", "-q", code=75)
        assert "No space left on device" in done.stderr
        disk.resize(disks.AMPLE_BYTES)
        state = status(out)
        assert (state["state"], state["end"]["outcome"], state["end"]["exit_code"]) == ("stopped", "failed", 75)


# records of failures


def test_a_failure_is_a_record_with_json(tmp_path: Path) -> None:
    """With --json a failure prints its kind, headline, details and exit code on stdout, and its message on stderr."""
    done = command.run("prepare", tmp_path / "none.jsonl", *TOKENS, "--out", tmp_path / "out", "--json", "-q", code=2)
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"kind", "headline", "details", "exit_code"}
    assert (error["kind"], error["exit_code"]) == ("SourceError", 2)
    assert "no such file or directory" in error["headline"]
    assert f"error: {error['headline']}" in done.stderr


def test_wrong_options_are_a_record_with_json(tmp_path: Path, parquet: str) -> None:
    """A mistake in the options is told in the same form, whether click finds it or the library."""
    for options in (("--nonsense",), ("--memory", "lots")):
        done = command.run("prepare", parquet, *TOKENS, "--out", tmp_path / "out", "--json", *options, code=2)
        error = json.loads(done.stdout)["error"]
        assert (error["kind"], error["exit_code"]) == ("UsageError", 2)


def test_what_follows_two_dashes_is_not_ours(tmp_path: Path) -> None:
    """The --json of a command that is watched does not make the doctor print a record."""
    done = command.run("doctor", "--", tmp_path / "no-such-command", "--json", code=None)
    assert done.returncode != 0
    assert done.stdout == ""


def test_the_log_ends_with_how_the_run_ended(tmp_path: Path, parquet: str) -> None:
    """The last event of a log names the outcome, the error and the exit code; `status` shows it for a stopped run."""
    out = tmp_path / "store"
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\nnot json\n')
    command.run("prepare", bad, *TOKENS, "--out", out, "-q", code=1)
    last = events(out)[-1]
    assert (last["event"], last["outcome"], last["kind"], last["exit_code"]) == ("end", "failed", "RunFailed", 1)
    assert status(out)["end"] == {name: last[name] for name in ("outcome", "kind", "headline", "exit_code", "advice")}
    assert f"stopped      failed: {last['headline']} (exit code 1)" in command.run("status", out).stdout
    command.run("prepare", bad, *TOKENS, "--out", out, "--max-bad", "90%", "-q")
    assert (events(out)[-1]["event"], events(out)[-1]["outcome"]) == ("end", "complete")
    assert status(out)["end"] is None


def slow_run(tmp_path: Path, *options: str) -> tuple[subprocess.Popen[str], Path]:
    """A run that has begun, and does not end: its last document hangs."""
    out = tmp_path / "slow"
    source = write_parquet(tmp_path / "slow.parquet", ["some text", "POISON:HANG"], row_group_size=1)
    words = [*COMMAND, "prepare", source, *TOKENS, "--out", str(out), "--unit-bytes", "1", "--force", *options]
    environment = poison.environment(tmp_path / "site")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert wait_until(lambda: process.poll() is not None or bool(part_files(out)))
    assert process.poll() is None, process.communicate()
    return process, out


class Interrupted:
    """An attribute that is interrupted while its class is created."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_interrupt_while_a_class_is_created_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    """Python 3.11 raises RuntimeError from a KeyboardInterrupt in `__set_name__`: the exit code is 130 all the same."""

    def create(_directory: str) -> None:
        try:
            type("Created", (), {"attribute": Interrupted()})
        except BaseException as error:
            if is_wrapped:  # as libraries do
                raise ImportError("cannot import") from error
            raise

    monkeypatch.setattr("tokenmill.api.status.StatusWatch", create)
    done = command.run("status", tmp_path, code=130)
    assert "interrupted: committed work is kept" in done.stderr
    assert "bug in tokenmill" not in done.stderr


def test_an_interrupt_while_modules_are_loaded_has_no_traceback() -> None:
    """Ctrl-C in the first third of a second."""
    load = "class Finder:\n    def find_spec(name, *_):\n        if name == 'tokenmill.cli': raise KeyboardInterrupt"
    code = f"import sys\n{load}\nsys.meta_path.insert(0, Finder)\nfrom tokenmill.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_an_interrupted_run_says_so_afterwards(tmp_path: Path) -> None:
    """A signal leaves an event in the log, a record on stdout with --json, and exit code 130."""
    process, out = slow_run(tmp_path, "--json", "-q")
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["exit_code"] == 130
    assert (events(out)[-1]["event"], events(out)[-1]["outcome"]) == ("end", "interrupted")
    assert status(out)["end"]["outcome"] == "interrupted"


def test_a_killed_run_is_known_as_one(tmp_path: Path) -> None:
    """A run whose process was killed has no end in its log, and `status` says that it was killed."""
    process, out = slow_run(tmp_path, "-q")
    process.kill()
    process.communicate(timeout=300)
    assert events(out)[-1]["event"] != "end"
    state = status(out)
    assert (state["state"], state["end"]["outcome"], state["end"]["exit_code"]) == ("stopped", "killed", None)


# room for what will be written


@needs_disks
def test_a_disk_that_is_too_small_is_refused_first(tmp_path: Path) -> None:
    """Before the first unit a run compares the free space with its estimate; --force skips that."""
    big = big_parquet(tmp_path, 200)
    with disks.small_disk(tmp_path / "disk", 600 << 10):
        out = tmp_path / "disk" / "store"
        done = command.process("prepare", big, *TOKENS, "--out", out, "--json", code=75)
        error = json.loads(done.stdout)["error"]
        assert error["headline"] == "the disk is too small"
        assert [line.split()[0] for line in error["details"][:3]] == ["at", "free", "needed"]
        assert str(out) in error["details"][0]
        assert list((out / "parts").iterdir()) == []
        assert status(out)["end"]["headline"] == "the disk is too small"
        forced = command.process("prepare", big, *TOKENS, "--out", out, "--force", code=None)
        assert "the disk is too small" not in forced.stderr
        assert any((out / "parts").iterdir()) or "No space left on device" in forced.stderr


@needs_disks
def test_a_document_that_hangs_does_not_stop_the_look_at_the_disk(tmp_path: Path) -> None:
    """The sample that is encoded to estimate the tokens is given up when a document of it hangs."""
    texts = ["POISON:HANG here"] + [f"document {row} " + "says little " * 400 for row in range(300)]
    source = write_parquet(tmp_path / "in" / "a.parquet", texts, row_group_size=50)
    environment = poison.environment(tmp_path / "site")
    with disks.small_disk(tmp_path / "disk", 600 << 10):
        words = ("tokenmill", "prepare", source, "--tokenizer", SMALL_JSON, "--out", tmp_path / "disk" / "store")
        ended = dying.run(*words, "--document-timeout", "2", environment=environment, seconds=300)
    assert ended.exit_code == 75, ended.output
    assert "the disk is too small" in ended.output


@needs_disks
def test_exports_count_before_the_first_unit(tmp_path: Path) -> None:
    """A disk with room for the store, and none for the export that was asked for, is refused before the first unit."""
    big = big_parquet(tmp_path, 100)
    alone = command.run("prepare", big, *TOKENS, "--out", tmp_path / "store", "--json", "-q")
    needed = 2 * json.loads(alone.stdout)["tokens"]
    with disks.small_disk(tmp_path / "disk", int(1.6 * needed)):
        out = tmp_path / "disk" / "store"
        done = command.process("prepare", big, *TOKENS, "--out", out, "--to", "nanogpt", "-q", code=75)
        assert "for --to" in done.stderr
        assert list((out / "parts").iterdir()) == []


@needs_disks
def test_an_export_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """`export` refuses a disk that does not hold what it is about to write; --force writes as far as it goes."""
    big = big_parquet(tmp_path, 100)
    command.run("prepare", big, *TOKENS, "--out", tmp_path / "store", "-q")
    with disks.small_disk(tmp_path / "disk", 300 << 10):
        export = ("export", tmp_path / "store", "--to", "nanogpt", "--out", tmp_path / "disk" / "out", "-q")
        refused, forced = command.process(*export, code=75), command.process(*export, "--force", code=75)
    assert "the disk is too small" in refused.stderr
    assert "No space left on device" in forced.stderr


def test_a_quota_counts_where_it_is_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the quotas of user and group the one that leaves less is the free space; soft limits count, too."""
    disk = machine.free_disk_bytes(str(tmp_path))
    for quotas, left in (
        ([(8192, 0, 3 << 20), (0, 0, 0)], 5 << 20),
        ([(8192, 4096, 3 << 20), (0, 4096, 3 << 20)], 1 << 20),
        ([(8192, 0, 9 << 20), (0, 0, 0)], 0),
    ):
        monkeypatch.setattr(machine, "_quota", lambda _path, kind, _number, quotas=quotas: quotas[kind])
        assert machine.free_disk_bytes(str(tmp_path / "not" / "there")) == left < disk


QUOTA = "size=64m,usrquota,usrquota_block_hardlimit=8m"


def test_a_quota_is_free_space(tmp_path: Path) -> None:
    """The free space of a disk is what the quota of the user leaves, if that is less."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", QUOTA, "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system with quotas may be mounted here")
    try:
        disk.chmod(0o777)
        code = (
            f"import os, sys; sys.path[:0] = {sys.path!r}\n"
            "import tokenmill.system.machine as machine\n"
            f"os.setgid(12345); os.setuid(12345); path = {str(disk)!r}\n"
            "print(machine.free_disk_bytes(path))\n"
            "open(path + '/a', 'wb').write(bytes(3 << 20)); print(machine.free_disk_bytes(path))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
    assert [int(line) >> 20 for line in done.stdout.split()] == [8, 5]
    assert machine.free_disk_bytes(str(tmp_path)) > 0


@pytest.mark.processes
def test_memory_for_less_than_one_worker_is_refused(tmp_path: Path, parquet: str) -> None:
    """--memory below what one worker needs is refused with the least that works, not exceeded in silence."""
    done = command.run("prepare", parquet, *TOKENS, "--out", tmp_path / "out", "--memory", "500MB", "-q", code=2)
    assert "less than one worker needs" in done.stderr
    least = re.search(r"needed +(\d+) MB", done.stderr)
    assert least
    enough = f"{int(least[1]) + 1}MB"
    command.run("prepare", parquet, *TOKENS, "--out", tmp_path / "out", "--memory", enough, "-q")


# control characters

EVIL = "evil\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\nerror: nothing is wrong"


def is_harmless(text: str) -> bool:
    """Whether a terminal obeys nothing in a text but line ends and tabs."""
    return all(character.isprintable() or character in "\n\t" for character in text)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_name_reaches_no_terminal_as_it_is(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Control characters of file names are escaped in errors, notes, tables and JSON, and begin no line."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"{EVIL}.csv").write_text("ignored")
    good = write_parquet(folder / f"{EVIL}.parquet", ["some text"] * 5)
    out = tmp_path / f"out {EVIL}"
    run = functools.partial(command.run, code=None)
    done = [
        run("prepare", folder, *TOKENS, "--out", out, *options),
        run("status", out, *options),
        run("inspect", out, "--doc", "0", *options),
        run("locate", out, "3", *options),
        run("stats", out, *options),
        run("prepare", folder / f"{EVIL}.none", *TOKENS, "--out", out, *options),
        run("prepare", f"{good}/{EVIL}", *TOKENS, "--out", tmp_path / "other", *options),
        run("status", f"{EVIL}", f"{EVIL}", *options),
        run("prepare", folder, *TOKENS, "--out", out, "--column", EVIL, "--debug", *options),
    ]
    assert [each.returncode for each in done[:5]] == [0] * 5, done
    for each in done:
        assert is_harmless(each.stdout + each.stderr), each
        assert "\nerror: nothing is wrong" not in each.stdout + each.stderr


def on_terminal(*arguments: str | Path) -> bytes:
    """Run a command whose stderr is a terminal; all that it writes there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError), open(ours, "rb", buffering=0) as stream:
        while data := stream.read(65536):
            written += data
    assert process.wait(60) == 0, written
    return written


def test_a_bar_shows_no_name_as_it_is(tmp_path: Path) -> None:
    """Lines above a progress bar escape the names in them, too."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / f"{EVIL}.csv").write_text("ignored")
    write_parquet(folder / "good.parquet", ["some text"] * 5)
    written = on_terminal("prepare", folder, *TOKENS, "--out", tmp_path / "out")
    assert b"evil\\x1b]0;owned" in written.replace(b"\r\n", b"")
    assert b"\x1b]0;" not in written
    assert b"\x07" not in written
    assert b"\x1b[2J" not in written


PRINTING = {"echo", "secho", "print", "Console", "print_exc", "pager", "echo_via_pager"}


def printing_calls(file: Path) -> list[str]:
    """The calls of a module that print by themselves."""
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    named = [call.id for call in calls if isinstance(call, ast.Name)]
    owned = [(ast.unparse(call.value), call.attr) for call in calls if isinstance(call, ast.Attribute)]
    own = ("terminal", "console", "self._console", "traceback")
    return [name for name in named if name in PRINTING] + [
        f"{owner}.{name}" for owner, name in owned if name in PRINTING and owner not in own
    ]


def test_everything_is_printed_in_one_place() -> None:
    """No module of the commands or of the library prints by itself, past the border that escapes names."""
    rooms = ("cli", "api", "pipeline", "exports", "analysis", "executors")
    modules = [file for room in rooms for file in (SOURCE / room).rglob("*.py")]
    found = {str(file): calls for file in modules if (calls := printing_calls(file))}
    found = {
        file: calls for file, calls in found.items() if not file.endswith(("cli/failures.py", "executors/terminal.py"))
    }
    assert found == {}


# streams


@pytest.mark.parametrize(
    "streams",
    ['"$@" >&-', '"$@" 2>&-', '"$@" <&- >&- 2>&-', '"$@" | head -c 1', '"$@" 2>&1 | head -c 1'],
)
def test_a_stream_that_nothing_reads_costs_no_work(tmp_path: Path, parquet: str, streams: str) -> None:
    """Closed streams, and readers that leave, change neither the store nor the exit code, and there is no traceback."""
    out = tmp_path / "store"
    done = below(f"set -o pipefail; {streams}", "prepare", parquet, *TOKENS, "--out", out)
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr + done.stdout
    assert "This is a bug" not in done.stderr
    assert (out / "manifest.parquet").exists()
    command.run("verify", out, "--all", "-q")


@pytest.mark.parametrize("streams", ['"$@" >&-', '"$@" 2>&-', '"$@" | head -c 0'])
def test_a_closed_stream_keeps_the_exit_code_of_a_failure(tmp_path: Path, streams: str) -> None:
    """A command that fails has its own exit code, whatever became of its streams."""
    done = below(f"set -o pipefail; {streams}", "status", tmp_path / "none")
    assert done.returncode == errors.USAGE, done


def test_a_result_that_could_not_be_written_is_an_error(tmp_path: Path, parquet: str) -> None:
    """A full disk below stdout is told, with 75; below stderr it costs nothing."""
    lost = below('"$@" > /dev/full', "prepare", parquet, *TOKENS, "--out", tmp_path / "a")
    assert (lost.returncode, "This is a bug" in lost.stderr) == (75, False), lost.stderr
    assert "No space left on device" in lost.stderr
    assert below('"$@" 2> /dev/full', "prepare", parquet, *TOKENS, "--out", tmp_path / "b").returncode == 0


# limits


def check_named(done: subprocess.CompletedProcess[str], limit: str, *codes: int) -> None:
    """The command failed, named the limit and what to do, and blamed neither itself nor a person."""
    assert done.returncode in codes, done
    assert limit in done.stderr, done.stderr
    assert "This is a bug" not in done.stderr
    assert "interrupted" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "Raise" in done.stderr


@pytest.mark.parametrize("files", [5, 12])
def test_a_limit_of_open_files_is_named(tmp_path: Path, parquet: str, files: int) -> None:
    """With few open files allowed, the command names the limit."""
    done = below(f'ulimit -n {files}; exec "$@"', "prepare", parquet, *TOKENS, "--out", tmp_path / "out")
    check_named(done, f"{files} files (ulimit -n)", 1)


def test_a_limit_of_open_files_is_named_also_for_many_workers(tmp_path: Path) -> None:
    """A limit that suffices for one worker, and not for those that were asked for, is named when it is met."""
    for number in range(12):
        (tmp_path / f"{number}.jsonl").write_text((json.dumps({"text": "some words " * 100}) + "\n") * 1000)
    done = below('ulimit -n 30; exec "$@"', "prepare", tmp_path, *TOKENS[:-1], "12", "--out", tmp_path / "out")
    check_named(done, "30 files (ulimit -n)", 1)


@pytest.mark.parametrize("kilobytes", [100_000, 500_000])
def test_a_limit_of_addresses_is_named(tmp_path: Path, parquet: str, kilobytes: int) -> None:
    """With little address space allowed, the command names the limit."""
    done = below(f'ulimit -v {kilobytes}; exec "$@"', "prepare", parquet, *TOKENS, "--out", tmp_path / "out")
    check_named(done, "ulimit -v", 1)


@contextlib.contextmanager
def pids_group(limit: int) -> Iterator[Path]:
    """A control group that may hold so many processes; the test is skipped where none can be made."""
    for parent in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = parent / f"tokenmill-test-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        break
    else:
        pytest.skip("no control group with a limit of processes can be made here")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.parametrize("processes", [2, 6])
def test_a_limit_of_processes_is_named(tmp_path: Path, parquet: str, processes: int) -> None:
    """In a control group with few processes the command names the limit, and is not said to be interrupted."""
    with pids_group(processes) as group:
        shell = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        done = below(shell, "prepare", parquet, *TOKENS, "--out", tmp_path / "out")
    check_named(done, f"{processes} processes in the control group (pids.max)", 1)


def test_a_limit_of_processes_is_named_also_for_many_workers(tmp_path: Path) -> None:
    """Workers that the system does not start end the run with the limit, for now."""
    for number in range(12):
        (tmp_path / f"{number}.jsonl").write_text((json.dumps({"text": "some words " * 100}) + "\n") * 1000)
    with pids_group(11) as group:
        shell = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        done = below(shell, "prepare", tmp_path, *TOKENS[:-1], "12", "--out", tmp_path / "out")
    check_named(done, "11 processes in the control group (pids.max)", 75)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, whose processes can be counted")
def test_a_users_limit_of_processes_is_named() -> None:
    """A user who may have few processes is told of ulimit -u."""
    code = (
        f"import os, resource, sys; sys.path[:0] = {sys.path!r}\n"
        "from tokenmill.system import limits\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (3, 3)); os.setgid(12345); os.setuid(12345)\n"
        "try:\n    limits.require_limits()\nexcept limits.LimitReached as error:\n    print(error.exit_code, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "3 processes of this user (ulimit -u)" in done.stdout
    assert done.stdout.startswith("1 ")
