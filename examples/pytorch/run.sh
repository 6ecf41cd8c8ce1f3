#!/usr/bin/env bash
# Train twice on the same tokens: once undisturbed, once killed and resumed with other numbers of processes. Compare.
#
#     bash run.sh [DIR [TOKENIZER [OPTION OF PREPARE...]]]
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
out=${1:-pytorch-example}
tokenizer=${2:-gpt2}

train() { # PROCESSES NAME [OPTION...]
    python -m torch.distributed.run --standalone --nproc-per-node "$1" "$here/train.py" --store "$out/tokens" \
        --checkpoint "$out/$2.pt" --record "$out/$2.jsonl" "${@:3}"
}

mkdir -p "$out"
rm -f "$out"/{undisturbed,killed}.{pt,jsonl}
python "$here/../nanogpt/corpus.py" > "$out/corpus.jsonl"
tokenmill prepare "$out/corpus.jsonl" --tokenizer "$tokenizer" --out "$out/tokens" "${@:3}"

train 2 undisturbed
train 2 killed --die-at 9 2> "$out/first-death.txt" || echo "killed after step 9, with 2 processes"
train 1 killed --die-at 17 --workers 2 2> "$out/second-death.txt" || echo "killed after step 17, with 1 process"
train 3 killed --workers 0
python "$here/compare.py" "$out/undisturbed.jsonl" "$out/killed.jsonl"
