"""Count the code of a tree: `python scripts/count_code.py [SRC] [--repeated]`.

Prints the code lines and files of each package, the folders with most files, the classes with most methods, and the
class names that exist twice. A code line is a line that is not blank, not a comment, not part of a docstring and not
part of an import. The methods of a class are its own and those that it inherits from classes of the tree.
With `--repeated`, prints the pairs of places that share six or more equal code lines instead.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_METHODS = 18
SHOWN_FOLDERS = 5
MIN_REPEATED = 6

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Class:
    """A class with the names of its bases and methods."""

    path: str
    name: str
    bases: tuple[str, ...]
    methods: frozenset[str]


def main() -> None:
    """Print the counts of a tree."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("src", type=Path, nargs="?", default=ROOT / "src" / "tokenmill")
    parser.add_argument("--repeated", action="store_true", help="print repeated code")
    options = parser.parse_args()
    files = {path: path.read_text(encoding="utf-8") for path in sorted(options.src.rglob("*.py"))}
    if options.repeated:
        pairs = list(repeated({path.relative_to(options.src): code_lines(text) for path, text in files.items()}))
        print(*pairs, f"{len(pairs)} pairs", sep="\n")
        return
    print_counts(options.src, files)


def print_counts(src: Path, files: dict[Path, str]) -> None:
    """Print lines and files by package, large folders, large classes and repeated class names."""
    lines: Counter[str] = Counter()
    count: Counter[str] = Counter()
    folders = Counter(str(path.parent.relative_to(src)) for path in files if path.name != "__init__.py")
    for path, text in files.items():
        package = path.relative_to(src).parts[0].removesuffix(".py")
        lines[package] += len(code_lines(text))
        count[package] += 1
    for package, number in sorted(lines.items(), key=lambda item: -item[1]):
        print(f"{number:8,} lines {count[package]:5} files  {package}")
    print(f"{lines.total():8,} lines {count.total():5} files")
    for folder, number in folders.most_common(SHOWN_FOLDERS):
        print(f"{number:8} files in {folder}")
    classes = [each for path, text in files.items() for each in classes_of(str(path.relative_to(src)), text)]
    print_classes(classes)


def print_classes(classes: list[Class]) -> None:
    """Print the classes with many methods, and the public names that several classes have."""
    by_name = {each.name: each for each in classes}
    sizes = {each: len(all_methods(each, by_name)) for each in classes}
    for each, number in sorted(sizes.items(), key=lambda item: -item[1]):
        if number > MAX_METHODS:
            print(f"{number:8} methods: {each.name} ({each.path})")
    places = defaultdict(list)
    for each in classes:
        if not each.name.startswith("_"):
            places[each.name].append(each.path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            print(f"{len(paths):8} classes called {name}: {', '.join(paths)}")


def code_lines(text: str) -> list[tuple[int, str]]:
    """The code lines of a file with their numbers."""
    tree, ignored = ast.parse(text), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, IMPORTS) or (isinstance(node, ast.Expr) and is_text(node.value)):
            ignored.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), 1)
    return [(number, line) for number, line in lines if line and line[0] != "#" and number not in ignored]


def is_text(node: ast.expr) -> bool:
    """Whether an expression is a string, which is a docstring if it stands alone."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def classes_of(path: str, text: str) -> Iterator[Class]:
    """The classes of a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
            yield Class(
                path, node.name, bases, frozenset(each.name for each in node.body if isinstance(each, FUNCTIONS))
            )


def all_methods(each: Class, by_name: dict[str, Class]) -> set[str]:
    """The methods of a class, and those of its bases in this tree."""
    inherited = (all_methods(by_name[base], by_name) for base in each.bases if base in by_name and base != each.name)
    return set(each.methods).union(*inherited)


def repeated(files: dict[Path, list[tuple[int, str]]]) -> Iterator[str]:
    """The pairs of places that share MIN_REPEATED or more code lines, each pair once with its whole length."""
    places = defaultdict(list)
    for path, lines in files.items():
        texts = [line for _, line in lines]
        for index in range(len(texts) - MIN_REPEATED + 1):
            places[tuple(texts[index : index + MIN_REPEATED])].append((path, index))
    pairs = {(first, second) for found in places.values() for first in found for second in found if first < second}
    for (path, index), (other, start) in sorted(pairs):
        if ((path, index - 1), (other, start - 1)) not in pairs:
            length = MIN_REPEATED
            while ((path, index + length - MIN_REPEATED + 1), (other, start + length - MIN_REPEATED + 1)) in pairs:
                length += 1
            yield f"{length:4} lines: {path}:{files[path][index][0]} and {other}:{files[other][start][0]}"


if __name__ == "__main__":
    main()
