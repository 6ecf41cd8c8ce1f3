"""Change the program in small ways, and count how many of the changes the tests notice.

    python -m scripts.mutate draw --seed 35 --count 320      # writes scripts/mutations.json
    python -m scripts.mutate replace --seed 36 --also TREE   # other changes for those whose code is gone
    python -m scripts.mutate reach --out reach.json          # which tests enter which function; runs all tests once
    python -m scripts.mutate run --reach reach.json --out results.jsonl [--first earlier.jsonl]
    python -m scripts.mutate show results.jsonl [earlier.jsonl]

A change is named by its function, the text of its statement before and after, and a number among equal ones, so that it
is found again after code has moved. `reach` runs the tests on a copy of the tree in which each function reports that it
was entered, also in the processes that tests start. `run` applies each change to a copy of the tree. It runs the tests
of the change's room that enter the function, the fast ones first and then the others, until one fails, for two minutes
at most; then the fast tests of other rooms that enter it. For ten of the changes that no test notices, it runs all
tests that enter the function. A test that never enters a function cannot notice a change of its body. With `--first`,
the test that noticed the change in an earlier run comes first. `run` continues where an interrupted one stopped. Tests
that failed in `reach` are not used.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parents[1]
CHANGES = ROOT / "scripts" / "mutations.json"
PACKAGE = Path("src", "tokenmill")
COPIED = ("src", "tests", "scripts", "benchmarks", "docs", "examples", ".github", ".ci")

MIN_PER_ROOM = 12
ROOM_SECONDS = 120.0
OTHER_SECONDS = 60.0
WHOLE_SECONDS = 900.0
WHOLE_SURVIVORS = 10
TEST_SECONDS = 120

COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}

PROBE = '''
"""Reports which functions a test enters. Written by scripts/mutate.py."""

import os

entered = bytearray({count})
_FOLDER = os.environ.get("TOKENMILL_REACH", "")
if not _FOLDER:
    entered[:] = b"\\1" * {count}


def enter(number):
    entered[number] = 1
    try:
        current = os.open(_FOLDER + "/current", os.O_RDONLY)
        test = os.read(current, 64)
        os.close(current)
        log = os.open(_FOLDER + "/entered", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, test + b" %d\\n" % number)
        os.close(log)
    except OSError:
        pass
    return True
'''

PLUGIN = '''
"""A plugin of pytest that names the test that runs now, and records its seconds and its outcome."""

import json
import os
import time
from pathlib import Path

import pytest

FOLDER = Path(os.environ["TOKENMILL_REACH_ROOT"], os.environ.get("PYTEST_XDIST_WORKER", "main"))
FOLDER.mkdir(parents=True, exist_ok=True)
os.environ["TOKENMILL_REACH"] = str(FOLDER)
failed = set()
count = 0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    from tokenmill import _reach

    global count
    count += 1
    (FOLDER / "next").write_text(str(count))
    (FOLDER / "next").rename(FOLDER / "current")
    _reach.entered[:] = bytes(len(_reach.entered))
    cpu, started = os.times(), time.monotonic()
    result = yield
    after = os.times()
    record = {
        "number": count,
        "test": item.nodeid,
        "seconds": round(time.monotonic() - started, 3),
        "own_cpu": round(after.user + after.system - cpu.user - cpu.system, 3),
        "children_cpu": round(
            after.children_user + after.children_system - cpu.children_user - cpu.children_system, 3
        ),
        "fast": "fast" in item.keywords,
        "passed": item.nodeid not in failed,
    }
    with (FOLDER / "tests").open("a") as file:
        file.write(json.dumps(record) + "\\n")
    return result


def pytest_runtest_logreport(report):
    if report.failed:
        failed.add(report.nodeid)
'''


@dataclass(frozen=True)
class Change:
    """A small change of the program. `module` says where it was drawn; a search does not need it."""

    module: str
    function: str
    before: str
    after: str
    number: int = 0

    @property
    def room(self) -> str:
        """The package of the change; modules beside the packages are one room."""
        first, *rest = self.module.split("/")
        return first if rest else "root"

    @property
    def name(self) -> str:
        """What the change is found by."""
        return json.dumps([self.function, self.before, self.after, self.number])


@dataclass(frozen=True)
class Edit:
    """The bytes of a source file that a change replaces, and the number of its function there."""

    start: int
    end: int
    text: str


class Module:
    """A source file, its functions and its possible changes."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.source = path.read_bytes()
        self.tree = ast.parse(self.source)
        self._starts = [0]
        for line in self.source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """All functions with the names of their classes and outer functions, in the order of the file."""
        yield from _functions(self.tree, "")

    def changes(self, name: str | None = None) -> Iterator[tuple[Change, Edit]]:
        """All changes of all functions, or of those with a name."""
        for function, node in self.functions():
            if name not in (None, function):
                continue
            seen: Counter[tuple[str, str]] = Counter()
            for target, text, before, after in _changes(node):
                edit = Edit(self._at(target.lineno, target.col_offset), self._end(target), text)
                yield Change(self.name, function, before, after, seen[before, after]), edit
                seen[before, after] += 1

    def with_probes(self, first: int) -> tuple[bytes, list[str]]:
        """The source with a probe in each function, numbered from `first`, and the names of these functions."""
        lines = self.source.decode().splitlines(keepends=True)
        names: list[str] = []
        inserted = []
        for function, node in self.functions():
            body = node.body[1:] if _is_docstring(node.body[0]) else node.body
            if body and body[0].lineno > node.body[0].lineno - (body is node.body) and body[0].lineno > node.lineno:
                start = min([body[0].lineno, *(item.lineno for item in getattr(body[0], "decorator_list", []))])
                probe = f"{' ' * body[0].col_offset}_entered[{first + len(names)}] or _enter({first + len(names)})\n"
                inserted.append((start, probe))
                names.append(function)
        for line, probe in sorted(inserted, reverse=True):
            lines.insert(line - 1, probe)
        if names:
            lines.insert(
                self._after_future() - 1, "from tokenmill._reach import enter as _enter, entered as _entered\n"
            )
        return "".join(lines).encode(), names

    def _after_future(self) -> int:
        for node in self.tree.body:
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if not is_future and not _is_docstring(node):
                return node.lineno - len(getattr(node, "decorator_list", []))
        return len(self._starts)

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._at(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        name = getattr(child, "name", "") if isinstance(child, ast.stmt) else ""
        yield from _functions(child, f"{prefix}{name}." if name else prefix)


def _changes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.expr | ast.stmt, str, str, str]]:
    """The changes of one function: the node that is replaced, its new text, and the statement before and after."""
    for statement in _statements(function.body):
        head = _head(statement)
        if head is None:
            continue
        before = ast.unparse(head)
        if _is_removable(statement):
            yield statement, "pass", before, "pass"
        for node in _expressions(head):
            for changed in _other_values(node, head):
                after = ast.unparse(_copied(head, node, changed))
                yield node, f"({ast.unparse(changed)})", before, after


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function without those of functions and classes in it."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or _is_docstring(statement):
            continue
        yield statement
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []))
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _statements(part.body)


def _head(statement: ast.stmt) -> ast.AST | None:
    """What a statement evaluates itself: the condition of an `if`, the whole of a simple statement."""
    match statement:
        case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head) | ast.Match(subject=head):
            return head
        case ast.With() | ast.AsyncWith() | ast.Try() | ast.AsyncFor() | ast.Import() | ast.ImportFrom() | ast.Pass():
            return None
    return statement


def _is_removable(statement: ast.stmt) -> bool:
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call or isinstance(statement, ast.Raise | ast.AugAssign | ast.Break | ast.Continue)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions below a node, without annotations and the insides of formatted strings."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expressions(child)


def _other_values(node: ast.expr, head: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=others) if type(operator) in COMPARED:
            yield ast.Compare(left, [COMPARED[type(operator)]()], others)
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in COMPUTED:
            yield ast.BinOp(left, COMPUTED[type(operator)](), right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(test=test, body=body, orelse=other):
            yield ast.IfExp(test, other, body)
        case ast.Name() | ast.Call() | ast.Attribute() if node is head:
            yield ast.UnaryOp(ast.Not(), node)


def _copied(tree: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    """A copy of a tree in which a node is replaced."""
    if tree is old:
        return new
    fields: dict[str, Any] = {}
    for name, value in ast.iter_fields(tree):
        if isinstance(value, list):
            fields[name] = [_copied(item, old, new) if isinstance(item, ast.AST) else item for item in value]
        else:
            fields[name] = _copied(value, old, new) if isinstance(value, ast.AST) else value
    return (
        ast.copy_location(type(tree)(**fields), tree) if isinstance(tree, ast.expr | ast.stmt) else type(tree)(**fields)
    )


def modules(root: Path) -> Iterator[tuple[Path, Module]]:
    """The source files of the package."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        yield path, Module(path, path.relative_to(root / PACKAGE).as_posix())


def draw(seed: int, count: int) -> None:
    """Draw changes, at most one of a function, from each room by the number of its functions, and write them."""
    rng = random.Random(seed)
    by_room: dict[str, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
    for _, module in modules(ROOT):
        for change, _ in module.changes():
            by_room[change.room][f"{change.module}:{change.function}"].append(change)
    total = sum(len(functions) for functions in by_room.values())
    chosen = []
    for functions in (by_room[room] for room in sorted(by_room)):
        wanted = max(MIN_PER_ROOM, round(count * len(functions) / total))
        names = rng.sample(sorted(functions), min(wanted, len(functions)))
        chosen += [rng.choice(functions[name]) for name in sorted(names)]
    CHANGES.write_text(json.dumps([asdict(change) for change in chosen], indent=1) + "\n")
    print(f"{len(chosen)} changes: {dict(Counter(change.room for change in chosen))}")


def replace(seed: int, also: list[Path]) -> None:
    """Replace each change whose code is gone here by another one of its room, which the other trees have, too."""
    rng = random.Random(seed)
    changes = [Change(**record) for record in json.loads(CHANGES.read_text())]
    trees = [_names(tree) for tree in (ROOT, *also)]
    taken = {(change.module, change.function) for change in changes}
    kept = [change for change in changes if trees[0][change.name] == 1]
    lost = Counter(change.room for change in changes if change not in kept)
    drawn = [change for _, module in modules(ROOT) for change, _ in module.changes()]
    rng.shuffle(drawn)
    for change in drawn:
        is_new = lost[change.room] and (change.module, change.function) not in taken
        if is_new and all(names[change.name] == 1 for names in trees):
            kept.append(change)
            taken.add((change.module, change.function))
            lost[change.room] -= 1
    kept.sort(key=lambda change: (change.module, change.name))
    CHANGES.write_text(json.dumps([asdict(change) for change in kept], indent=1) + "\n")
    print(f"{len(changes)} changes before, {len(kept)} now; rooms with too few others: {dict(+lost)}")


def _names(tree: Path) -> Counter[str]:
    """How often each change is found in a tree."""
    return Counter(change.name for _, module in modules(tree) for change, _ in module.changes())


def reach(out: Path, pytest_args: list[str]) -> None:
    """Run all tests on a copy with probes, and write which tests enter which function."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-reach-") as folder:
        copy, log = Path(folder, "copy"), Path(folder, "log")
        _copy_tree(copy)
        names: list[str] = []
        for path, module in modules(copy):
            source, functions = module.with_probes(len(names))
            path.write_bytes(source)
            names += [f"{module.name}:{function}" for function in functions]
        (copy / PACKAGE / "_reach.py").write_text(PROBE.format(count=len(names)))
        (copy / "reach_plugin.py").write_text(PLUGIN)
        environment = _environment(copy) | {"TOKENMILL_REACH_ROOT": str(log)}
        command = [sys.executable, "-m", "pytest", "-p", "reach_plugin", "-p", "no:cacheprovider", *pytest_args]
        subprocess.run(command, cwd=copy, env=environment, check=False)
        out.write_text(json.dumps(_read_log(log, names)))


def _read_log(log: Path, names: list[str]) -> dict[str, Any]:
    """The tests of all processes of pytest, and for each function the tests that enter it."""
    tests: list[dict[str, Any]] = []
    entered: dict[str, set[int]] = defaultdict(set)
    for folder in sorted(path.parent for path in log.glob("*/tests")):
        numbers = {}
        for line in (folder / "tests").read_text().splitlines():
            record = json.loads(line)
            numbers[record.pop("number")] = len(tests)
            tests.append(record)
        for entry in (folder / "entered").read_bytes().splitlines():
            number, _, function = entry.partition(b" ")  # a process without a stdout may have printed into this file
            if number.isdigit() and function.isdigit() and int(number) in numbers:
                entered[names[int(function)]].add(numbers[int(number)])
    return {"tests": tests, "entered": {name: sorted(indexes) for name, indexes in sorted(entered.items())}}


class Runner:
    """Applies changes to copies of the tree and runs the tests that may notice them."""

    def __init__(self, reached: dict[str, Any], first: dict[str, str], places: SimpleQueue[Path]) -> None:
        self._tests = reached["tests"]
        self._entered: dict[str, list[int]] = reached["entered"]
        self._first = first
        self._copies = places

    def run(self, change: Change, *, whole: bool = False) -> dict[str, Any]:
        """The outcome of one change: which test noticed it, and after how many seconds."""
        copy = self._copies.get()
        started = time.monotonic()
        try:
            path, module, edit = find(copy, change)
            path.write_bytes(module.source[: edit.start] + edit.text.encode() + module.source[edit.end :])
            try:
                stage, test = self._noticed(copy, change, f"{module.name}:{change.function}", whole=whole)
            finally:
                path.write_bytes(module.source)
        except LookupError:
            stage, test = "not found", ""
        finally:
            self._copies.put(copy)
        outcome = {"stage": stage, "test": test, "seconds": round(time.monotonic() - started, 1)}
        return {"name": change.name, "room": change.room, "module": change.module, **outcome}

    def _noticed(self, copy: Path, change: Change, function: str, *, whole: bool) -> tuple[str, str]:
        known = {test["test"] for test in self._tests}
        tests = [self._tests[index] for index in self._entered.get(function, ()) if self._tests[index]["passed"]]
        own = [test for test in tests if test["test"].split("/")[1] in (change.room, "guarantees", "project")]
        if change.room == "root":
            own = tests
        others = [test for test in tests if test not in own]
        stages: list[tuple[str, list[str], float]] = [
            ("first", [test for test in [self._first.get(change.name, "")] if test in known], TEST_SECONDS),
            ("room", _ordered(own, ROOM_SECONDS), ROOM_SECONDS),
            ("other rooms", _ordered([test for test in others if test["fast"]], OTHER_SECONDS), OTHER_SECONDS),
        ]
        if whole:
            stages = [("whole", _ordered(tests, WHOLE_SECONDS), WHOLE_SECONDS)]
        for stage, chosen, seconds in stages:
            test = _first_failure(copy, chosen, seconds)
            if test:
                return stage, test
        return ("not noticed" if tests else "not entered"), ""


def _ordered(tests: list[dict[str, Any]], budget: float) -> list[str]:
    """Tests for a time: fast ones first, short ones first, those of one file together."""
    chosen: list[dict[str, Any]] = []
    spent = 0.0
    for test in sorted(tests, key=lambda test: (not test["fast"], test["seconds"])):
        spent += test["seconds"]
        if chosen and spent > budget:
            break
        chosen.append(test)
    files = list(dict.fromkeys(test["test"].split("::")[0] for test in chosen))
    return [test["test"] for test in sorted(chosen, key=lambda test: files.index(test["test"].split("::")[0]))]


def _first_failure(copy: Path, tests: list[str], seconds: float) -> str:
    """The first of the tests that fails, or an empty string."""
    if not tests:
        return ""
    chosen = copy / "chosen_tests.txt"
    chosen.write_text("".join(f"{test}\n" for test in tests))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    command += [f"--timeout={TEST_SECONDS}", "-W", "default", f"@{chosen.name}"]
    process = subprocess.Popen(
        command, cwd=copy, env=_environment(copy), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=3 * seconds + 60)
    except subprocess.TimeoutExpired:
        return ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
    failed = [
        line.split(" ", 1)[1].split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))
    ]
    if failed or process.returncode in (0, 5):
        return failed[0] if failed else ""
    return f"pytest ended with {process.returncode}"


def find(root: Path, change: Change) -> tuple[Path, Module, Edit]:
    """Where a change is now: in its module if it is still there, else in the one module that has it."""
    path = root / PACKAGE / change.module
    here = [(path, Module(path, change.module))] if path.exists() else []
    matches = _matches(here, change) or _matches(modules(root), change)
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} places for {change.name}")
    return matches[0]


def _matches(searched: Iterable[tuple[Path, Module]], change: Change) -> list[tuple[Path, Module, Edit]]:
    return [
        (path, module, edit)
        for path, module in searched
        for candidate, edit in module.changes(change.function)
        if candidate.name == change.name
    ]


def _copy_tree(target: Path) -> None:
    target.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, target)
    for name in COPIED:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))


def _environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy), str(copy / "src")))}


def run(reach_file: Path, out: Path, first_file: Path | None, jobs: int) -> None:
    """Try all changes that `out` has no result for, and append the results."""
    changes = [Change(**record) for record in json.loads(CHANGES.read_text())]
    earlier = _read_results(first_file) if first_file else {}
    first = {name: result["test"] for name, result in earlier.items() if "::" in result["test"]}
    with tempfile.TemporaryDirectory(prefix="tokenmill-mutate-") as folder, ThreadPoolExecutor(jobs) as pool:
        places: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            _copy_tree(Path(folder, str(number)))
            places.put(Path(folder, str(number)))
        runner = Runner(json.loads(reach_file.read_text()), first, places)
        done = _read_results(out)
        left = [change for change in changes if change.name not in done]
        random.Random(len(changes)).shuffle(left)  # an interrupted run is a sample of all rooms
        for result in pool.map(runner.run, left):
            _append(out, result)
        done = _read_results(out)
        survivors = [change for change in changes if done[change.name]["stage"] == "not noticed"]
        drawn = random.Random(len(changes)).sample(survivors, min(WHOLE_SURVIVORS, len(survivors)))
        for result in pool.map(lambda change: runner.run(change, whole=True), drawn):
            print("all tests that enter it:", json.dumps(result), flush=True)


def _append(out: Path, result: dict[str, Any]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(result["stage"], result["seconds"], result["name"][:100], result["test"], flush=True)


def _read_results(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {record["name"]: record for record in map(json.loads, path.read_text().splitlines())}


def show(paths: list[Path]) -> None:
    """The share of noticed changes by room, and the changes that no test noticed."""
    results = [_read_results(path) for path in paths]
    rooms = sorted({result["room"] for result in results[0].values()})
    for room in (*rooms, "all"):
        shares = []
        for table in results:
            outcomes = [result["stage"] for result in table.values() if room in (result["room"], "all")]
            noticed = sum(stage in ("first", "room", "other rooms") for stage in outcomes)
            shares.append(f"{noticed:4} of {len(outcomes):4} ({noticed / max(1, len(outcomes)):.0%})")
        print(f"{room:12}", *shares)
    for result in results[0].values():
        if result["stage"] not in ("first", "room", "other rooms"):
            print(result["stage"], result["module"], result["name"])


def main() -> None:
    """Read the options and do one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    drawing = steps.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=35)
    drawing.add_argument("--count", type=int, default=320)
    replacing = steps.add_parser("replace")
    replacing.add_argument("--seed", type=int, default=36)
    replacing.add_argument("--also", type=Path, action="append", default=[])
    reaching = steps.add_parser("reach")
    reaching.add_argument("--out", type=Path, required=True)
    reaching.add_argument("pytest_args", nargs="*", default=["-n", "2", "--dist", "loadfile", "tests"])
    running = steps.add_parser("run")
    running.add_argument("--reach", type=Path, required=True)
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--first", type=Path)
    running.add_argument("--jobs", type=int, default=2)
    showing = steps.add_parser("show")
    showing.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args()
    match options.step:
        case "draw":
            draw(options.seed, options.count)
        case "replace":
            replace(options.seed, options.also)
        case "reach":
            reach(options.out, options.pytest_args)
        case "run":
            run(options.reach, options.out, options.first, options.jobs)
        case "show":
            show(options.results)


if __name__ == "__main__":
    main()
