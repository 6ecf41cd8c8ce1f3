#!/usr/bin/env bash
# A corpus, its tokens as train.bin and val.bin, and a tiny GPT trained on them. No network, if the vocabulary is there.
#
#     bash run.sh [DIR [TOKENIZER [OPTION OF PREPARE...]]]
#
# Run it again after any interruption, or after a success: only what is missing is done.
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
out=${1:-nanogpt-example}
tokenizer=${2:-gpt2}

mkdir -p "$out"
if [ ! -e "$out/corpus.jsonl" ]; then
    python "$here/corpus.py" > "$out/corpus.jsonl.tmp"
    mv "$out/corpus.jsonl.tmp" "$out/corpus.jsonl"
fi
tokenmill prepare "$out/corpus.jsonl" --tokenizer "$tokenizer" --out "$out/tokens" \
    --to nanogpt --val 0.05 --shuffle 7 "${@:3}"
python "$here/train.py" --data "$out/tokens/nanogpt"
