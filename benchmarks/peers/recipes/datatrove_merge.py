"""datatrove: ParquetReader and DocumentTokenizer in local tasks, then the merger, without shuffling."""

import os
import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

source, out, workers, tokenizer = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

if __name__ == "__main__":
    pieces, logs = os.path.join(out, "pieces"), os.path.join(out, "logs")
    LocalPipelineExecutor(
        pipeline=[
            ParquetReader(source, read_metadata=False),
            DocumentTokenizer(
                pieces, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False
            ),
        ],
        tasks=workers,
        workers=workers,
        logging_dir=os.path.join(logs, "tokenize"),
    ).run()
    LocalPipelineExecutor(
        pipeline=[
            DocumentTokenizerMerger(
                pieces, os.path.join(out, "merged"), save_filename="merged", shuffle=False, progress=False
            )
        ],
        tasks=1,
        logging_dir=os.path.join(logs, "merge"),
    ).run()
