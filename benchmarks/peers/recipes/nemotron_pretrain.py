"""Nemotron: `run_pretrain_pipeline` of nemotron.data_prep, from a work tree of its repository, a shard a worker."""

import os
import sys

source, out, workers, tokenizer, repository = sys.argv[1:6]
packages = os.path.join(repository, "src")
sys.path.insert(0, packages)
os.environ["PYTHONPATH"] = packages  # the package on PyPI is another, so Ray's workers find this one

from nemotron.data_prep import DataBlend, Dataset  # noqa: E402
from nemotron.data_prep.recipes.pretrain import run_pretrain_pipeline  # noqa: E402
from nemotron.data_prep.stages import BinIdxTokenizationStageConfig  # noqa: E402

if __name__ == "__main__":
    run_pretrain_pipeline(
        DataBlend(datasets=[Dataset(name="corpus", path=source)]),
        out,
        tokenizer,
        num_shards=int(workers),
        dtype="uint16",
        tokenization_stage=BinIdxTokenizationStageConfig(cpus_per_worker=1),
    )
