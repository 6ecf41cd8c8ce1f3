"""The structure of the package: unique class names, no import cycles, the packages that README.md lists."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.conftest import SLOW_FILES
from tests.support import ROOT, TESTS

PACKAGE = ROOT / "src" / "tokenmill"


def modules() -> dict[str, Path]:
    """Every file of the package by its dotted name."""
    paths = {path.relative_to(PACKAGE.parent).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    return {".".join(part for part in name.parts if part != "__init__"): path for name, path in paths.items()}


def imported(name: str, path: Path, known: set[str]) -> set[str]:
    """The modules that a file imports at its top level, imports for type checking included."""
    targets: set[str] = set()
    for node in top_level(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                targets.add(submodule if submodule in known else node.module)
    return (targets & known) - {name}


def top_level(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a file that are not inside a function."""
    nodes = []
    for node in ast.iter_child_nodes(tree):
        nodes.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            nodes += top_level(node)
    return nodes


def test_class_names_are_unique() -> None:
    """No two classes of the package have the same name."""
    found = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_files_do_not_import_each_other_in_a_cycle() -> None:
    """The files of the package can be sorted so that each imports only files before it."""
    files = modules()
    graph = {name: imported(name, path, set(files)) for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = " -> ".join(reversed(error.args[1]))
        raise AssertionError(f"import cycle: {cycle}") from None


def test_imports_are_seen() -> None:
    """The graph that the cycle test sorts has an edge where a file imports another."""
    files = modules()
    name = "tokenmill.pipeline.unit.tokenize"
    assert "tokenmill.pipeline.unit.part_builder" in imported(name, files[name], set(files))


def test_readme_lists_the_packages() -> None:
    """The tree in README.md names exactly the packages and the shared modules at the top of tokenmill."""
    tree = re.search(r"^    src/tokenmill/\n((?:      .*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert tree is not None
    listed = re.findall(r"^      (\w+)/ ", tree[1], re.MULTILINE) + re.findall(r"\b(\w+\.py)\b", tree[1])
    packages = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    shared = [path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    assert sorted(listed) == sorted(packages + shared)


def test_the_list_of_slow_files_has_no_old_names() -> None:
    """Every file that tests/conftest.py lists exists."""
    assert [name for name in sorted(SLOW_FILES) if not (TESTS / name).is_file()] == []


# The modules that write variables of the environment, and why.
WRITE_VARIABLES = {
    "system.environment",  # workers, which receive the variables of the process that they work for
    "diagnosis.examining.inside.loading",  # a process that the doctor starts to examine a function
    "cli.options",  # the process of a command that has not loaded numpy
    "tokenization.engines.huggingface",  # while a batch is encoded
    "tokenization.engines.gigatoken",  # workers
    "executors.ray.cluster",  # while Ray is imported and started
}


def test_few_modules_write_variables() -> None:
    """The process may be a notebook or a trainer, whose other libraries read the same variables."""
    changed = r"os\.environ(\[[^\]]+\] *=[^=]| *\|=|\.(update|setdefault|pop|clear|popitem)\()"
    writes = re.compile(rf"{changed}|del os\.environ|os\.(putenv|unsetenv)\(")
    found = {name.removeprefix("tokenmill.") for name, path in modules().items() if writes.search(path.read_text())}
    assert found == WRITE_VARIABLES
