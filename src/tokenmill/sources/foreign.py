"""Recognize files that tokenmill does not read, by name or by their first bytes, and name the command that converts."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from tokenmill.errors import SourceError
from tokenmill.humanize import size
from tokenmill.sources.delimited import BYTE_ORDER_MARK, codec_of, read_sample
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.json_values import are_values, has_values
from tokenmill.sources.missing_column import WHITE_SPACE

_WARC = (
    'python -c "import json,sys;from warcio import ArchiveIterator as A;[print(json.dumps(dict(url=r.rec_headers.'
    "get_header('WARC-Target-URI'),text=r.content_stream().read().decode('utf-8','replace')))) for r in "
    "A(sys.stdin.buffer) if r.rec_type=='conversion']\" < {file} > {new}.jsonl"
)
_PANDAS = 'python -c "import pandas,sys;pandas.{read}(sys.argv[1]).to_parquet(sys.argv[2])" {file} {new}.parquet'
_HTML = "WARC files hold web pages as HTML. Take the .wet files, which hold their text, or extract the text first."


class Foreign(NamedTuple):
    """A kind of file: what it is, the command that converts it, its endings, and the first bytes that betray it.

    In the command, {new} is the name without its ending, and {ending} that ending.
    """

    what: str
    command: str
    endings: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()


_UTF_16 = "iconv -f UTF-16 -t UTF-8 {file} > {new}.utf8{ending}"
FOREIGN = (
    Foreign("a web archive (WARC)", _HTML, (".warc", ".warc.gz")),
    Foreign("the text of a web archive (WET)", _WARC, (".wet", ".wet.gz"), (b"WARC/1.",)),
    Foreign("an Excel workbook", _PANDAS.replace("{read}", "read_excel"), (".xlsx",)),
    Foreign("a pickle", _PANDAS.replace("{read}", "read_pickle"), (".pkl",)),
    Foreign("a zip archive", "unzip {file} -d {new}", (".zip",), (b"PK\x03\x04",)),
    Foreign("a tar archive", "tar -xf {file}", (".tar", ".tar.gz", ".tgz")),
    Foreign(
        "compressed with bzip2", "bunzip2 --keep {file}", (".bz2",), tuple(b"BZh%d1AY&SY" % n for n in range(1, 10))
    ),
    Foreign("compressed with xz", "xz --decompress --keep --suffix={ending} {file}", (".xz",), (b"\xfd7zXZ\x00",)),
    Foreign("a PDF file", "pdftotext {file} {new}.txt", (".pdf",), (b"%PDF-",)),
    Foreign("a document", "pandoc {file} -t plain -o {new}.txt", (".docx", ".epub")),
    Foreign("an HTML page", "pandoc {file} -t plain -o {new}.txt", (".html",)),
    Foreign("Markdown text", "cp {file} {new}.txt", (".md",)),
    Foreign("UTF-32 text", _UTF_16.replace("16", "32"), magic=(b"\xff\xfe\x00\x00",)),
    Foreign("UTF-16 text", _UTF_16, magic=(b"\xff\xfe", b"\xfe\xff")),
    Foreign("compressed with gzip, and its name does not end in .gz", "mv {file} {file}.gz", magic=(b"\x1f\x8b",)),
    Foreign(
        "compressed with zstd, and its name does not end in .zst", "mv {file} {file}.zst", magic=(b"\x28\xb5\x2f\xfd",)
    ),
    Foreign("a Parquet file, and its name does not end in .parquet", "mv {file} {new}.parquet", magic=(b"PAR1",)),
    Foreign("an Arrow file, and its name does not end in .arrow", "mv {file} {new}.arrow", magic=(b"ARROW1",)),
    Foreign(
        "a pointer of Git LFS, not the file itself",
        "git lfs pull",
        magic=(b"version https://git-lfs.github.com/spec/",),
    ),
)
# Bytes of text in UTF-16 without a mark that are zero, of those at even or at odd places.
MIN_ZEROS = 0.3
# Text with fewer bytes above 127 may be damaged UTF-8.
MIN_HIGH_BYTES = 3
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_HIGH = bytes(range(0x80, 0x100))
LATIN_1 = "iconv -f WINDOWS-1252 -t UTF-8 {file} > {new}.utf8{ending}"


def unsupported(path: str, supported: Sequence[str]) -> SourceError:
    """The error for a file whose name says that tokenmill does not read it."""
    name = os.path.basename(path).lower()
    for kind in FOREIGN:
        for ending in kind.endings:
            if name.endswith(ending):
                return _error(path, f"unsupported file type: {ending} ({kind.what})", kind.command)
    return SourceError(
        f"unsupported file type: {os.path.splitext(path)[1] or os.path.basename(path)}",
        f"file         {path}",
        f"supported    {' '.join(supported)}",
        "Convert the file, or remove it from the sources.",
    )


def refuse_foreign(file: SourceFile) -> None:
    """Raise SourceError if the first bytes of a text, CSV or JSON Lines file show that it is something else."""
    data = read_sample(file)[0]
    for kind in FOREIGN:
        if data.startswith(kind.magic):
            raise _error(file.path, f"a source is {kind.what}", kind.command, file.size)
    if _is_utf_16(data):
        command = _UTF_16.replace("16", "16LE" if data[1:2] == b"\x00" else "16BE")
        raise _error(file.path, "a source is UTF-16 text without a byte order mark", command, file.size)
    if file.kind == "jsonl":
        _refuse_json(file, data.removeprefix(BYTE_ORDER_MARK))
    if _is_latin_1(data):
        raise _error(file.path, "a source is not UTF-8 but probably Windows-1252 or Latin-1", LATIN_1, file.size)


# The start of an array of objects, strings or arrays. A line such as `[7` is a bad line of JSON Lines.
_ARRAY = re.compile(rb'\s*\[\s*[{"\[\]]')


def _refuse_json(file: SourceFile, data: bytes) -> None:
    if has_values(file):
        return
    lines = [line.strip(WHITE_SPACE) for line in data.split(b"\n")]
    lines = [line for line in lines if line]
    if len(lines) > 1 and _is_json(lines[0]) and lines[1][:1] == lines[0][:1]:
        return
    if are_values(data):
        base, codec = _split_codec(file.path)
        new = f"{os.path.splitext(base)[0]}.json{codec}"
        raise SourceError(
            "a source is JSON, but not JSON Lines, and its name does not end in .json",
            f"file         {file.path}",
            "Rename it:",
            f"mv {shlex.quote(file.path)} {shlex.quote(new)}",
        )
    if _ARRAY.match(data):
        command = "jq -c '.[] | {text: .}' {file} > {new}.jsonl"
        raise _error(file.path, "a source is a JSON array whose elements are not objects", command, file.size)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _is_utf_16(data: bytes) -> bool:
    data = data[:4096]
    zeros = [data[start::2].count(0) / max(len(data[start::2]), 1) for start in (0, 1)]
    return len(data) >= 8 and max(zeros) > MIN_ZEROS and min(zeros) < MIN_ZEROS / 10


def _is_latin_1(data: bytes) -> bool:
    """Whether there are several bytes above 127, mostly beside letters, and none of them is part of valid UTF-8."""
    data = data[: 64 << 10]
    others = [character for character in data.decode(errors="surrogateescape") if character > "\x7f"]
    is_valid = any(not "\udc80" <= character <= "\udcff" for character in others)
    if len(others) < MIN_HIGH_BYTES or is_valid or _CONTROL.search(data):
        return False
    high = [place for place, byte in enumerate(data) if byte > 0x7F]
    return 2 * sum(data[max(place - 1, 0) : place + 2].translate(None, _HIGH).isalpha() for place in high) >= len(high)


def _split_codec(path: str) -> tuple[str, str]:
    """A path without the ending of a compressed file, and that ending."""
    return os.path.splitext(path) if codec_of(path) else (path, "")


def _error(path: str, headline: str, command: str, file_bytes: int | None = None) -> SourceError:
    base, _ = _split_codec(path)
    new, ending = os.path.splitext(base)
    codec = codec_of(path) if file_bytes is not None else None  # the first bytes are those of the content
    if codec:
        command = f"{codec} -dc {shlex.quote(path)} > {shlex.quote(base)} && {command}"
    values = {"file": shlex.quote(base if codec else path), "new": shlex.quote(new), "ending": ending}
    for name, value in values.items():
        command = command.replace(f"{{{name}}}", value)
    shown = [] if file_bytes is None else [f"size         {size(file_bytes)}{' compressed' if codec_of(path) else ''}"]
    advice = [] if command == _HTML else ["Convert it, and give the new file as a source:"]
    return SourceError(headline, f"file         {path}", *shown, *advice, command)
