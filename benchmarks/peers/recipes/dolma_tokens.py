"""dolma: its command `tokens`, which reads compressed JSON Lines, one process for each worker."""

import os
import sys

from dolma.cli.main import main

source, out, workers, tokenizer = sys.argv[1:5]

if __name__ == "__main__":
    main(
        [
            "tokens",
            *("--documents", os.path.join(source, "*.jsonl.gz")),
            *("--destination", out),
            *("--tokenizer.name_or_path", tokenizer),
            *("--tokenizer.eos_token_id", "50256"),
            *("--tokenizer.pad_token_id", "50256"),
            "--no-tokenizer.segment_before_tokenization",
            *("--dtype", "uint16"),
            *("--processes", workers),
        ]
    )
