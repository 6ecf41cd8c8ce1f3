"""NeMo Curator: a reader of Parquet and MegatronTokenizerWriter, on a Ray that its client starts."""

import os
import sys
import tempfile

from nemo_curator.core.client import RayClient
from nemo_curator.pipeline import Pipeline
from nemo_curator.stages.text.io.reader import ParquetReader
from nemo_curator.stages.text.io.writer.megatron_tokenizer import MegatronTokenizerWriter

source, out, workers, tokenizer = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # the client calls `ray`

if __name__ == "__main__":
    stages = [
        ParquetReader(file_paths=source, files_per_partition=1, fields=["text"]),
        MegatronTokenizerWriter(path=out, model_identifier=tokenizer, append_eod=True),
    ]
    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as ray_files,  # short, since it has sockets
        # Its stages run at once and want 2.5 CPUs besides those of further writers, of 95 % of these, rounded down.
        RayClient(num_cpus=workers + 3, ray_temp_dir=ray_files, include_dashboard=False),
    ):
        Pipeline(name="tokenize", stages=stages).run()
