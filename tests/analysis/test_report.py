"""The report: one page that is whole HTML, needs nothing else, shows what there is, and cannot be broken by data."""

from __future__ import annotations

import json
import os
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Unpack

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.arguments import PrepareArguments
from tests.support.command import process, run
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.servers.seaweed import Bucket
from tokenmill.analysis.html import render
from tokenmill.analysis.html.markup import percent, short_number
from tokenmill.analysis.html.plots import Series, Tick, plot
from tokenmill.analysis.statistics import LengthBin, Statistics
from tokenmill.analysis.visible_text import decode_token, display_name, make_visible
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.storage import folder_at

EVIL = "<script>alert(1)</script>\"'><img src=http://x.example/a.png onerror=alert(1)>&amp;\u202e\x1b[31m\x00"
EMPTY = {"meta", "rect", "line", "polygon", "polyline", "img", "br", "hr", "input", "link"}
"""Elements that have no end tag, and shapes that end themselves."""

DOCUMENT = {"html", "head", "meta", "title", "style", "body", "main", "header", "nav", "section", "a", "p"}
CONTENT = {"h1", "h2", "h3", "ul", "li", "div", "span", "bdi", "code", "dl", "dt", "dd", "figure"}
TABLES = {"table", "thead", "tbody", "tr", "th", "td"}
SHAPES = {"svg", "g", "rect", "line", "polygon", "polyline"}


class Page(HTMLParser):
    """Walks over a page: elements that do not match, or that could do or fetch something, are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.titles: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        assert tag in DOCUMENT | CONTENT | TABLES | SHAPES, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("src", "srcset", "action", "data", "xlink:href"), name
            assert name != "href" or (value or "").startswith("#")
            assert name != "style" or re.fullmatch(r"(width|left|bottom|--y):[\d.]+(%|ch)", value or ""), value
            if name == "title":
                self.titles.append(value or "")
        if tag not in EMPTY or (tag == "rect" and not (self.get_starttag_text() or "").endswith("/>")):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element that ends itself."""
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """An element ends: the last that began."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        """All that can be read."""
        return " ".join(" ".join(self.text).split())


def prepared(tmp_path: Path, *sources: str, **words: Unpack[PrepareArguments]) -> str:
    """A store of these sources."""
    out = str(tmp_path / "tokens")
    given: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "unit_bytes": "1k", "workers": 1, "eot": "none", **words}
    tokenmill.prepare(list(sources), out=out, **given)
    return out


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tokenmill as people do."""
    return run(*words, code=None, **environment)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store whose names, texts, values, bad rows and log try to break out of a page."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = ["</style></title><script>x()</script>", "one", "one", "\u0645\u0631 \u0301", None, ""]
    table = pa.table({"text": texts, "tag": [EVIL, "en", "中文" * 200, None, "x", ""]})
    pq.write_table(table, folder / "<img src=x onerror=1>&quot;.parquet", row_group_size=2)
    bad = b'{"text": 7, "tag": "x"}\nnot json </td><script>alert(2)</script>\n{"text": "fine", "tag": 5}\n'
    (folder / "bad.jsonl").write_bytes(bad)
    out = prepared(folder, str(folder), max_bad="90%")
    death = {"unit": 0, "cause": EVIL, "how": EVIL, "file": EVIL, "pid": 5, "node": EVIL, "peak_bytes": 1 << 40}
    events = [
        {"time": 1e9, "event": "death", **death},
        {"time": 1e9 + 5, "event": "failure", "unit": 1, "kind": EVIL, "message": EVIL},
        {"time": 1e9 + 9, "event": "notice", "message": EVIL},
    ]
    with open(f"{out}/log-7.jsonl", "w", encoding="utf-8") as log:
        log.writelines(json.dumps(each) + "\n" for each in events)
    return out


def test_a_page_survives_what_is_in_the_data(hostile: str) -> None:
    """Names, texts, values, reasons and logs are shown as text: no element comes of them, and no address is fetched."""
    done = tokenmill.report(hostile, by="tag")
    html = Path(done.path).read_text(encoding="utf-8")
    page = Page(html)
    assert "http" not in re.sub("<[^>]*http-equiv[^>]*>", "", html.replace("http://x.example", ""))
    assert "url(" not in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", html)
    assert "<script>" in page.words  # as text
    assert any("onerror=alert(1)" in title for title in page.titles)


def test_a_page_tells_of_everything(hostile: str) -> None:
    """Rows left out, their reasons, deaths, failures, duplicates, the job and its checksums are on the page."""
    found = tokenmill.stats(hostile, by="tag")
    words = Page(render(found)).words
    assert "3 rows did not become documents; 2 are in quarantine." in words
    for expected in ("not a JSON object", "not text", "without text", "(none)", "(empty)", "\u2423"):
        assert expected in words
    assert found.history is not None
    assert (sum(found.history.deaths.values()), sum(found.history.failures.values())) == (1, 1)
    assert "2001-09-09 01:46:40 UTC" in words
    assert "1.10 TB" in words
    assert all(digest in words for digest in found.origin.checksums.values())
    assert "1 copies" not in words


def test_the_same_store_gives_the_same_page(hostile: str) -> None:
    """Neither the time nor the number of workers is in the page."""
    pages = {render(tokenmill.stats(hostile, by=["tag"], workers=workers)) for workers in (1, 2)}
    assert len(pages) == 1


def test_one_document_none_and_no_log(tmp_path: Path) -> None:
    """A page of one document, and one of none, is as whole as any other, also without a log."""
    one = prepared(tmp_path / "1", write_parquet(tmp_path / "one.parquet", ["one document"]))
    none = prepared(tmp_path / "0", write_parquet(tmp_path / "none.parquet", []))
    Path(none, "log.jsonl").unlink()
    assert "1 document" in Page(render(tokenmill.stats(one))).words
    words = Page(render(tokenmill.stats(none))).words
    assert "There is no document in this store." in words
    assert "The store has no log" in words


def test_statistics_come_back_from_json(hostile: str) -> None:
    """What --json prints is what the library returns, and a page can be drawn from it."""
    done = command("stats", hostile, "--by", "tag", "--json", "-q")
    found = msgspec.json.decode(done.stdout, type=Statistics)
    assert found == tokenmill.stats(hostile, by="tag")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_bars_fit_the_terminal(hostile: str, columns: int) -> None:
    """No bar is wider than the terminal, and nothing that a terminal would obey is printed."""
    from rich.cells import cell_len

    done = command("stats", hostile, "--by", "tag", "-q", COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    bars = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(bars) > 10
    assert max(map(cell_len, bars)) <= columns
    assert "\x1b" not in done.stdout
    assert "\u2588" in done.stdout


def test_a_chart_of_the_largest_names_their_share(tmp_path: Path) -> None:
    """With more values than bars, the title has the share of those that are shown; with fewer, it has none."""
    rows = [{"text": "word", "url": f"https://host{row % 20}.example/{row}", "ok": row % 2 == 0} for row in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = prepared(tmp_path, str(tmp_path / "a.jsonl"))
    lines = command("stats", store, "--by", "host:url", "--by", "ok", "-q", COLUMNS="80").stdout.splitlines()
    assert "tokens by host:url, and bytes per token, the largest 10 of 20 (50.0 %)" in lines
    assert "tokens by ok, and bytes per token" in lines


def test_a_terminal_without_unicode_gets_other_bars(hostile: str) -> None:
    """Where block characters cannot be printed, # stands for them."""
    assert "###" in process("stats", hostile, "-q", PYTHONIOENCODING="ascii").stdout


def test_the_page_goes_where_it_is_wanted(tmp_path: Path) -> None:
    """Into the store, or to a file: it is the same page. A directory is no file."""
    store = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one", "two"]))
    done = command("report", store, "-q")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"report       {store}/report.html")
    page = Path(store, "report.html").read_text(encoding="utf-8")
    path = tmp_path / "page.html"
    assert tokenmill.report(store, out=str(path)).path == str(path)
    assert path.read_text(encoding="utf-8") == page
    with pytest.raises(UsageError, match="not the name of a page"):
        tokenmill.report(store, out=str(tmp_path))
    tokenmill.verify(store)


def _snapshot(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_page_replaces_nothing_else(tmp_path: Path) -> None:
    """Files of the store, other people's files, fifos, and what links lead to are refused, and stay as they are."""
    store = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one"]))
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "link.html").symlink_to(tmp_path / "notes")
    (tmp_path / "same").symlink_to(store)
    os.mkfifo(tmp_path / "fifo.html")
    before = _snapshot(store)
    within = [f"{store}/{name}" for name in ("manifest.parquet", "parts/00000000.arrow", "parts/x.html", "new.txt")]
    around = [str(tmp_path / name) for name in ("notes", "link.html", "fifo.html", "same/run.json", "a.parquet")]
    for out in (*within, *around):
        with pytest.raises(UsageError, match=r"files of the store|is no page|not the name of a page"):
            tokenmill.report(store, out=out)
    assert _snapshot(store) == before
    assert (tmp_path / "notes").read_text() == "mine"
    assert (tmp_path / "fifo.html").is_fifo()
    done = command("report", store, "--out", f"{store}/run.json", "-q")
    assert (done.returncode, "Give a name that ends in .html" in done.stderr) == (2, True)


def test_a_page_goes_to_where_a_link_leads(tmp_path: Path) -> None:
    """The link stays, and the page is behind it; but a link in the store, which others may have made, is refused."""
    store = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one"]))
    (tmp_path / "real").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "real" / "page.html")
    tokenmill.report(store, out=str(tmp_path / "link.html"))
    tokenmill.report(store, out=str(tmp_path / "link.html"))
    assert (tmp_path / "link.html").is_symlink()
    assert Page((tmp_path / "real" / "page.html").read_text(encoding="utf-8"))
    for target in (tmp_path / "outside.html", Path(store, "manifest.parquet"), Path(store, "inside.html")):
        Path(store, "report.html").symlink_to(target)
        for out in (None, f"{store}/report.html"):
            with pytest.raises(TokenmillError):
                tokenmill.report(store, out=out)
        Path(store, "report.html").unlink()
    assert not (tmp_path / "outside.html").exists()


def test_a_missing_column_is_a_sentence(hostile: str) -> None:
    """The command tells which columns there are, without a traceback."""
    done = command("report", hostile, "--by", "language", "-q")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "'language'" in done.stderr
    assert "tag" in done.stderr
    assert "--by NAME" in done.stderr


def test_a_store_in_a_bucket_has_its_report_there(tmp_path: Path, s3: Bucket) -> None:
    """Where the store is remote, parts and log are read from there, and the page is published there."""
    source = write_parquet(tmp_path / "a.parquet", ["one", "two", "one"])
    out = f"{s3.url}/run"
    tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, out=out, eot="none")
    done = tokenmill.report(out)
    assert done.path == f"{out}/report.html"
    assert done.statistics.duplicates is not None
    assert done.statistics.duplicates.documents == 1
    assert done.statistics.history is not None
    assert done.statistics.history.units == 1
    assert folder_at(out).read("report.html").decode() == render(done.statistics)
    with folder_at(s3.url).publish("notes") as file:
        file.write(b"mine")
    for taken in (f"{out}/manifest.parquet", f"{out}/parts/page.html", f"{s3.url}/notes"):
        with pytest.raises(UsageError, match=r"files of the store|is no page|not the name of a page"):
            tokenmill.report(out, out=taken)
    assert tokenmill.report(out, out=f"{s3.url}/page.html").path == f"{s3.url}/page.html"


@pytest.mark.parametrize(
    ("part", "whole", "word"),
    [
        (0, 0, "\u2013"),
        (0, 5, "0 %"),
        (1, 10**6, "< 0.1 %"),
        (1, 3, "33.3 %"),
        (99_999, 10**5, "> 99.9 %"),
        (5, 5, "100.0 %"),
    ],
)
def test_shares_do_not_lie(part: int, whole: int, word: str) -> None:
    """What is little is not called nothing, and what is nearly all is not called all."""
    from tokenmill.cli.stats import _percent

    assert percent(part, whole) == word
    if part:
        assert _percent(part, whole) == word.replace("< ", "<").replace("> ", ">")


def test_pieces_can_be_seen() -> None:
    """White space, control characters, marks without a letter and half characters are shown, each in its way."""
    assert make_visible(" a\n\t\x00\u202e\u0301") == "\u2423a\u23ce\u21e5\\x00\\u202e\u25cc\u0301"
    assert decode_token(b"a\xff") == "a\\xff"
    assert [display_name(""), display_name(" "), display_name("a b")] == ["(empty)", "\u2423", "a b"]


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [1e-9], [3.0, 1e15], [7] * 100])
def test_plots_stay_in_their_frame(values: list[float]) -> None:
    """Whatever the values, bars end inside the picture, and its scale reaches the largest."""
    for shape in ("bars", "area", "line"):
        html = plot("t", [Series("s", values, ["x"] * len(values), shape)], [Tick(0, "0")], short_number)
        Page(html)
        heights = [float(number) for number in re.findall(r'height="([\d.e-]+)"', html)]
        assert all(0 <= height <= 100.001 for height in heights)
        assert "nan" not in html


def test_one_bin_has_its_mark_and_its_point(tmp_path: Path) -> None:
    """Where all documents are of one length, the axis names it, and the line is a dot."""
    html = plot("t", [Series("s", [3.0], ["x"], "line")], [], short_number)
    (points,) = re.findall(r'points="([^"]+)"', html)
    assert len(points.split()) == 2
    found = tokenmill.stats(prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one"])))
    one = LengthBin(1536, 2047, 1, 1600)
    lengths = msgspec.structs.replace(found.lengths, bins=[one])
    assert ">1.5k<" in render(msgspec.structs.replace(found, lengths=lengths))


def test_long_reasons_are_cut(hostile: str) -> None:
    """What a row in quarantine says of itself takes no more than some lines of the page."""
    found = tokenmill.stats(hostile)
    row = msgspec.structs.replace(found.skipped.first[0], reason="r" * 9999, detail="d" * 9999)
    skipped = msgspec.structs.replace(found.skipped, first=[row], reasons={"q" * 9999: 3})
    html = render(msgspec.structs.replace(found, skipped=skipped))
    assert all(letter * 199 + "\u2026" in html and letter * 200 not in html for letter in "rdq")


def test_values_are_not_shortened_as_paths_are(tmp_path: Path) -> None:
    """A column may be called source: its values are printed whole."""
    table = pa.table({"text": ["a", "b"], "source": ["web/crawl/x", "web/crawl/y"]})
    pq.write_table(table, tmp_path / "a.parquet")
    done = command("stats", prepared(tmp_path, str(tmp_path / "a.parquet")), "--by", "source", "-q")
    assert "web/crawl/x" in done.stdout
    assert "  a.parquet" in done.stdout


def test_a_tokenizer_that_changes_text_has_no_bytes_by_source(hostile: str) -> None:
    """Where tokens do not stand for the very bytes of the text, the page says so, and leaves figures out."""
    found = tokenmill.stats(hostile)
    shares = [msgspec.structs.replace(each, bytes=None) for each in found.sources.largest]
    sources = msgspec.structs.replace(found.sources, largest=shares)
    words = Page(render(msgspec.structs.replace(found, bytes_per_token_bins=None, sources=sources))).words
    assert "the tokenizer changes the text" in words
    assert "bytes/token" not in words


def test_many_sources_are_told_together(hostile: str) -> None:
    """Beyond the largest, one bar stands for all others, and none is longer than there is room for."""
    found = tokenmill.stats(hostile)
    others = msgspec.structs.replace(found.sources.largest[0], name="1,000 others", tokens=10**9)
    html = render(msgspec.structs.replace(found, sources=msgspec.structs.replace(found.sources, others=others)))
    assert "1,000 others" in Page(html).words
    assert max(float(width) for width in re.findall(r"width:([\d.]+)%", html)) <= 100


def test_counts_have_whole_numbers_beside_them() -> None:
    """An axis of counts has no halves, and no number twice."""
    for most in (1, 2, 3, 7, 10, 11, 99, 1001):
        html = plot("t", [Series("s", [most], ["x"])], [], short_number)
        beside = re.findall(r'bottom:[\d.]+%">([^<]+)<', html)
        assert len(set(beside)) == len(beside) >= 2
        assert not any("." in word for word in beside if not word.endswith("k"))
