"""docs/messages.md shows what the commands print."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import ROOT, command

CONSOLE = re.compile(r"^```console\n\$ tokenmill (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = (ROOT / "docs" / "messages.md").read_text()
SHOWN = dict(CONSOLE.findall(PAGE))


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON Lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.data
def test_the_page_has_the_messages_of_the_commands(
    tmp_path: Path, test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command of the page ends with the error that the page shows. /data stands for the directory."""
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    command.run("prepare", "corpus.jsonl", "-t", "gpt2", "--to", "nanogpt", "--val", "0.5", "--out", "store")
    printed = {arguments: error_of(arguments, tmp_path) for arguments in SHOWN}
    assert printed == SHOWN


def write_sources(directory: Path) -> None:
    """Write the files that the commands of the page read."""
    write_lines(directory / "corpus.jsonl", [{"text": f"Document {number}."} for number in range(100)])
    write_lines(directory / "articles.jsonl", [{"content": f"Article {number}."} for number in range(100)])
    write_lines(directory / "renamed.jsonl", [{"text" if number < 50 else "body": "Words."} for number in range(100)])
    write_lines(directory / "chat.jsonl", [{"messages": [{"role": "user", "content": "Hello"}]}] * 10)
    (directory / "broken.jsonl").write_text('{"text": "good"}\n{"text": "bad\n' * 50)
    (directory / "dataset").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"text": ["a b c"] * 10}), directory / "dataset" / f"{split}-00000-of-00001.parquet")


def error_of(arguments: str, directory: Path) -> str:
    """The error with which a command ends. A store that it began is removed."""
    unset = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"))
    done = command.run(*shlex.split(arguments), code=None, **unset, AWS_EC2_METADATA_DISABLED="true")
    assert done.returncode
    shutil.rmtree(directory / "tokens", ignore_errors=True)
    return done.stderr[done.stderr.index("error: ") :].replace(str(directory), "/data")


def test_the_page_has_the_errors_that_people_meet_most_often() -> None:
    """The page shows fifteen messages."""
    assert len(re.findall("^### ", PAGE, re.MULTILINE)) == 15
