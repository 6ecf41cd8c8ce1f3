"""Vocabularies with tokens for fill-in-the-middle, and the pieces of documents of a store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.corpora import SMALL_JSON
from tokenmill.store.reader import Store
from tokenmill.tokenization.fim_tokens import FAMILIES

QWEN = FAMILIES["qwen"]


def write_tokenizer(path: Path, *families: str, base: str = SMALL_JSON, special: bool = True) -> str:
    """A tokenizer.json with the tokens of these families."""
    content = json.loads(Path(base).read_text())
    number = max(token["id"] for token in content["added_tokens"]) + 1
    for text in (token for family in families for token in FAMILIES[family]):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        content["added_tokens"].append({"id": number, "content": text, "special": special, **flags})
        number += 1
    path.write_text(json.dumps(content))
    return str(path)


@dataclass(frozen=True)
class Pieces:
    """A document of a store, taken apart. `order` is `plain`, `psm` or `spm`."""

    order: Literal["plain", "psm", "spm"]
    prefix: str
    middle: str = ""
    suffix: str = ""

    @property
    def text(self) -> str:
        """The text of the source, if the middle of SPM, which has no mark, is in the prefix."""
        return self.prefix + self.middle + self.suffix


def pieces_of(store: Store, position: int) -> Pieces:
    """The pieces of a document, whose text spells no control token. The prefix of SPM has the middle, too."""
    job = store.job
    ids = [job.tokenizer.added_tokens[token] for token in job.fim_tokens]
    tokens = store[position].tolist()
    own = tokens[job.begin is not None : len(tokens) - (job.end is not None)]

    def text(some: list[int]) -> str:
        return b"".join(store.token_bytes(token) for token in some).decode()

    places = [[index for index, token in enumerate(own) if token == each] for each in ids]
    if places == [[], [], []]:
        return Pieces("plain", text(own))
    ((pre,), (suf,), (mid,)) = places
    assert pre == 0
    if suf == 1:
        assert mid > suf
        return Pieces("spm", text(own[mid + 1 :]), "", text(own[suf + 1 : mid]))
    assert suf < mid
    return Pieces("psm", text(own[1:suf]), text(own[mid + 1 :]), text(own[suf + 1 : mid]))
