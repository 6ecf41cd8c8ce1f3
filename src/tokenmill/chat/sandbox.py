"""Compiles chat templates in Jinja's sandbox, with what transformers gives them. The only module that imports jinja2.

What transformers gives and this does not: `lipsum` and the filter `random`, whose results differ from run to run, and
the clock. `strftime_now` formats the constant `date`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenmill.errors import UsageError

if TYPE_CHECKING:
    import jinja2

# The largest result of `*`, and of a format with `%`, as a length or as a number of bits.
MAX_RESULT = 1 << 24
# The variables that a template gets of a conversation.
GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
# Names that a template may use of values of these types. Those that format text, or change a value, are not among them.
_OF_DICT = frozenset(dir(dict))
_HARMLESS: dict[type, frozenset[str]] = {
    dict: frozenset({"get", "items", "keys", "values"}),
    str: frozenset(name for name in dir(str) if name.isalpha() and not name.startswith("format")),
}
_PLAIN = frozenset({bool, dict, int, list, str})
_OF_LOOP = frozenset({"first", "last", "index", "index0", "length", "previtem", "nextitem"})


class TemplateError(Exception):
    """A template did not render a conversation. The text says why, in its own words or those of Jinja."""


class NoDateError(TemplateError):
    """A template asks for the date, and was given none."""


class ChatTemplate:
    """A compiled template.

    Attributes:
        has_tags: Whether it has `{% generation %}`, in any spelling.
        needs_date: Whether it asks for the date somewhere.
    """

    def __init__(self, source: str, constants: dict[str, Any]) -> None:
        """Raises UsageError if the template cannot be compiled."""
        self._constants = constants
        self._wrap: Callable[[str], str] | None = None
        environment = _environment(self)
        self.has_tags = False
        try:
            self._template: jinja2.Template = environment.from_string(source)
        except Exception as error:  # Jinja raises what its lexer, its parser and Python's compiler raise
            raise UsageError(f"the chat template cannot be compiled: {error}") from error
        self.needs_date = "strftime_now" in source

    def render(
        self,
        messages: list[Any],
        tools: list[Any] | None = None,
        *,
        prompt: bool = False,
        wrap: Callable[[str], str] | None = None,
    ) -> str:
        """The text of a conversation, with the generation prompt if `prompt`. `wrap` gets the text between tags.

        Raises TemplateError.
        """
        self._wrap = wrap
        variables = {**self._constants, "messages": messages, "tools": tools, "documents": None}
        try:
            return str(self._template.render({**variables, "add_generation_prompt": prompt}))
        except (MemoryError, TemplateError):
            raise
        except Exception as error:  # a template can raise anything
            raise TemplateError(str(error) or type(error).__name__) from error
        finally:
            self._wrap = None

    def between_tags(self, text: str) -> str:
        """The text between `{% generation %}` and `{% endgeneration %}`, as it is to appear."""
        return text if self._wrap is None else self._wrap(text)

    def date(self, form: str) -> str:
        """The date of the constants, formatted. The clock is never asked: a store would change from day to day."""
        date = self._constants.get("date")
        if date is None:
            raise NoDateError("the template asks for the date")
        try:
            return dt.datetime.fromisoformat(str(date)).strftime(form)
        except ValueError as error:
            raise TemplateError(f"the date {date!r} is not one: {error}") from error


def _environment(template: ChatTemplate) -> jinja2.Environment:  # noqa: C901 - its classes derive from those of an extra
    try:
        import jinja2  # noqa: PLC0415 - an extra
        import jinja2.compiler  # noqa: PLC0415
        import jinja2.ext  # noqa: PLC0415
        import jinja2.sandbox  # noqa: PLC0415
    except ImportError as error:
        raise UsageError("Jinja is not installed", "Install it: pip install 'tokenmill[chat]'") from error

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 - Jinja's interface

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            template.has_tags = True
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_wrap"), [], [], body).set_lineno(line)

        def _wrap(self, caller: Callable[[], str]) -> str:
            return template.between_tags(caller())

    class Generator(jinja2.compiler.CodeGenerator):
        def _output_child_to_const(self, node: Any, frame: Any, finalize: Any) -> str:
            """Without filters and methods of constants, which would run while a template is compiled."""
            if not isinstance(node, jinja2.nodes.TemplateData):
                raise jinja2.nodes.Impossible
            return super()._output_child_to_const(node, frame, finalize)

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})
        code_generator_class = Generator

        def getattr(self, obj: Any, attribute: str) -> Any:
            """As the sandbox does it, without its checks where their result is known. They take most of its time."""
            kind: type = type(obj)
            if kind is dict and attribute not in _OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if attribute in _HARMLESS.get(kind, ()) or (kind is jinja2.runtime.LoopContext and attribute in _OF_LOOP):
                return getattr(obj, attribute)
            if kind is Namespace and not attribute.startswith("_"):
                value = getattr(obj, attribute, None)
                if type(value) in _PLAIN:
                    return value
            return super().getattr(obj, attribute)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _refuse_large(operator, left, right)
            return super().call_binop(context, operator, left, right)

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args: Any, **values: Any) -> None:  # `self` may be a value
            for name in (values := dict(*args[1:], **values)):
                _check_name(name)
            jinja2.utils.Namespace.__init__(args[0], values)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            super().__setitem__(name, value)

    def _check_name(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")

    def raise_exception(message: Any) -> None:
        raise TemplateError(str(message))

    extensions = [Generation, jinja2.ext.loopcontrols]
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
    environment.filters["tojson"] = _to_json
    del environment.filters["random"], environment.globals["lipsum"]
    given = {"raise_exception": raise_exception, "strftime_now": template.date, "namespace": Namespace, "dict": _Dict()}
    environment.globals.update(given)
    return environment


class _Dict:
    """What a template may do with `dict`."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:  # the signature of the filter of transformers, without the escapes of Jinja's own
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse_large(operator: str, left: Any, right: Any) -> None:
    """Raise TemplateError if the result of an operator would fill the memory."""
    if operator == "%":
        is_large = isinstance(left, str) and any(int(digits) > MAX_RESULT for digits in _numbers(left))
        is_large |= isinstance(left, str) and "*" in left
    elif operator == "**":
        is_large = isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_RESULT
    else:
        sizes = [len(value) if hasattr(value, "__len__") else value for value in (left, right)]
        is_large = any(hasattr(value, "__len__") for value in (left, right))
        is_large &= all(isinstance(size, int) for size in sizes) and sizes[0] * sizes[1] > MAX_RESULT
    if is_large:
        raise TemplateError(f"the result of {operator} would be too large")


def _numbers(text: str) -> list[str]:
    return "".join(char if char.isdecimal() else " " for char in text).split()
