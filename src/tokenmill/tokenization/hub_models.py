"""Names of models on the Hub: `ORG/MODEL`, `ORG/MODEL@REVISION` and `hf://ORG/MODEL@REVISION/FILE`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec

from tokenmill.errors import UsageError
from tokenmill.storage.hub.models import CONFIG, MAIN, ModelFolder
from tokenmill.tokenization.model_files import VOCABULARIES, ModelFiles, read_bytes, vocabulary_of
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.vocabularies import Vocabulary

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_PLAIN = re.compile(rf"({_NAME}/{_NAME})(?:@(\S+))?")
_ADDRESS = re.compile(
    rf"hf://(?!(?:datasets|spaces|buckets)/)({_NAME}/{_NAME})(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.+))?"
)
SCHEME = "hf://"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the Hub, a branch, tag or commit of it, and a file of it if one was named."""

    repository: str
    revision: str = MAIN
    file: str | None = None

    @property
    def address(self) -> str:
        """The name of the model and the revision as an address."""
        return f"{SCHEME}{self.repository}@{self.revision}" + (f"/{self.file}" if self.file else "")

    def at(self, commit: str) -> HubModel:
        """The same file of the same model at a commit."""
        return HubModel(self.repository, commit, self.file)

    def is_origin_of(self, spec: TokenizerSpec) -> bool:
        """Whether a spec was resolved from this name, or from another name of the same commit."""
        try:
            before = parse(spec.source or "")
        except UsageError:  # a damaged run.json
            return False
        if before is None or (before.repository, before.file) != (self.repository, self.file):
            return False
        return self.revision in (before.revision, spec.commit)


def parse(name: str) -> HubModel | None:
    """The model that a name gives; None if the name is not one of the Hub. Local paths are not looked at."""
    if name.lower().startswith(SCHEME):
        match = _ADDRESS.fullmatch(f"hf{name[2:]}")
        if match is None or ".." in (match[3] or "").split("/"):
            raise UsageError(
                "this is not an address of a model on the Hub",
                f"given        {name}",
                "expected     hf://ORG/MODEL, hf://ORG/MODEL@REVISION or hf://ORG/MODEL@REVISION/tokenizer.json",
            )
        return HubModel(match[1], unquote(match[2] or MAIN), match[3])
    match = _PLAIN.fullmatch(name)
    return HubModel(match[1], unquote(match[2] or MAIN)) if match else None


def is_local(name: str) -> bool:
    """Whether a name is a path: one that exists, or one that can only be a path."""
    return name.startswith(("./", "../", "/", "~")) or (not name.startswith(SCHEME) and os.path.exists(name))


def from_hub(model: HubModel) -> Vocabulary:
    """Fetch the files of a tokenizer, and record the commit that they are from."""
    probed = (*([model.file] if model.file else VOCABULARIES), CONFIG)
    folder = ModelFolder(model.repository, None if model.revision == MAIN else model.revision, probed)

    def read(name: str) -> bytes | None:
        path = folder.path(name)
        return None if path is None else read_bytes(path)

    vocabulary = vocabulary_of(ModelFiles(model.repository, model.repository, folder.names, read), model.file)
    spec = msgspec.structs.replace(vocabulary.spec, source=model.address, commit=folder.commit)
    return Vocabulary(spec, vocabulary.content)
