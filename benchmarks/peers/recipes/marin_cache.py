"""marin: levanter's `build_lm_dataset_cache` on zephyr's local workers, from a work tree of their repository, for CPUs.

With a sixth argument the tokens are copied to a plain file after all, to be compared: only tensorstore reads the cache.
"""

import glob
import os
import sys

source, out, workers, tokenizer, repository = sys.argv[1:6]
sys.path[:0] = glob.glob(os.path.join(repository, "lib", "*", "src"))
os.environ |= {"JAX_PLATFORMS": "cpu", "WANDB_MODE": "disabled", "RAYON_NUM_THREADS": workers}

if __name__ == "__main__":
    from levanter.data.sharded_datasource import ParquetDataSource
    from levanter.data.text.cache import build_lm_dataset_cache
    from levanter.data.text.formats import TextLmDatasetFormat
    from levanter.tokenizers import load_tokenizer

    files = sorted(glob.glob(os.path.join(source, "*.parquet")))
    texts = ParquetDataSource(files, columns=["text"])
    cache = build_lm_dataset_cache(os.path.join(out, "cache"), texts, TextLmDatasetFormat(), load_tokenizer(tokenizer))
    if len(sys.argv) > 6:
        import numpy as np

        rows = cache.as_sync_dataset()
        with open(os.path.join(out, "all.tokens"), "wb") as file:
            for number in range(len(rows)):
                np.asarray(rows[number]["input_ids"], np.uint16).tofile(file)
