"""What the reference cannot encode has no tokens with any engine; what gigatoken cannot do, the reference does."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tokenmill
from tests.support import DATA
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tokenmill.choices import EngineName
from tokenmill.errors import CorruptStore, TokenizerError
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.verify import Verify
from tokenmill.storage import folder_at
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.store.job import require_run
from tokenmill.tokenization.engines.gigatoken import GigatokenEngine
from tokenmill.tokenization.engines.protocol import CannotEncode, Encoded, Tokens
from tokenmill.tokenization.engines.tiktoken import TiktokenEngine
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import MAX_WHITE_SPACE_BYTES, Tokenizer, documents_with_long_white_space

END = 1199
HARD = " " * 1_000_000 + "x"  # tiktoken's regex engine gives up


@pytest.mark.parametrize("engine", ["gigatoken", "tiktoken"])
def test_engines_quarantine_the_same_document_for_the_same_reason(tmp_path: Path, engine: EngineName) -> None:
    """A document on which tiktoken fails is in quarantine with tiktoken's error, whichever engine is used."""
    source = write_parquet(tmp_path / "a.parquet", ["one", HARD, "two"])
    result = tokenmill.prepare(
        source,
        tokenizer=SMALL_TIKTOKEN,
        out=str(tmp_path / "out"),
        eot=END,
        engine=engine,
        workers=1,
        max_bad=1.0,
    )
    assert (result.documents, result.engine) == (2, engine)
    [entry] = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert (entry["row"], entry["reason"]) == (1, "raised CannotEncode")
    assert entry["detail"].startswith("tiktoken cannot encode the document (")
    assert tokenmill.verify(str(tmp_path / "out"), all=True).documents_compared == 2


def test_verify_names_a_stored_document_that_the_reference_cannot_encode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that holds such a document does not verify: the error names the file and the row."""
    source = write_parquet(tmp_path / "a.parquet", ["one", "hard", "two"])
    tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, out=str(tmp_path / "out"), eot=END, workers=1)
    folder = folder_at(str(tmp_path / "out"))
    run = require_run(folder)
    frozen = load_existing(folder, run)
    encode = TiktokenEngine._encode

    def fails(self: TiktokenEngine, texts: list[str]) -> list[Tokens]:
        if "hard" in texts:
            raise RuntimeError("StackOverflow")
        return encode(self, texts)

    monkeypatch.setattr(TiktokenEngine, "_encode", fails)
    [task] = plan.tasks(frozen.plan, frozen.sources, range(run.units))
    with pytest.raises(CorruptStore, match=r"a\.parquet\n.*row 1 is not in quarantine, but tiktoken cannot encode"):
        Verify(folder.root, run.job, 1.0, WorkerLimits(1 << 30))(task)


@pytest.mark.parametrize("scheme", ["gpt2", "cl100k_base", "o200k_base"])
def test_a_failure_of_the_reference_is_an_error_that_names_the_document(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tiktoken raises becomes a TokenizerError with the document's place, be it a ValueError or a panic."""
    vocabulary = resolve(f"{DATA / 'small.tiktoken'}:{scheme}")
    texts = pa.array(["fine", "also fine", HARD], pa.large_string())
    for engine in ("gigatoken", "tiktoken"):
        tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, engine)
        with pytest.raises(TokenizerError, match=r"tiktoken cannot encode the document \(.+\)"):
            tokenizer.encode(texts)
    encoding = TiktokenEngine(vocabulary.spec, vocabulary.content)
    ordinary = encoding._encoding.encode_ordinary  # this one panics
    monkeypatch.setattr(encoding._encoding, "encode_to_numpy", lambda text, **_: np.array(ordinary(text), np.uint32))
    with pytest.raises(CannotEncode, match="StackOverflow") as caught:
        encoding.encode(texts)
    assert caught.value.position == 2


@pytest.mark.fast
@pytest.mark.parametrize("unit", [" ", "\n", " \t\r\n", "\u3000", "\u00a0 ", "\u2028"])
@pytest.mark.parametrize("before", ["", "x" * 4097, "\u4e2d"])
def test_long_white_space_is_found_wherever_it_is(unit: str, before: str) -> None:
    """A run of any white space of the limit or more is found; half of it is not; what is around it does not matter."""
    size = len(unit.encode())
    long, half = (unit * (limit // size + 1) for limit in (MAX_WHITE_SPACE_BYTES, MAX_WHITE_SPACE_BYTES // 2))
    texts = ["", before + long + "x", "y" * MAX_WHITE_SPACE_BYTES * 2, before + half + "x" * 300_000, before + long]
    assert documents_with_long_white_space(*text_buffers(pa.array(texts, pa.large_string()))) == [1, 4]


def test_the_limit_of_white_space_is_far_below_what_the_reference_fails_on() -> None:
    """The reference encodes a run of three times the limit."""
    vocabulary = resolve(SMALL_TIKTOKEN)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "tiktoken")
    text = " " * (3 * MAX_WHITE_SPACE_BYTES) + "x"
    assert len(tokenizer.encode(pa.array([text], pa.large_string())).tokens) > 0


def test_a_rank_file_that_gigatoken_cannot_load_falls_back(tmp_path: Path) -> None:
    """A panic of gigatoken while it loads is a notice, and the reference encodes."""
    tokens = [base64.b64decode(line.split()[0]) for line in (DATA / "small.tiktoken").read_bytes().splitlines()]
    tokens[-1] = b"zq~zq"  # no two tokens make it
    path = tmp_path / "odd.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    vocabulary = resolve(f"{path}:gpt2")
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    assert (tokenizer.engine, tokenizer.mismatch) == ("tiktoken", None)
    assert "gigatoken does not support odd.tiktoken" in tokenizer.notices[0]
    source = write_parquet(tmp_path / "a.parquet", ["one", "two zq~zq"])
    result = tokenmill.prepare(source, tokenizer=f"{path}:gpt2", out=str(tmp_path / "out"), eot=END, workers=1)
    assert (result.documents, result.engine) == (2, "tiktoken")


@pytest.mark.fast
def test_a_panic_of_gigatoken_while_it_encodes_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is encoded by the reference, which goes on, and a notice says so; it is not a mismatch."""

    class PanicException(BaseException):
        """What pyo3 raises."""

    def panic(self: GigatokenEngine, *_: object) -> Encoded:
        raise PanicException("index out of bounds")

    vocabulary = resolve(SMALL_JSON)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    monkeypatch.setattr(GigatokenEngine, "_encode_slices", panic)
    text = pa.array(["some text"], pa.large_string())
    found = tokenizer.encode(text).tokens
    assert np.array_equal(found, tokenizer.reference.encode(text).tokens)
    assert (tokenizer.engine, tokenizer.mismatch) == ("tokenizers", None)
    assert "index out of bounds" in tokenizer.notices[0]


@pytest.mark.fast
def test_engines_get_the_bytes_that_were_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both engines of a kind work from the content alone, and leave no file behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (SMALL_TIKTOKEN, SMALL_JSON):
        vocabulary = resolve(name)
        tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
        assert tokenizer.engine == "gigatoken"
        assert list(tmp_path.iterdir()) == []
