"""The chat templates of a model, and the special tokens that its configuration names, as templates get them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.errors import TokenizerError
from tokenmill.storage.hub.models import ModelFolder
from tokenmill.tokenization import hub_models
from tokenmill.tokenization.model_files import CONFIG, ModelFiles, read_bytes
from tokenmill.tokenization.objects import is_tokenizer_object
from tokenmill.tokenization.resolve import local_files
from tokenmill.tokenization.spec import TokenizerSpec

DEFAULT, TOOL_USE = "default", "tool_use"
TEMPLATE, TEMPLATE_JSON, NAMED = "chat_template.jinja", "chat_template.json", "additional_chat_templates"
TOKENS_MAP = "special_tokens_map.json"
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, slots=True)
class ChatFiles:
    """The templates of a model by their names, and its `bos_token`, `eos_token` and others."""

    templates: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)


def chat_files(tokenizer: Any, spec: TokenizerSpec) -> ChatFiles:
    """Read the files of a tokenizer. An encoding and a file of ranks have no templates."""
    if is_tokenizer_object(tokenizer):
        return _of_object(tokenizer)
    model = hub_models.parse(spec.source) if spec.source else None
    if model is not None:
        names = (CONFIG, TEMPLATE, TEMPLATE_JSON, TOKENS_MAP, f"{NAMED}/{TOOL_USE}.jinja")
        folder = ModelFolder(model.repository, spec.commit or model.revision, names, asks_first=True)
        found = ModelFiles(model.repository, model.repository, folder.names, _reader(folder))
        return _read(found, os.path.dirname(model.file or ""))
    path = os.path.expanduser(os.fspath(tokenizer))
    if os.path.isdir(path):
        return _read(_local(path), "")
    return _read(_local(os.path.dirname(path)), "") if path.endswith((".json", ".model")) else ChatFiles()


def _local(directory: str) -> ModelFiles:
    files, named = local_files(directory, directory), os.path.join(directory, NAMED)
    beside = [f"{NAMED}/{name}" for name in sorted(os.listdir(named))] if os.path.isdir(named) else []
    return replace(files, names=[*files.names, *beside])


def _reader(folder: ModelFolder) -> Any:
    def read(name: str) -> bytes | None:
        path = folder.path(name)
        return None if path is None else read_bytes(path)

    return read


def _read(files: ModelFiles, directory: str) -> ChatFiles:
    """The templates of a directory. With files of templates, those of the configuration are not used (transformers)."""

    def text(name: str) -> str | None:
        content = files.read(os.path.join(directory, name))
        return None if content is None else content.decode(errors="replace")

    config, prefix = _object(text(CONFIG), CONFIG), f"{directory}/" if directory else ""
    paths = [name.removeprefix(prefix) for name in files.names if name.startswith(prefix) and name.endswith(".jinja")]
    templates = {os.path.basename(path)[: -len(".jinja")]: text(path) for path in paths if path.startswith(f"{NAMED}/")}
    templates |= {DEFAULT: text(TEMPLATE)} if TEMPLATE in paths else {}
    found = (
        _named(templates)
        or _named(config.get("chat_template"))
        or _named(_object(text(TEMPLATE_JSON), TEMPLATE_JSON).get("chat_template"))
    )
    return ChatFiles(found, _tokens({**_object(text(TOKENS_MAP), TOKENS_MAP), **config}))


def _of_object(tokenizer: Any) -> ChatFiles:
    """Those of a tokenizer of transformers."""
    tokens = _tokens(getattr(tokenizer, "special_tokens_map", {}))
    return ChatFiles(_named(getattr(tokenizer, "chat_template", None)), tokens)


def _named(found: Any) -> dict[str, str]:
    """A template, a list of {name, template}, or a dict of them."""
    if isinstance(found, list):
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
    found = found if isinstance(found, dict) else {DEFAULT: found}
    return {str(name): template for name, template in found.items() if isinstance(template, str)}


def _tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {f"{role}_token": config.get(f"{role}_token") for role in _ROLES}
    spelled = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: str(token) for name, token in spelled.items() if token is not None}


def _object(content: str | None, name: str) -> dict[str, Any]:
    try:
        found = json.loads(content or "{}")
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"the {name} of the tokenizer is not valid JSON", f"reason       {error}") from error
    return found if isinstance(found, dict) else {}
