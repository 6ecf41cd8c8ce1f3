"""Conversations, the files that hold them, and a small model with a chat template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.corpora import SMALL_JSON
from tests.support.segmented import WORDS

BEGIN, END = "<|im_start|>", "<|im_end|>"

# As ChatML. A message can refuse to be rendered, never end, or take all memory.
TEMPLATE = """\
{%- if prefix is defined %}{{ prefix }}{% endif -%}
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif -%}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content -}}
{%- if message.note is defined %}{{ ' note ' + (message.note | tojson) }}{% endif -%}
{{- '<|im_end|>\\n' -}}
{%- if message.content == 'REFUSE' %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if message.content == 'ENDLESS' %}
{%- for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}
{%- if message.content == 'HUNGRY' %}
{%- set space = namespace(text='x' * 9999999) %}{% for a in range(40) %}{% set space.text = space.text + space.text %}
{%- endfor %}{{ space.text }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
TAGGED = """\
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' -}}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""

Messages = list[dict[str, Any]]


def write_model(directory: Path, template: str | None = TEMPLATE, config: dict[str, Any] | None = None) -> str:
    """The directory of a model: the small vocabulary with the control tokens of ChatML, and the template in a file."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads(Path(SMALL_JSON).read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = max(token["id"] for token in vocabulary["added_tokens"]) + 1
    added = [{"id": first + n, "content": text, **flags, "special": True} for n, text in enumerate((BEGIN, END))]
    vocabulary["added_tokens"] += added
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, **(config or {})}))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return str(directory)


def random_conversations(count: int, seed: int) -> list[Messages | None]:
    """Conversations of one to four questions with answers, and a row without one."""
    rng = random.Random(seed)

    def text() -> str:
        return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) + "."

    made: list[Messages | None] = []
    for _ in range(count):
        turns = [{"role": role, "content": text()} for _ in range(rng.randint(1, 4)) for role in ("user", "assistant")]
        made.append([{"role": "system", "content": text()}, *turns] if rng.random() < 0.3 else turns)
    made[count // 3] = None
    return made


def write(path: Path, conversations: list[Any], row_group_size: int = 20, **columns: list[Any]) -> str:
    """A file with the column `messages`, of the kind that its name says."""
    columns = {"messages": conversations, "id": list(range(len(conversations))), **columns}
    if path.suffix == ".jsonl":
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return str(path)
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=row_group_size)
        return str(path)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, row_group_size)
    return str(path)


def rendered(messages: Messages, *, roles: tuple[str, ...] = ("assistant",)) -> list[dict[str, Any]]:
    """What TEMPLATE makes of messages, as segments."""
    pieces = []
    for message in messages:
        is_trained = message["role"] in roles
        pieces.append({"text": f"{BEGIN}{message['role']}\n", "train": False})
        pieces.append({"text": message["content"] + END, "train": is_trained})
        pieces.append({"text": "\n", "train": False})
    return pieces
