"""Templates are programs of strangers: they can neither leave the sandbox nor fill the memory."""

from __future__ import annotations

import tracemalloc

import pytest

from tokenmill.chat.sandbox import ChatTemplate, TemplateError
from tokenmill.errors import UsageError

MESSAGES = [{"role": "user", "content": "text"}]


@pytest.mark.parametrize(
    "expression",
    [
        "messages[0].content.__class__.__mro__",
        "''.__class__",
        "messages.append(1)",
        "messages[0].update(role='x')",
        "messages[0].clear()",
        "cycler.__init__.__globals__",
        "namespace.__init__.__globals__",
        "namespace(__class__=1)",
        "namespace(self=1).__class__",
        "raise_exception.__globals__",
        "'{0.__class__.__mro__}'.format('')",
        "'{x.__class__}'.format_map({'x': 1})",
        "dict.__call__",
        "strftime_now.__self__",
        "range(10**9)",
        "'x' * 10**9",
        "10**9 * 'x'",
        "[0] * 2**30",
        "9 ** (9 ** 9)",
        "'%999999999d' % 1",
        "'%*d' % (999999999, 1)",
        "lipsum()",
        "[1, 2] | random",
        "self._TemplateReference__context",
        "x",
        "messages[0].missing.more",
    ],
)
def test_refused(expression: str) -> None:
    """What a template must not do gives an error, or nothing."""
    try:
        text = ChatTemplate("{{ " + expression + " }}", {}).render(MESSAGES)
    except (TemplateError, UsageError):
        return
    assert text == ""


def test_a_loop_that_counts_too_far_is_refused() -> None:
    """Ranges are limited; longer loops are ended by the one who supervises the worker."""
    with pytest.raises(TemplateError, match="too big"):
        ChatTemplate("{% for i in range(1000000) %}{% endfor %}", {}).render(MESSAGES)


def test_compiling_runs_nothing() -> None:
    """A template is compiled by the command itself, and rendered by workers that can be killed."""
    tracemalloc.start()
    try:
        ChatTemplate("{{ 'a' | center(100000000) }}{{ 'a'.ljust(100000000) }}", {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_templates_share_nothing() -> None:
    """One rendering leaves nothing for the next."""
    template = ChatTemplate("{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}", {})
    assert [template.render(MESSAGES) for _ in range(3)] == ["1", "1", "1"]


def test_a_template_that_is_not_one() -> None:
    """The error has Jinja's words."""
    with pytest.raises(UsageError, match=r"cannot be compiled.*endfor"):
        ChatTemplate("{% for m in messages %}", {})


def test_methods_and_keys_are_those_of_jinja() -> None:
    """The short way to attributes gives what the sandbox gives."""
    messages = [{"role": "user", "content": "a b", "items": 3, "get": 4}]
    template = "{{ messages[0].items() | list | length }} {{ messages[0]['items'] }} {{ messages[0].content.split() }} "
    template += (
        "{{ messages[0].nothing is defined }} {% for m in messages %}{{ loop.first }}{{ loop.last }}{% endfor %}"
    )
    assert ChatTemplate(template, {}).render(messages) == "4 3 ['a', 'b'] False TrueTrue"
