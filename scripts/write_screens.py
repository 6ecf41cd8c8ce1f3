"""Write docs/screens.md: what each command shows on terminals of 80 and 120 columns.

`python scripts/write_screens.py [--check]` runs the commands on a small corpus. With --check nothing is written, and
the exit code is 1 if a screen differs from the page in more than times, speeds and sizes of this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import os
import pty
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "screens.md"
WIDTHS = (80, 120)
# The page shows this directory in place of the temporary one, whose path has as many characters.
DIRECTORY = "/home/ml/books-20000000"
PREFIX = "/tmp/tokenmill-"
SECONDS = 300
# Variables that change what a terminal shows.
NOT_SET = ("SLURM", "NO_COLOR", "FORCE_COLOR", "TTY_")

HEAD = """# Screens

This page shows what each command prints on a terminal of 80 and of 120 columns. `scripts/write_screens.py` writes it
from real runs on a corpus of three small files; a test compares it with the commands as they are.

Results go to stdout, progress and errors to stderr. Here they are mixed, as a terminal shows them, without colors.
"""

# The name of each screen and its command line. A later command uses the files of the earlier ones.
SCREENS = {
    "prepare": "tokenmill prepare corpus --tokenizer small.json --to llmc --to mds --out tokens",
    "prepare, a second time": "tokenmill prepare corpus --tokenizer small.json --to llmc --to mds --out tokens",
    "plan": "tokenmill plan corpus --tokenizer small.json",
    "status": "tokenmill status tokens",
    "export": "tokenmill export tokens --to nanogpt --val 0.05 --shuffle 1337",
    "verify": "tokenmill verify tokens --sample 0.2",
    "finish": "tokenmill finish tokens",
    "identify": "tokenmill identify corpus",
    "inspect": "tokenmill inspect tokens",
    "inspect, one document": "tokenmill inspect tokens --doc 7",
    "inspect, skipped rows": "tokenmill inspect tokens --skipped",
    "locate, from a token": "tokenmill locate tokens/llmc/fineweb_train_000003.bin 1000 --context 10",
    "locate, from a row": "tokenmill locate tokens --source corpus/000.parquet --row 7 --context 10",
    "loader": "tokenmill loader tokens --sequence-tokens 16 --batch-sequences 2 --seconds 0.1",
    "mix": "tokenmill mix recipe.toml",
    "stats": "tokenmill stats tokens --by language",
    "report": "tokenmill report tokens",
    "formats": "tokenmill formats",
    "tokenizers": "tokenmill tokenizers",
    "tokenizers, one": "tokenmill tokenizers small.json",
    "template": "tokenmill template small.json --chat-template chat.jinja",
    "datasets": "tokenmill datasets --tokenizer small.json",
    "bench": "tokenmill bench corpus --tokenizer small.json --workers 1 --seconds 1",
    "doctor": "tokenmill doctor script.py:tokenize --num-proc 2",
    "error: a missing source": "tokenmill prepare corpsu --tokenizer small.json --out new",
    "error: a missing store": "tokenmill status token",
    "error: an unknown tokenizer": "tokenmill prepare corpus --tokenizer gtp2 --out new",
    "error: a wrong option": "tokenmill export tokens --to nanogpt --seed 1337",
    "error: other options": "tokenmill prepare corpus --tokenizer small.json --limit-units 1 --out tokens",
    "erase": "tokenmill erase tokens --rows rows.csv --request 2026-117 --reason opt-out",
}
RECIPE = """grain = 64

[sources]
books = { store = "tokens", repeat = 2 }

[[stages]]
sequence_tokens = 32
batch_sequences = 4
tokens = "300k"
weights = { books = 1 }

[[stages]]
sequence_tokens = 64
batch_sequences = 2
tokens = { books = "all" }
"""
CHAT = """{%- for message in messages %}
{{- message.role + ': ' + message.content + '<|endoftext|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif -%}
"""
COMMAND = "import sys; sys.argv[0] = 'tokenmill'; from tokenmill.cli import main; main()"
SCRIPT = """import threading


class Tokenize:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, row):
        with self.lock:
            return {"length": len(row["text"])}


tokenize = Tokenize()
"""

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CLEAR_LINE = "\r\x1b[K"
# A dumb terminal gets a blank line after each bar.
BAR_ON_A_DUMB_TERMINAL = re.compile("^(.* 100 % .*\n)\n", re.MULTILINE)
# What differs between two runs: figures with a unit, versions, hashes, process numbers, and what follows some labels.
VARIABLE = re.compile(
    r"(?:\d[\d,.]*(?: (?:[kMGT]?B|s|min|h))? to )?"  # the start of a range
    r"\d[\d,.]*\s?(?:[kMGT]?B/s|[kMGT]?i?B\b|[kMG]? ?tok(?:ens)?/s|s\b|min\b|h\b|days\b|core-hours)|[\d.]+%|\d[\d.]*x\b"
    r"|\b\d+\.\d+\.\d+\b|[0-9a-f]{16}\b"
)
LABELS = re.compile(
    r"^ *(limit|noise|reads|workers|memory|disk|time|network|processes|tokens per second)\b.*(?:\n {13,}.*)*",
    re.MULTILINE,
)
# A finished step, and a row of the table of `bench`.
STEPS = re.compile("^(\\S[^\u2501\\n]*?) +\u2501*(?: \u2501)? +100 %.*$", re.MULTILINE)
MEASURED = re.compile(r"^(gigatoken|tiktoken|tokenizers) .*$", re.MULTILINE)
PARTS_OF_A_BAR = re.compile("[\u2500-\u259f]+")


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    screens = {width: dict(all_screens(width)) for width in WIDTHS}
    if not check:
        PAGE.write_text(page(screens))
        return 0
    differences = [line for width in WIDTHS for line in compare(screens[width], width)]
    print("\n".join(differences), end="\n" if differences else "", file=sys.stderr)
    if differences:
        print(f"{PAGE} is out of date: run python scripts/write_screens.py", file=sys.stderr)
    return 1 if differences else 0


def page(screens: dict[int, dict[str, str]]) -> str:
    """The page, with the screens of each command below each other."""
    parts = [HEAD]
    for name in SCREENS:
        parts.append(f"\n## {name}\n")
        parts += [f"\n{width} columns:\n\n```text\n{screens[width][name]}\n```\n" for width in WIDTHS]
    return "".join(parts)


def compare(screens: dict[str, str], width: int) -> Iterator[str]:
    """The lines in which screens differ from the page, and the lines that are too long for a terminal."""
    on_page = read_page(width)
    for name, screen in screens.items():
        before, now = (normal_form(text).splitlines() for text in (on_page.get(name, ""), screen))
        yield from difflib.unified_diff(before, now, f"page: {name}, {width} columns", "now", lineterm="", n=1)


def read_page(width: int) -> dict[str, str]:
    """The screens of this width on the page."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    pattern = re.compile(rf"^{width} columns:\n\n```text\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
    found = ((section.partition("\n")[0], pattern.search(section)) for section in sections)
    return {name: match[1] for name, match in found if match}


def normal_form(screen: str) -> str:
    """A screen without figures that vary, bars, and the number of spaces."""
    screen = STEPS.sub(lambda match: match[1], MEASURED.sub(lambda match: match[1], screen))
    text = LABELS.sub(lambda match: match[1], screen)
    text = PARTS_OF_A_BAR.sub("", VARIABLE.sub("#", text))
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def all_screens(width: int) -> Iterator[tuple[str, str]]:
    """Run every command in a new directory. Yield the name of each screen, and the screen."""
    with corpus() as directory:
        for name, command in SCREENS.items():
            yield name, f"$ {command}\n{run(command, directory, width)}"


@contextlib.contextmanager
def corpus() -> Iterator[str]:
    """A temporary directory with the files that the commands use."""
    directory = tempfile.mkdtemp(prefix=os.path.basename(PREFIX), dir=os.path.dirname(PREFIX))
    try:
        write_files(Path(directory))
        yield directory
    finally:
        shutil.rmtree(directory)


def write_files(directory: Path) -> None:
    """Write three Parquet files of made-up text, a tokenizer and a script."""
    choose = random.Random(7)
    words = ["a", "document", "is", "text", "and", "a", "unit", "of", "work", "done", "once", "is", "done"]
    (directory / "corpus").mkdir()
    for number in range(3):
        texts: list[str | None] = [" ".join(choose.choices(words, k=choose.randint(5, 300))) for _ in range(400)]
        texts[5 + number] = None
        table = pa.table({"text": texts, "language": choose.choices(["en", "fr"], [3, 1], k=len(texts))})
        pq.write_table(table, directory / f"corpus/{number:03}.parquet", row_group_size=100)
    shutil.copy(ROOT / "tests/data/small.json", directory)
    (directory / "rows.csv").write_text("source,row\ncorpus/000.parquet,7\ncorpus/001.parquet,3\n")
    (directory / "recipe.toml").write_text(RECIPE)
    (directory / "script.py").write_text(SCRIPT)
    (directory / "chat.jinja").write_text(CHAT)


def run(command: str, directory: str, width: int) -> str:
    """Run a command on a terminal of this width. Return what the terminal shows at the end."""
    terminal, child_end = pty.openpty()
    fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_SET)}
    # On a dumb terminal, rich prints each bar once, when it is done.
    environment |= {
        "TERM": "dumb",
        "COLUMNS": str(width),
        "LINES": "50",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": f"{directory}/hub",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *shlex.split(command)[1:]],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=child_end,
        stderr=child_end,
    )
    os.close(child_end)
    data = b""
    with contextlib.suppress(OSError):  # EIO at the end
        while chunk := os.read(terminal, 1 << 16):
            data += chunk
    os.close(terminal)
    process.wait(SECONDS)
    return shown(data.decode()).replace(directory, DIRECTORY)


def shown(output: str) -> str:
    """The lines that stay on a terminal."""
    lines = [line.rpartition(CLEAR_LINE)[2] for line in output.replace("\r\n", "\n").split("\n")]
    text = "\n".join(ESCAPE.sub("", line).rstrip() for line in lines).strip("\n")
    return BAR_ON_A_DUMB_TERMINAL.sub(r"\1", text)


if __name__ == "__main__":
    sys.exit(main())
