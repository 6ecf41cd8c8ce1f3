"""A `tokenmill` on PATH whose libraries are loaded already, for scripts that call it often.

A cold command takes over a second of a core to load libraries, and its workers as much again. This one is a small
client of a server, which forks a process for each command; the command works there without workers. Its arguments,
directory, environment, streams and exit code are those of the client.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support import ROOT
from tokenmill.executors.forkserver_main import ENVIRONMENT

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    said = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(said).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(said)
    sys.exit(int.from_bytes(server.recv(1) or b"\\x01", "big"))
"""


@contextlib.contextmanager
def warm_command() -> Iterator[Path]:
    """Serve until the end of the context, in which a directory has the command."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        address = f"{directory}/socket"
        command = Path(directory, "tokenmill")
        command.write_text(CLIENT.format(python=sys.executable, address=address))
        command.chmod(0o755)
        words = [sys.executable, "-m", "tests.support.warm_command", address]
        server = stack.enter_context(
            subprocess.Popen(words, cwd=ROOT, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE)
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield Path(directory)


def _serve(address: str) -> None:
    import tokenmill
    from tests.support.inline_executor import InlineExecutor, executors
    from tokenmill.system import machine

    for name in tokenmill.__all__:
        getattr(tokenmill, name)
    with executors(InlineExecutor), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        assert machine.threads() == 1  # else no process may be forked
        print("ready", flush=True)  # noqa: T201
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            client, _ = listener.accept()
            with client:
                if not os.fork():
                    _answer(client)


def _answer(client: socket.socket) -> None:
    """Run a command in a process of its own, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    said = b""
    while len(said) < int.from_bytes(head, "big"):
        said += client.recv(1 << 16)
    arguments, directory, environment = json.loads(said)
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        client.sendall((code % 256 if code >= 0 else 128 - code).to_bytes(1, "big"))
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    client.close()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tokenmill", *arguments]
    from tokenmill.__main__ import main

    main()


if __name__ == "__main__":
    _serve(sys.argv[1])
