"""Recognize files that tokenmill does not read, by name or by their first bytes, and name the command that converts."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence

from tokenmill.errors import SourceError
from tokenmill.humanize import size
from tokenmill.sources.delimited import codec_of
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.file_start import BYTE_ORDER_MARK, read_sample
from tokenmill.sources.json_values import are_values, has_values
from tokenmill.sources.missing_column import WHITE_SPACE

_WARC = (
    'python -c "import json,sys;from warcio import ArchiveIterator as A;[print(json.dumps(dict(url=r.rec_headers.'
    "get_header('WARC-Target-URI'),text=r.content_stream().read().decode('utf-8','replace')))) for r in "
    "A(sys.stdin.buffer) if r.rec_type=='conversion']\" < {file} > {new}.jsonl"
)
_PANDAS = 'python -c "import pandas,sys;pandas.{read}(sys.argv[1]).to_parquet(sys.argv[2])" {file} {new}.parquet'
_HTML = "WARC files hold web pages as HTML. Take the .wet files, which hold their text, or extract the text first."

# What a file is and the command that converts it, by the ending of its name. {new} is the name without the ending.
TYPES: dict[str, tuple[str, str]] = {
    ".warc": ("a web archive (WARC)", _HTML),
    ".warc.gz": ("a web archive (WARC)", _HTML),
    ".wet": ("the text of a web archive (WET)", _WARC),
    ".wet.gz": ("the text of a web archive (WET)", _WARC),
    ".xlsx": ("an Excel workbook", _PANDAS.replace("{read}", "read_excel")),
    ".orc": ("an ORC file", _PANDAS.replace("{read}", "read_orc")),
    ".pkl": ("a pickle", _PANDAS.replace("{read}", "read_pickle")),
    ".avro": ("an Avro file", "avro-tools tojson {file} > {new}.jsonl"),
    ".zip": ("a zip archive", "unzip {file} -d {new}"),
    ".tar": ("a tar archive", "tar -xf {file}"),
    ".tar.gz": ("a tar archive", "tar -xf {file}"),
    ".tgz": ("a tar archive", "tar -xf {file}"),
    ".tar.zst": ("a tar archive", "tar --zstd -xf {file}"),
    ".7z": ("a 7-Zip archive", "7z x {file}"),
    ".bz2": ("compressed with bzip2", "bunzip2 --keep {file}"),
    ".xz": ("compressed with xz", "xz --decompress --keep {file}"),
    ".lz4": ("compressed with lz4", "lz4 -d {file}"),
    ".pdf": ("a PDF file", "pdftotext {file} {new}.txt"),
    ".docx": ("a Word document", "pandoc {file} -t plain -o {new}.txt"),
    ".epub": ("an e-book", "pandoc {file} -t plain -o {new}.txt"),
    ".html": ("an HTML page", "pandoc {file} -t plain -o {new}.txt"),
    ".md": ("Markdown text", "cp {file} {new}.txt"),
    ".sqlite": ("an SQLite database", "sqlite3 -csv -header {file} 'select * from TABLE' > {new}.csv"),
    ".db": ("a database", "sqlite3 -csv -header {file} 'select * from TABLE' > {new}.csv"),
}
# What a file is by its first bytes, whatever its name says, and what helps.
MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (b"\xff\xfe\x00\x00", "UTF-32 text", "iconv -f UTF-32 -t UTF-8 {file} > {new}.utf8{ending}"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 {file} > {new}.utf8{ending}"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8 {file} > {new}.utf8{ending}"),
    (b"\x1f\x8b", "compressed with gzip, and its name does not end in .gz", "mv {file} {file}.gz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, and its name does not end in .zst", "mv {file} {file}.zst"),
    *((b"BZh%d1AY&SY" % level, "compressed with bzip2", "bunzip2 --keep {file}") for level in range(1, 10)),
    (b"\xfd7zXZ\x00", "compressed with xz", "xz --decompress --keep --suffix={ending} {file}"),
    (b"PK\x03\x04", "a zip archive", "unzip {file} -d {new}"),
    (b"PAR1", "a Parquet file, and its name does not end in .parquet", "mv {file} {new}.parquet"),
    (b"ARROW1", "an Arrow file, and its name does not end in .arrow", "mv {file} {new}.arrow"),
    (b"%PDF-", "a PDF file", "pdftotext {file} {new}.txt"),
    (b"SQLite format 3\x00", "an SQLite database", TYPES[".sqlite"][1]),
    (b"WARC/1.", "a web archive", _WARC),
    (b"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, not the file itself", "git lfs pull"),
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
    ending = next((end for end in sorted(TYPES, key=len, reverse=True) if name.endswith(end)), None)
    if ending is None:
        return SourceError(
            f"unsupported file type: {os.path.splitext(path)[1] or os.path.basename(path)}",
            f"file         {path}",
            f"supported    {' '.join(supported)}",
            "Convert the file, or remove it from the sources.",
        )
    what, command = TYPES[ending]
    return _error(path, f"unsupported file type: {ending} ({what})", command)


def refuse_foreign(file: SourceFile) -> None:
    """Raise SourceError if the first bytes of a text, CSV or JSON Lines file show that it is something else."""
    data = read_sample(file)[0]
    for magic, what, command in MAGIC:
        if data.startswith(magic):
            raise _error(file.path, f"a source is {what}", command, file.size)
    if _is_utf_16(data):
        order = "LE" if data[1:2] == b"\x00" else "BE"
        command = f"iconv -f UTF-16{order} -t UTF-8 {{file}} > {{new}}.utf8{{ending}}"
        raise _error(file.path, "a source is UTF-16 text without a byte order mark", command, file.size)
    if file.kind == "jsonl":
        _refuse_json(file, data.removeprefix(BYTE_ORDER_MARK))
    if _is_latin_1(data):
        what = "not UTF-8 but probably Windows-1252 or Latin-1"
        raise _error(file.path, f"a source is {what}", LATIN_1, file.size)


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
    ending = next((end for end in (".gz", ".zst") if path.lower().endswith(end)), "")
    return path[: len(path) - len(ending)], path[len(path) - len(ending) :]


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
