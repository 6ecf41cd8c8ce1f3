"""The package as a whole: its public surface, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tokenmill
from tokenmill.cli import cli
from tokenmill.errors import UsageError
from tokenmill.humanize import duration, number, parse_size, size
from tokenmill.system import machine

HEAVY = ("numpy", "pyarrow", "gigatoken", "awkward", "tiktoken", "tokenizers", "rich", "click", "msgspec", "datasets")


def test_the_public_surface_is_this() -> None:
    """Adding or removing a public name is a decision."""
    classes, functions = (
        ["Loader", "Store", "TokenmillError", "Writer"],
        ["bench", "datasets", "doctor", "erase", "export", "finish", "formats", "identify"],
    )
    expected = [
        *classes,
        *functions,
        *("inspect", "loader", "locate", "map_dataset", "mix", "open", "plan", "prepare"),
        *("report", "results", "stats", "status", "template", "tokenize_fn", "tokenizers", "using", "verify", "writer"),
    ]
    assert set(cli.commands) <= set(expected)
    assert sorted(tokenmill.__all__) == expected
    assert all(callable(getattr(tokenmill, name)) for name in expected if name != "results")
    with pytest.raises(AttributeError):
        getattr(tokenmill, "nothing")  # noqa: B009 - a type checker knows that it is not there


def test_import_loads_nothing_heavy() -> None:
    """`import tokenmill` is cheap: no heavy library comes with it."""
    code = f"import sys, tokenmill; print([name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_no_public_function_needs_an_extra_to_load() -> None:
    """Every name of the package loads where none of the optional libraries is installed."""
    extras = {"datasets", "ray", "torch", "grain", "polars", "pandas", "transformers", "IPython"}
    code = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {extras!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import tokenmill
print(all([getattr(tokenmill, name) for name in tokenmill.__all__]))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.stdout == "True\n", shown.stderr


def test_the_version_is_shown_without_the_other_commands() -> None:
    """No command, and no library but click, is loaded for it."""
    code = "import sys; from tokenmill import cli; print([name for name in sys.modules if name in {*sys.argv[1:]}])"
    others = [f"tokenmill.cli.{name}" for name in cli.commands]
    shown = subprocess.run([sys.executable, "-c", code, *HEAVY, *others], capture_output=True, text=True, check=True)
    assert shown.stdout == "['click']\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [("8GB", 8 * 10**9), ("64MiB", 64 << 20), ("100M", 10**8), ("10B", 10**10), ("1.5k", 1500), ("7", 7), (9, 9)],
)
def test_sizes_take_suffixes(text: str | int, value: int) -> None:
    """k, M, G, T and B (billion) are understood, with and without a B for bytes."""
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "5Q"])
def test_other_sizes_are_refused(text: str) -> None:
    """What is no size is refused with an example."""
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_figures_are_written_for_people() -> None:
    """Counts, sizes and times have three digits and a unit."""
    assert [number(x) for x in (7, 999, 12_345, 4.56e6, 15e12)] == ["7", "999", "12.3k", "4.56M", "15.0T"]
    assert [size(x) for x in (7, 1e6, 34.5e9, 2e15)] == ["7 B", "1.00 MB", "34.5 GB", "2000 TB"]
    assert [duration(x) for x in (0.84, 45, 180, 9000, 1e6)] == ["0.8 s", "45 s", "3 min", "2.5 h", "11.6 days"]


def test_the_machine_has_cores_and_memory() -> None:
    """What the machine grants is positive, and the budget leaves some of it."""
    assert machine.cores() >= 1
    assert 0 < machine.default_memory_budget() < machine.memory_bytes()
    assert machine.resident_bytes() > 1 << 20
