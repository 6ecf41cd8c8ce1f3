"""From the options about conversations, and the files of the model, to the chat template of a job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from tokenmill.chat.renderer import Renderer
from tokenmill.chat.sandbox import GIVEN
from tokenmill.chat.spec import ALL, ASSISTANT, LAST, MASK, WHOLE, Chat
from tokenmill.choices import Prefilled, Turns
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import Executor
from tokenmill.options import JobOptions
from tokenmill.store.job import TEXT
from tokenmill.tokenization.chat_files import DEFAULT, TOOL_USE, ChatFiles, chat_files
from tokenmill.tokenization.control_tokens import MAX_MARKS, marks_of
from tokenmill.tokenization.spec import TokenizerSpec

# The options that mean nothing without --messages.
CHAT_OPTIONS = ("tools", "chat_template", "chat_set", "train", "turns", "prefilled", "roles")
MAX_TEMPLATE_BYTES = 1 << 20


def chat_values(options: JobOptions) -> dict[str, Any]:
    """The fields of a chat that options alone decide. Raises UsageError for an invalid one."""
    if not options.messages:
        given = next((name for name in CHAT_OPTIONS if getattr(options, name)), None)
        if given is not None:
            option = f"--{given.replace('_', '-')}"
            raise UsageError(f"{option} needs --messages", "It is about conversations: name their column.")
        return {}
    for name, value, choices in (("turns", options.turns, Turns), ("prefilled", options.prefilled, Prefilled)):
        if value is not None and value not in get_args(choices):
            raise UsageError(f"--{name} is {' or '.join(get_args(choices))}, not {value!r}")
    train = tuple(role.strip() for role in (options.train or ASSISTANT).split(","))
    if not all(train) or (len(train) > 1 and {LAST, ALL} & set(train)):
        raise UsageError(f"--train {options.train} is not assistant, last, all, or roles with commas between them")
    settings = [options.chat_set] if isinstance(options.chat_set, str) else options.chat_set
    constants = {name: _value(text) for name, text in map(_constant, settings)}
    roles = dict(_pair("--roles", pair) for pair in options.roles.split(",")) if options.roles else {}
    return {
        "constants": constants,
        "train": train,
        "turns": options.turns or WHOLE,
        "prefilled": options.prefilled or MASK,
        "roles": roles,
    }


def options_of_chat(chat: Chat | None) -> dict[str, Any]:
    """The options that another store takes from this chat. The template and its constants are taken by `make_chat`."""
    if chat is None:
        return {}
    roles = ",".join(f"{name}={role}" for name, role in chat.roles.items())
    return {"train": ",".join(chat.train), "turns": chat.turns, "prefilled": chat.prefilled, "roles": roles or None}


def _constant(text: str) -> tuple[str, str]:
    name, value = _pair("--chat-set", text)
    if not name.isidentifier() or name in GIVEN:
        raise UsageError(f"--chat-set {text}: {name!r} cannot be set", f"Templates get {', '.join(GIVEN)} otherwise.")
    return name, value


def _pair(option: str, text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name.strip():
        raise UsageError(f"{option} {text!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def _value(text: str) -> Any:
    """A value as JSON has it, or the text itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


@dataclass(frozen=True, slots=True)
class FormerChat:
    """The chat of an existing store: that of --like, or that of the run to be continued."""

    chat: Chat
    is_like: bool


def make_chat(options: JobOptions, spec: TokenizerSpec, former: FormerChat | None = None) -> Chat | None:
    """The chat of a job; None without messages. Raises UsageError if there is no template."""
    values = chat_values(options)
    if not values:
        return None
    if former is not None and former.is_like:
        files = ChatFiles({DEFAULT: former.chat.template}, former.chat.constants)
    else:
        files = _files(options, spec, former)
    template = _template(options, spec, files)
    constants = {**files.tokens, **values.pop("constants")}
    chat = Chat(template=template, constants=constants, special_tokens=tuple(spec.special_tokens), **values)
    if options.special == TEXT:
        few = spec.special_tokens if len(spec.special_tokens) <= MAX_MARKS else ()
        chat = msgspec.structs.replace(chat, marks=marks_of(spec, [*few, template, *map(str, constants.values())]))
    Renderer(chat)  # raises for a template that cannot be compiled
    return chat


def _files(options: JobOptions, spec: TokenizerSpec, former: FormerChat | None) -> ChatFiles:
    """The files of the model. What a run was started with stands in for those that are gone."""
    try:
        files = chat_files(options.tokenizer, spec)
    except TokenizerError:
        if former is None:
            raise
        files = ChatFiles()
    if former is None or files.templates:
        return files
    tokens = {name: value for name, value in former.chat.constants.items() if name.endswith("_token")}
    return ChatFiles({DEFAULT: former.chat.template}, tokens)


def _template(options: JobOptions, spec: TokenizerSpec, files: ChatFiles) -> str:
    """The template that is given, or that of the model."""
    if options.chat_template is not None:
        given = os.fspath(options.chat_template)
        if given in files.templates and not os.path.exists(given):
            return files.templates[given]
        return _read(os.path.expanduser(given), sorted(files.templates))
    name = TOOL_USE if options.tools and TOOL_USE in files.templates else DEFAULT
    if name in files.templates:
        return files.templates[name]
    if files.templates:
        names = ", ".join(sorted(files.templates))
        headline = f"{spec.name} has no default chat template"
        raise UsageError(headline, f"others       {names}", "Give one: --chat-template NAME.")
    raise UsageError(
        f"{spec.name} has no chat template",
        "Give a file with one, such as that of the instruct model: --chat-template FILE",
        "Without a template, make a list of {text, train} of each conversation: --segments NAME.",
    )


def _read(path: str, names: list[str]) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(content) <= MAX_TEMPLATE_BYTES:
            return content.decode()
        reason = f"it is larger than {MAX_TEMPLATE_BYTES:,} bytes"
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "it is not valid UTF-8"
    known = [f"templates of the model   {', '.join(names)}"] if names else []
    raise UsageError(f"the chat template {path} cannot be read", f"reason       {reason}", *known)


class CheckTemplate:
    """The function that learns the turns of a template, which may be endless: it runs in a worker."""

    def __call__(self, chat: Chat) -> None:
        """Raise UsageError for a template that renders nothing, or asks for a date that is not given."""
        Renderer(chat).require_turns()


def check_template(chat: Chat | None, executor: Executor) -> None:
    """Raise if a chat template cannot be used."""
    if chat is not None:
        list(run_all(executor, CheckTemplate(), [chat], lambda _: "the chat template"))
