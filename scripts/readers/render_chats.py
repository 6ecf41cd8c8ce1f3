"""transformers: the text, the ids and the mask of conversations by chat templates, without tokenmill.

python render_chats.py TASK: reads {"conversations": FILE, "out": FOLDER, "date": ISO, "templates": [{"name", "file",
"vocabulary", "constants", "rows", "prefixes"}]} and writes OUT/NAME.jsonl with a line for each row:

    {"row", "error"} or {"row", "text", "ids", "mask", "spans", "tagged", "prefixes"}

`mask` is return_assistant_tokens_mask, `spans` are the characters in tags as transformers counts them, and `tagged` as
they are found by replacing the tags with characters and rendering once more (None if that changes the text). `prefixes`
has the messages before each turn of the assistant with a generation prompt, and those up to it (None: not rendered).
"""

import datetime as dt
import functools
import json
import multiprocessing
import re
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
BEGIN, END = "\x02", "\x03"


def with_sentinels(template):
    """The template with characters in place of the tags, which take white space from around them as the tags did."""

    def replacement(tag):
        left, is_end, right = tag.groups()
        if is_end:
            return f'{{%{left} endif %}}{{{{ "\\x03" }}}}{{% if true %}}{{% endif {right}%}}'
        return f'{{%{left} if true %}}{{{{ "\\x02" }}}}{{% endif %}}{{% if true {right}%}}'

    return TAG.sub(replacement, template)


def tagged_spans(marked, text):
    """Where the sentinels are; None if the rest is not the text."""
    if re.sub(f"[{BEGIN}{END}]", "", marked) != text:
        return None
    spans, place = [], 0
    for piece in re.split(f"([{BEGIN}{END}])", marked):
        if piece == BEGIN:
            spans.append([place, place])
        elif piece == END:
            spans[-1][1] = place
        else:
            place += len(piece)
    return spans


class Clock(dt.datetime):
    """A clock that stands."""

    day = ""

    @classmethod
    def now(cls):
        """The day of the task."""
        return cls.fromisoformat(cls.day)


@functools.lru_cache(1)
def load(vocabulary):
    """A tokenizer. The special tokens of a template are given to it as variables, which is what transformers does."""
    return PreTrainedTokenizerFast(tokenizer_file=vocabulary)


def attempt(render):
    """What is rendered, or None."""
    try:
        return render()
    except Exception:  # noqa: BLE001 - templates raise anything
        return None


def check(task):
    """Write the lines of one template."""
    day, folder, case, conversations = task
    Clock.day = day
    chat_template_utils.datetime = Clock
    template = Path(case["file"]).read_bytes().decode()
    tokenizer = load(case["vocabulary"])
    has_tags = bool(TAG.search(template))
    marked_template = with_sentinels(template)

    def render(messages, tools, **options):
        given = {"chat_template": template, "tokenize": False} | case["constants"] | options
        return tokenizer.apply_chat_template(messages, tools=tools, **given)

    with (Path(folder) / f"{case['name']}.jsonl").open("w") as out:
        for row in case["rows"]:
            messages, tools = conversations[row]["messages"], conversations[row]["tools"]
            line = {"row": row}
            try:
                line["text"] = text = render(messages, tools)
            except Exception as error:  # noqa: BLE001 - templates raise anything
                out.write(json.dumps(line | {"error": f"{type(error).__name__}: {error}"[:300]}) + "\n")
                continue
            options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": has_tags}
            try:
                encoded = render(messages, tools, **options)
                line["ids"] = encoded["input_ids"]
                line["mask"] = encoded.get("assistant_masks")
            except Exception as error:  # noqa: BLE001 - the mask fails on some; the ids do not
                line["ids"] = render(messages, tools, tokenize=True, return_dict=True)["input_ids"]
                line["mask_error"] = f"{type(error).__name__}: {error}"[:300]
            if has_tags:
                tagged = attempt(lambda m=messages, t=tools: render(m, t, chat_template=marked_template))
                line["tagged"] = None if tagged is None else tagged_spans(tagged, text)
                offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
                line["offsets"] = offsets
            elif row in case["prefixes"]:
                line["prefixes"] = []
                for number, message in enumerate(messages):
                    if message["role"] == "assistant":
                        before = number and attempt(
                            lambda m=messages[:number], t=tools: render(m, t, add_generation_prompt=True)
                        )
                        until = attempt(lambda m=messages[: number + 1], t=tools: render(m, t))
                        line["prefixes"].append([number, before or None, until])
            out.write(json.dumps(line) + "\n")
    return case["name"]


def main():
    """Share the templates among two processes."""
    task = json.loads(Path(sys.argv[1]).read_text())
    conversations = [json.loads(line) for line in Path(task["conversations"]).read_text().splitlines()]
    cases = [(task["date"], task["out"], case, conversations) for case in task["templates"]]
    with multiprocessing.get_context("fork").Pool(task.get("processes", 2)) as pool:
        for name in pool.imap_unordered(check, cases):
            print(name, flush=True)


if __name__ == "__main__":
    main()
