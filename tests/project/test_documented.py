"""Nothing is undocumented: commands, options, public Python names and pages. A new one without words fails here."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import click
import pytest

import tokenmill
from tests.support import ROOT
from tokenmill import results
from tokenmill.cli import cli

DOCS = ROOT / "docs"
GENERATED = {DOCS / "commands.md", DOCS / "api.md", DOCS / "screens.md"}
# Decisions tell of the past, and benchmarks of how something was measured: neither says how something is used.
NO_GUIDES = {*GENERATED, *(DOCS / "decisions").glob("*.md"), DOCS / "benchmarks.md"}
GUIDES = [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page not in NO_GUIDES)]
EXAMPLES = {
    "clusters/slurm.md": ["slurm/prepare.sbatch", "slurm/export.sbatch"],
    "clusters/kubernetes.md": ["kubernetes/job.yaml"],
}
COMMANDS = sorted(cli.commands)


def options(name: str) -> list[click.Option]:
    """The options of a command."""
    return [option for option in cli.commands[name].params if isinstance(option, click.Option)]


def long_names(name: str) -> list[str]:
    """The options of a command by their long names."""
    return [max(option.opts, key=len) for option in options(name)]


def mentions(text: str, word: str) -> bool:
    """Whether a text has a word that is an option or a command, and not only a longer one that begins like it."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def section(page: Path, heading: str) -> str:
    """What a page has below a heading, up to the next one of the same rank."""
    rank = heading.partition(" ")[0]
    _, _, after = page.read_text().partition(f"\n{heading}\n")
    return re.split(rf"^{rank} ", after, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself(name: str) -> None:
    """It has a help, each of its options has one, and what an argument stands for is said."""
    command = cli.commands[name]
    assert command.help
    assert [option.opts for option in options(name) if not (option.help or "").strip()] == []
    head = (DOCS / "commands.md").read_text().partition("\n## ")[0]
    for argument in command.params:
        if isinstance(argument, click.Argument):
            words = re.findall(r"[A-Z]+\d?", argument.make_metavar(click.Context(command)))
            assert [word for word in words if word not in f"{head}{command.help}{command.epilog}"] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_ends_its_help_with_an_example(name: str) -> None:
    """The epilogue is `Example:` and calls of this very command, with options that it has."""
    lines = (cli.commands[name].epilog or "").replace("\b", "").split("\n")
    first, *examples = [line.strip() for line in lines if line.strip()]
    assert first == "Example:"
    assert examples
    known = {opt for option in options(name) for opt in option.opts}
    for words in map(shlex.split, examples):
        own = words[: words.index("--")] if "--" in words else words
        assert words[:2] == ["tokenmill", name]
        assert {word for word in own if word.startswith("-")} <= known


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_in_the_reference(name: str) -> None:
    """docs/commands.md has its section, with a row for each of its options."""
    found = section(DOCS / "commands.md", f"## tokenmill {name}")
    rows = [line for line in found.splitlines() if line.startswith("| `-")]
    named = {word for row in rows for word in re.findall(r"`(-[^`]*)`", row.split(" | ")[0])}
    assert {opt for option in options(name) for opt in option.opts} <= named


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_options_are_told_of_by_hand(name: str) -> None:
    """Some page that a person has written shows the command, and one that does so tells of each option.

    What three commands or more share, such as --json, may be told of anywhere. The options of `plan` are those of
    `prepare`.
    """
    pages = [page.read_text() for page in GUIDES]
    own = [page for page in pages if mentions(page, f"tokenmill {name}")]
    assert own
    own += [page for page in pages if name == "plan" and mentions(page, "tokenmill prepare")]
    for option in long_names(name):
        shared = sum(option in long_names(other) for other in COMMANDS) >= 3
        assert any(mentions(page, option) for page in (pages if shared else own)), option


@pytest.mark.parametrize("name", tokenmill.__all__)
def test_a_public_name_is_in_the_reference(name: str) -> None:
    """It has a docstring, and docs/api.md has it, with each of its parameters or public members."""
    value = getattr(tokenmill, name)
    page = DOCS / "api.md"
    assert inspect.getdoc(value)
    if inspect.isfunction(value):
        found = section(page, f"### tokenmill.{name}")
        assert [word for word in inspect.signature(value).parameters if f"| `{word}` |" not in found] == []
    elif inspect.ismodule(value):
        assert section(page, f"## tokenmill.{name}")
    elif issubclass(value, Exception):
        kinds = {value.__name__, *(kind.__name__ for kind in value.__subclasses__())}
        assert [kind for kind in kinds if kind not in section(page, "## Errors")] == []
    else:
        found = section(page, f"## tokenmill.{name}")
        members = [member for member in vars(value) if not member.startswith("_")]
        assert [member for member in members if f"\n### {member}\n" not in found] == []


def test_every_returned_record_can_be_imported() -> None:
    """tokenmill.results has exactly the classes that docs/api.md describes."""
    described = re.findall(r"^### (\w+)$", section(DOCS / "api.md", "## tokenmill.results"), re.MULTILINE)
    assert sorted(described) == [name for name, record in sorted(vars(results).items()) if inspect.isclass(record)]


def test_every_page_is_in_the_navigation_once() -> None:
    """mkdocs.yml lists each page of docs but the single decisions, and the index of decisions lists those."""
    listed = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    decisions = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "decisions/index.md").read_text())
    listed += [f"decisions/{name}" for name in decisions]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_every_page_can_be_reached_by_reading() -> None:
    """From the home page, each page can be come to by following links, without the navigation."""
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        waiting += [(page.parent / path).resolve() for path in re.findall(r"\]\(([\w./-]+\.md)", page.read_text())]
    assert {page for page in DOCS.rglob("*.md") if page not in reached} == set()


@pytest.mark.parametrize(("page", "file"), [(page, file) for page, files in EXAMPLES.items() for file in files])
def test_pages_show_the_examples_as_they_are(page: str, file: str) -> None:
    """What a page shows of a file in examples is the file."""
    assert (ROOT / "examples" / file).read_text() in (DOCS / page).read_text()
