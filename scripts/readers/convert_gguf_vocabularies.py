"""Vocabularies of llama.cpp to tokenizer.json files, by transformers' own conversion.

python convert_gguf_vocabularies.py TASK: reads {"models": FOLDER, "out": FOLDER, "tokens": {VOCABULARY: [...]}},
writes OUT/VOCABULARY.json with these tokens added, and prints what became of each vocabulary as JSON.
"""

import json
import re
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

PREFIX = "ggml-vocab-"
PLAIN = re.compile(r"</?[A-Za-z_]{2,}>")  # such as <think>: an added token that is not special

task = json.loads(Path(sys.argv[1]).read_text())
outcomes = {}
for path in sorted(Path(task["models"]).glob(f"{PREFIX}*.gguf")):
    name = path.stem.removeprefix(PREFIX)
    fields = {key: field for key, field in GGUFReader(path).fields.items() if not key.startswith("GGUF.")}
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    tokenizer = {to: fields[f"tokenizer.{key}"].contents() for key, to in names.items() if f"tokenizer.{key}" in fields}
    try:
        backend, _ = convert_gguf_tokenizer(fields["general.architecture"].contents(), tokenizer)
    except ValueError as error:
        outcomes[name] = {"error": str(error)}
        continue
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    wanted = [token for token in task["tokens"].get(name, []) if token not in known]
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in wanted if not PLAIN.fullmatch(t)]
    )
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in wanted if PLAIN.fullmatch(t)])
    backend.save(str(Path(task["out"]) / f"{name}.json"), pretty=False)
    outcomes[name] = {"size": backend.get_vocab_size(), "added": wanted}
print(json.dumps(outcomes))
