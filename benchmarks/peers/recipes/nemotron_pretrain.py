"""Nemotron: `run_pretrain_pipeline` of nemotron.data_prep, from a work tree of its repository, a shard for each worker.

It runs on a Ray that is started here, or it would join any other one on this machine.
"""

import os
import sys
import tempfile

import ray

source, out, workers, tokenizer, repository = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
packages = os.path.join(repository, "src")
sys.path.insert(0, packages)
os.environ["PYTHONPATH"] = packages  # for Ray's workers: the package of this name on PyPI is another
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled"}
# The pipelines set these where they start Ray themselves.
os.environ |= {"RAY_MAX_LIMIT_FROM_API_SERVER": "40000", "RAY_MAX_LIMIT_FROM_DATA_SOURCE": "40000"}

if __name__ == "__main__":
    from nemotron.data_prep import DataBlend, Dataset
    from nemotron.data_prep.recipes.pretrain import run_pretrain_pipeline
    from nemotron.data_prep.stages import BinIdxTokenizationStageConfig

    with tempfile.TemporaryDirectory(dir="/tmp") as ray_files:  # short, since sockets are in it
        # Of so many CPUs, the pipelines take 95 %, rounded down.
        ray.init(num_cpus=workers + 1, _node_ip_address="127.0.0.1", _temp_dir=ray_files)
        run_pretrain_pipeline(
            DataBlend(datasets=[Dataset(name="corpus", path=source)]),
            out,
            tokenizer,
            num_shards=workers,
            dtype="uint16",
            execution_mode="batch",  # streaming wants a CPU for each stage besides
            tokenization_stage=BinIdxTokenizationStageConfig(cpus_per_worker=1),
        )
        ray.shutdown()
