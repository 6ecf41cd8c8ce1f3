"""The records that public functions return: importable, readable, escaped in notebooks, the same as JSON and pickle."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

import tokenmill
from tokenmill import results
from tokenmill.humanize import SHOWN_ITEMS, Readable
from tokenmill.results import Document, EndRecord, ExportedSplit, ExportResult, Ignored, TokenCount, VocabularyUse

RECORDS = [name for name, record in sorted(vars(results).items()) if isinstance(record, type)]
MARKUP = "<script>alert('1')</script>\x1b[2J\u202e"


def exported(name: str = "tokens") -> ExportResult:
    """The result of an export to a directory of any name."""
    splits = {"val": ExportedSplit(1, 7, 1234567, 0), "train": ExportedSplit(1, 93, 89, 0)}
    return ExportResult(name, "nanogpt", "nanoGPT", "uint16", "appended", None, 2, 99, splits, 2, 0, 0.5, 9.0, [name])


class Balanced(HTMLParser):
    """Checks that each element is closed where it should be, and collects names and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Note an element."""
        self.names.add(tag)
        self._open += [] if tag == "br" else [tag]

    def handle_endtag(self, tag: str) -> None:
        """Close the element that was opened last."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Collect the text."""
        self.text += f"{data}\n"


def test_every_result_of_a_function_is_public() -> None:
    """The class that a public function returns is in tokenmill.results, or at the top as Loader and Store are."""
    functions = [getattr(tokenmill, name) for name in tokenmill.__all__ if name not in ("map_dataset", "using")]
    returned = [str(inspect.signature(value).return_annotation) for value in functions if inspect.isfunction(value)]
    names = {name for annotation in returned for name in re.findall(r"\w+", annotation)}
    assert names - {"Loader", "Store", "TokenizeFn", "Writer", "list"} <= set(RECORDS)


@pytest.mark.parametrize("name", [name for name in RECORDS if name != "StoreSlice"])
def test_every_record_is_readable(name: str) -> None:
    """Each record has a repr by lines and a table for notebooks, and no fields besides its own."""
    record = getattr(results, name)
    assert issubclass(record, Readable)
    assert record.__repr__ is Readable.__repr__
    assert "__dict__" not in dir(record)


def test_a_short_record_is_one_line() -> None:
    """A record that fits into a line is written as its constructor call."""
    assert (
        repr(EndRecord("failed", exit_code=75))
        == "EndRecord(outcome='failed', kind='', headline='', exit_code=75, advice=())"
    )


def test_a_long_record_has_a_line_for_each_field() -> None:
    """The repr of a long record is still the code that makes it."""
    text = repr(exported())
    assert text.splitlines()[:3] == ["ExportResult(", "    directory='tokens',", "    format='nanogpt',"]
    assert "        'val': ExportedSplit(\n            shards=1,\n            documents=7," in text
    assert max(map(len, text.splitlines())) <= 100
    assert eval(text, vars(results)) == exported()


def test_long_lists_are_cut() -> None:
    """A list shows its first items and the number of the others, in the repr and in the table."""
    counts = [TokenCount(id=number, piece="x", count=1) for number in range(SHOWN_ITEMS + 1234)]
    use = VocabularyUse(size=9, used=9, most_frequent=counts, covering={}, first_unused=[])
    assert "... 1,234 more" in repr(use)
    assert "... 1,234 more" in use._repr_html_()
    assert repr(use).count("TokenCount(") == SHOWN_ITEMS


def test_an_array_shows_its_first_items() -> None:
    """Tokens are shown with their number and type."""
    document = Document(np.arange(20, dtype=np.uint16), "a.jsonl", 3)
    assert "<20 uint16: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...>" in repr(document)
    assert "20 uint16: 0, 1" in Balanced(document._repr_html_()).text
    assert "<0 uint16: >" in repr(Document(np.zeros(0, np.uint16), "a", 0))


def test_a_table_has_the_fields_as_labels() -> None:
    """The labels of the table are the attributes that are not empty; a number has separators, nested records tables."""
    record = exported()
    page = Balanced(record._repr_html_())
    labels = re.findall(r"<th[^>]*>([^<]*)</th>", record._repr_html_())
    filled = [name for name in ExportResult.__struct_fields__ if getattr(record, name) not in (None, "", [], {})]
    assert [label for label in labels if label in ExportResult.__struct_fields__] == filled
    assert 5 < len(filled) < len(ExportResult.__struct_fields__)
    assert "1,234,567" in page.text
    assert page.names <= {"div", "strong", "table", "tr", "th", "td", "br"}


def test_names_are_no_markup() -> None:
    """A directory, a key or a notice cannot put markup or control characters into a notebook."""
    for record in (exported(MARKUP), Ignored(example=MARKUP, endings={MARKUP: 1}, special=[MARKUP])):
        page = record._repr_html_()
        assert "script" not in Balanced(page).names
        assert not {"\x1b", "\u202e"} & set(page + repr(record))


def test_json_and_pickles_are_those_of_the_fields() -> None:
    """How a record is shown does not change what `--json` prints, or what other processes receive."""
    record = exported()
    content = msgspec.json.encode(record)
    assert list(msgspec.json.decode(content)) == list(ExportResult.__struct_fields__)
    assert msgspec.json.decode(content, type=ExportResult) == record
    assert pickle.loads(pickle.dumps(record)) == record


def test_results_can_be_imported_as_a_module() -> None:
    """Annotations name the classes by `tokenmill.results`, as an attribute and as a module."""
    code = "import tokenmill; from tokenmill.results import Cell; print(tokenmill.results.Cell is Cell)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "True\n"
