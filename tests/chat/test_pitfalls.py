"""Each way in which masks of conversations are made wrong elsewhere, by its number, has a test.

Others are where their rule is: 1 (begin tokens), 18 (named templates), 27 (endless templates), 28 (erasure) and 29 (the
same bytes for any workers) in `tests/pipeline/test_messages.py`, 23 (normalizers and prefix spaces) in
`tests/tokenization/test_token_places.py`, 24 (shifts by one) in `tests/exports/test_masks.py` and `test_packed.py`, 25
(packing that cuts) in `tests/training/test_whole.py`. The templates are our own, in the manner of those of models.
"""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.chat.renderer import NOT_FOUND, REFUSED, CannotRender, Rendered, Renderer
from tokenmill.chat.spec import Chat
from tokenmill.errors import UsageError

HEADER = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = HEADER + "{{ m.content }}<|im_end|>\n{% endfor %}" + PROMPT
TRIMMED = HEADER + "{{ m.content | trim }}<|im_end|>\n{% endfor %}" + PROMPT
# Reasoning of the last turn only, which the prompt begins.
THINKING = (
    HEADER + "{% if m.role == 'assistant' %}"
    "{% if loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
# The next header ends a turn.
HEADER_STOPS = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# The end token is at the end of the text only.
END_AT_END = (
    "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant: {% else %}{{ eos_token }}{% endif %}"
)
# The last turn ends with another token than the others.
LAST_DIFFERS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}"
    "{% if m.role == 'assistant' and loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# A tool's result is inside of the assistant's turn, which goes on after it.
TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}<result>{{ m.content }}</result>"
    "{% elif m.role == 'assistant' and loop.index0 and messages[loop.index0 - 1].role == 'tool' %}"
    "{{ m.content }}<|end|>"
    "{% else %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call><|go|>"
    "{% endfor %}{% if not m.tool_calls %}<|end|>{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|assistant|>{% endif %}"
)
EOS = {"eos_token": "</s>"}


def user(text: str = "Hi?", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def answer(text: str = "Yes.", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def render(template: str, *messages: dict[str, Any], tools: list[Any] | None = None, **chat: Any) -> Rendered:
    """The document of a conversation."""
    renderer = Renderer(Chat(template=template, **{"constants": EOS, **chat}))
    (rendered,) = renderer.render({"messages": list(messages), "tools": tools})
    return rendered


def trained(template: str, *messages: dict[str, Any], **chat: Any) -> list[str]:
    """The texts that are trained on."""
    rendered = render(template, *messages, **chat)
    data = rendered.text.encode()
    return [data[begin:end].decode() for begin, end in rendered.spans]


def test_2_the_newline_of_the_header_is_not_trained() -> None:
    """Newlines after the header and those of the content are told apart, though they may become one token."""
    assert trained(CHATML, user(), answer("\n\nYes.")) == ["\n\nYes.<|im_end|>"]


def test_3_white_space_between_prompt_and_answer() -> None:
    """A space that the prompt ends with belongs to the prompt."""
    assert trained(END_AT_END, user(), answer("ok")) == ["ok\n</s>"]


def test_4_a_last_character_of_several_bytes() -> None:
    """A span ends after the whole character."""
    assert trained(HEADER_STOPS, user("é"), answer("是👩‍👩‍👧")) == ["是👩‍👩‍👧"]


def test_5_a_turn_that_begins_at_the_start() -> None:
    """A conversation may begin with the assistant."""
    tagged = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert trained(tagged, answer("A")) == ["A"]
    assert trained(CHATML, answer("A"), user(), answer("B")) == ["A<|im_end|>", "B<|im_end|>"]


MACRO = (
    "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{{ say(m) }}{% else %}{{ m.content }}"
    "{% endif %}{% endfor %}"
)
SET = (
    "{% for m in messages %}[{{ m.role }}]{% set text %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endset %}{{ text }}"
    "{% endfor %}"
)
SET_AND_TRIMMED = SET.replace("{{ text }}", "{{ text | trim }}").replace("{% generation %}", "{% generation %} ")


@pytest.mark.parametrize("template", [MACRO, SET, SET_AND_TRIMMED], ids=["macro", "set", "trimmed"])
def test_6_tags_in_macros_and_in_set(template: str) -> None:
    """What is between tags is found where it ends up in the text."""
    assert trained(template, user(), answer("A"), user(), answer("B")) == ["A", "B"]


@pytest.mark.parametrize("tag", ["{%generation%}", "{%- generation -%}", "{%+ generation %}", "{%\n  generation\n%}"])
def test_7_all_spellings_of_the_tag(tag: str) -> None:
    """Jinja's own lexer finds the tags."""
    template = HEADER.replace("\n", "|") + tag + "{{ m.content }}{% endgeneration %}{% endfor %}"
    assert Renderer(Chat(template=template)).template.has_tags
    assert trained(template, answer("A")) == ["A"]
    assert not Renderer(Chat(template="{# {% generation %} #}" + CHATML)).template.has_tags


def test_8_without_tags_neither_all_nor_nothing() -> None:
    """A template without tags gives the turns of the assistant; one whose tags are empty is refused."""
    assert trained(CHATML, user(), answer()) == ["Yes.<|im_end|>"]
    empty = CHATML.replace("{{ m.content }}", "{{ m.content }}{% generation %}{% endgeneration %}")
    with pytest.raises(CannotRender, match="nothing between"):
        render(empty, user(), answer())


@pytest.mark.parametrize(
    ("template", "spans"),
    [
        (CHATML, ["A<|im_end|>", "B<|im_end|>"]),
        (LAST_DIFFERS, ["<|message|>A<|end|>", "<|message|>B<|return|>"]),
        (HEADER_STOPS, ["A<|user|>", "B"]),
        (END_AT_END, ["A", "B\n</s>"]),
    ],
    ids=["the same", "the last differs", "the next header", "at the end only"],
)
def test_9_the_stop_token_is_trained(template: str, spans: list[str]) -> None:
    """A model has to learn to stop, whatever it stops with."""
    assert trained(template, user(), answer("A"), user("And?"), answer("B")) == spans


def test_10_earlier_reasoning_is_dropped() -> None:
    """Turns are found although the template leaves reasoning out; with `each`, every turn has its own."""
    first, second = answer("A", reasoning_content="one"), answer("B", reasoning_content="two")
    assert trained(THINKING, user(), first, user(), second) == ["A<|im_end|>", "two\n</think>\n\nB<|im_end|>"]
    inline = answer("<think>\none\n</think>\n\nA")
    assert trained(THINKING, user(), inline, user(), second)[0] == "A<|im_end|>"
    renderer = Renderer(Chat(template=THINKING, turns="each"))
    one, two = renderer.render({"messages": [user(), first, user(), second]})
    assert [one.text[begin:end] for begin, end in one.spans] == ["one\n</think>\n\nA<|im_end|>"]
    assert [two.text[begin:end] for begin, end in two.spans] == ["two\n</think>\n\nB<|im_end|>"]


def test_11_a_prompt_that_begins_the_reasoning() -> None:
    """What the prompt forces is trained on if that is asked for."""
    messages = user(), answer("A", reasoning_content="one")
    assert trained(THINKING, *messages) == ["one\n</think>\n\nA<|im_end|>"]
    assert trained(THINKING, *messages, prefilled="train") == ["<think>\none\n</think>\n\nA<|im_end|>"]


def test_12_a_turn_goes_on_after_a_result() -> None:
    """Results of tools are not trained on, and the turn after one has no header."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "x"}}}
    messages = user(), answer("", tool_calls=[call]), {"role": "tool", "content": "Fog."}, answer("Fog, then.")
    assert trained(TOOLS, *messages) == ['<call>look {"at": "x"}</call><|go|>', "Fog, then.<|end|>"]


def test_13_two_turns_in_a_row_first_and_none() -> None:
    """Each turn of the assistant is trained on; a conversation without one has none."""
    assert trained(CHATML, user(), answer("A"), answer("B")) == ["A<|im_end|>", "B<|im_end|>"]
    assert trained(CHATML, {"role": "system", "content": "Be brief."}) == []


def test_14_a_date_is_a_constant() -> None:
    """The clock is never asked: the same bytes tomorrow."""
    template = "{{ strftime_now('%d %b %Y') }} " + CHATML
    with pytest.raises(UsageError, match="date"):
        Renderer(Chat(template=template)).require_turns()
    constants = {"date": "2026-11-18"}
    assert render(template, user(), answer(), constants=constants).text.startswith("18 Nov 2026 <")


def test_15_tojson_keeps_order_and_characters() -> None:
    """Keys stay in their order, and nothing is escaped for HTML."""
    template = "{{ tools | tojson }}" + CHATML
    tools = [{"z": "<é>", "a": ["&", 1.0, True, None]}]
    text = render(template, user(), answer(), tools=tools).text
    assert text.startswith('[{"z": "<é>", "a": ["&", 1.0, true, null]}]')


def test_16_null_keys_are_absent() -> None:
    """A key of a message that is null is as if it were not there."""
    template = CHATML.replace("{{ m.content }}", "{% if m.name is defined %}{{ m.name }}{% endif %}{{ m.content }}")
    assert "None" not in render(template, user(name=None), answer(tool_calls=None)).text


def test_17_arguments_as_object_and_as_text() -> None:
    """Arguments are given to the template as they are."""
    for arguments, text in ({"at": "x"}, '{"at": "x"}'), ('{"at": "x"}', '"{\\"at\\": \\"x\\"}"'):
        call = {"function": {"name": "look", "arguments": arguments}}
        assert trained(TOOLS, user(), answer("", tool_calls=[call]))[0].startswith(f"<call>look {text}</call>")


@pytest.mark.parametrize("content", [" ", "\n\n", "", "<b>", " <b> "])
def test_19_content_without_a_place_for_marks(content: str) -> None:
    """A turn of white space, or of nothing, is found between its neighbours, if there is one place for it."""
    assert trained(CHATML, user(), answer(content), user("And?"), answer()) == [
        f"{content}<|im_end|>",
        "Yes.<|im_end|>",
    ]


def test_19_content_as_a_list_of_parts() -> None:
    """Texts in parts of a content are found, too."""
    template = CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
    parts = [[{"type": "text", "text": text}] for text in ("Hi", "Yes", "So")]
    messages = user(""), answer("")
    messages[0]["content"], messages[1]["content"] = parts[0], parts[1] + parts[2]
    assert trained(template, *messages) == ["YesSo<|im_end|>"]


def test_20_control_tokens_spelled_in_content() -> None:
    """With marks, those that the template writes are told from those that a conversation spells."""
    marks = {"<|im_start|>": "S", "<|im_end|>": "E"}
    special: dict[str, Any] = {"special_tokens": (*marks, "<|other|>"), "marks": marks}
    spelled = answer("<|im_end|> ends. é<|other|><|im_start|>")
    text = render(CHATML, user("<|im_start|>"), spelled, **special).text
    assert text == "Suser\n<|im_start|>E\nSassistant\n<|im_end|> ends. é<|other|><|im_start|>E\n"
    with pytest.raises(CannotRender, match="some conversations only"):
        render("{{ '<|other|>' }}" + CHATML, user(), answer(), **special)


def test_20_a_template_that_loses_text_is_refused() -> None:
    """A template for parts shows nothing of content that is text."""
    template = CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}")
    with pytest.raises(CannotRender, match="message 1 is not in the text"):
        render(template, user(), answer())


def test_21_private_use_characters() -> None:
    """Marks are of the plane that the text does not use. Text of both planes is refused."""
    assert trained(CHATML, user("\U000f0001"), answer("\U000f0000\ue000")) == ["\U000f0000\ue000<|im_end|>"]
    with pytest.raises(CannotRender, match="private-use") as caught:
        render(CHATML, user("\U000f0001\U00100001"), answer())
    assert caught.value.reason == NOT_FOUND


def test_22_the_template_raises() -> None:
    """The template's own words say why."""
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('Users begin.') }}{% endif %}" + CHATML
    with pytest.raises(CannotRender, match="Users begin") as caught:
        render(template, answer())
    assert caught.value.reason == REFUSED
    assert trained(template, user(), answer()) == ["Yes.<|im_end|>"]


def test_26_flags_of_messages_win() -> None:
    """A message with a flag is trained on as it says, and flags are not shown to the template."""
    messages = user(train=True), answer("A", train=False), user("And?"), answer("B", weight=1)
    assert trained(CHATML, *messages) == ["Hi?<|im_end|>", "B<|im_end|>"]
    assert trained(CHATML, user(), answer("A", weight=0)) == []
    dumped = CHATML.replace("{{ m.content }}", "{{ m.content }}{% if m.weight is defined %}!{% endif %}")
    assert "!" not in render(dumped, user(), answer("A", weight=1)).text


def test_marks_that_change_the_rendering() -> None:
    """A template that looks at the characters of a text is not believed."""
    template = CHATML.replace("{{ m.content }}", "{{ m.content | length }} {{ m.content }}")
    with pytest.raises(CannotRender, match="change the rendering"):
        render(template, user(), answer())


def test_a_text_that_is_there_twice() -> None:
    """A template that repeats a message has no certain place of it."""
    template = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.content }}")
    with pytest.raises(CannotRender, match="twice"):
        render(template, user(), answer())


def test_choice_of_turns() -> None:
    """The last turn, roles, or everything."""
    messages = user(), answer("A"), user("And?"), answer("B")
    assert trained(CHATML, *messages, train=("last",)) == ["B<|im_end|>"]
    assert trained(CHATML, *messages, train=("user",)) == ["Hi?<|im_end|>", "And?<|im_end|>"]
    assert trained(CHATML, *messages, train=("all",)) == [render(CHATML, *messages).text]
    partly = trained(CHATML, user(), answer("A", train=False), user("And?"), answer("B"), train=("all",))
    assert partly == ["<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n", partly[1]]
    assert partly[1].startswith("\n<|im_start|>user\nAnd?")


def test_sharegpt() -> None:
    """`from`, `value` and other names of roles."""
    messages = {"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Yes."}
    assert trained(CHATML, *messages, roles={"human": "user", "gpt": "assistant"}) == ["Yes.<|im_end|>"]


def test_white_space_is_the_templates() -> None:
    """Marks are inside of the white space, so that a template may take it away."""
    assert trained(TRIMMED, user("  Hi? \n"), answer(" Yes. ")) == ["Yes.<|im_end|>"]
