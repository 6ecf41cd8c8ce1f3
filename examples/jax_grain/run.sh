#!/usr/bin/env bash
# Train twice on the same tokens: once undisturbed, once killed twice and resumed. The records must be equal.
#
#     bash run.sh [DIR [TOKENIZER [OPTION OF PREPARE...]]]
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
out=${1:-jax-example}
tokenizer=${2:-gpt2}

train() { # NAME [OPTION...]
    python "$here/train.py" --store "$out/tokens" --checkpoint "$out/$1.npz" --record "$out/$1.jsonl" "${@:2}"
}

mkdir -p "$out"
rm -f "$out"/{undisturbed,killed}.{npz,jsonl}
python "$here/../nanogpt/corpus.py" > "$out/corpus.jsonl"
tokenmill prepare "$out/corpus.jsonl" --tokenizer "$tokenizer" --out "$out/tokens" "${@:3}"

train undisturbed
train killed --die-at 9 || echo "killed after step 9"
train killed --die-at 17 || echo "killed after step 17"
train killed
cmp "$out/undisturbed.jsonl" "$out/killed.jsonl"
echo "24 steps: all batches and losses equal"
