"""NeMo Curator: a reader of Parquet and MegatronTokenizerWriter, on a Ray of its own."""

import sys

from nemo_curator.core.client import RayClient
from nemo_curator.pipeline import Pipeline
from nemo_curator.stages.text.io.reader import ParquetReader
from nemo_curator.stages.text.io.writer.megatron_tokenizer import MegatronTokenizerWriter

source, out, workers, tokenizer = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

if __name__ == "__main__":
    client = RayClient(num_cpus=workers)
    client.start()
    stages = [
        ParquetReader(file_paths=source, files_per_partition=1, fields=["text"]),
        MegatronTokenizerWriter(path=out, model_identifier=tokenizer, append_eod=True),
    ]
    Pipeline(name="tokenize", stages=stages).run()
    client.stop()
