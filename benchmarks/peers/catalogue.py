"""The pipelines that are compared: what each needs, which program of `recipes` runs it, and where its tokens are."""

from __future__ import annotations

from dataclasses import dataclass, replace

TIKTOKEN = "tiktoken==0.14.0"


@dataclass(frozen=True)
class Pipeline:
    """One pipeline.

    `packages` is what is installed, pinned; the first ones, up to `named`, are named in the table. `rate` is a rough
    speed in MB/s on two cores, doubled where starting takes long: it sizes the work. `reads` is the kind of input,
    `vocabulary` what the fourth argument is (hub: a name on the Hub or a tokenizer.json; model: a name on the Hub or a
    directory with a tokenizer.json, as transformers wants it; ranks: a .tiktoken file). `layout` is how its tokens are
    found, see `outputs`. A pipeline that is `bare` keeps its tokens in memory and is no pipeline in the strict sense.
    One that `copies` writes what only its own package reads. Both write their tokens plainly in the warm-up alone.

    A pipeline that is in no package is run from a work tree of its `repository` on GitHub, which `--<directory>` names;
    it is the recipe's fifth argument. `python` is the version that it needs, if not any. `beside` is tokenmill's
    pipeline that it is compared with, and `options` are those of a pipeline of tokenmill.
    """

    name: str
    title: str
    recipe: str
    packages: tuple[str, ...]
    rate: float
    layout: str
    note: str
    named: int = 1
    reads: str = "parquet"
    vocabulary: str = ""
    bare: bool = False
    copies: bool = False
    threads: int | None = None
    repository: str = ""
    python: str = ""
    beside: str = "tokenmill"
    options: tuple[str, ...] = ()

    @property
    def is_compared_apart(self) -> bool:
        """Whether its tokens are only seen in the warm-up, which is on all of its work then."""
        return self.bare or self.copies

    @property
    def directory(self) -> str:
        """The name of the option for its work tree."""
        return self.repository.rpartition("/")[2].removesuffix("-LM").lower()


PIPELINES = (
    Pipeline(
        "nanogpt",
        "nanoGPT: datasets.map + memmap",
        "nanogpt.py",
        ("datasets==5.2.0", TIKTOKEN),
        rate=4,
        layout="bin",
        named=2,
        note="a second pass, in one process, writes",
    ),
    Pipeline(
        "build-nanogpt",
        "build-nanogpt, llm.c: Pool.imap",
        "build_nanogpt.py",
        ("datasets==5.2.0", TIKTOKEN),
        rate=8,
        layout="npy",
        named=2,
        note="every row goes to a worker and back through one parent",
    ),
    Pipeline(
        "datatrove",
        "datatrove: tokenizer + merger",
        "datatrove_merge.py",
        ("datatrove[io,processing]==0.10.1", "tokenizers==0.23.3", "orjson"),
        rate=4,
        layout="datatrove",
        vocabulary="hub",
        note="not shuffled; metadata of rows is not read",
    ),
    Pipeline(
        "dolma",
        "dolma tokens",
        "dolma_tokens.py",
        ("dolma==1.2.1",),
        rate=4,
        layout="dolma",
        reads="jsonl.gz",
        vocabulary="hub",
        note="strips white space around each text; input converted to .jsonl.gz beforehand, not timed",
    ),
    Pipeline(
        "megatron",
        "megatron-core: Pool.imap + builder",
        "megatron_builder.py",
        ("megatron-core==0.16.1", "tokenizers==0.23.3"),
        rate=4,
        layout="bin",
        reads="jsonl",
        vocabulary="hub",
        note="preprocess_data.py is in no package: the same loop over megatron-core's IndexedDatasetBuilder; "
        "input converted to .jsonl beforehand, not timed",
    ),
    Pipeline(
        "megatron-fast",
        "Megatron-LM preprocess_data_fast",
        "megatron_fast.py",
        (
            "gigatoken==0.10.0",
            "transformers==5.23.0",
            "torch==2.13.0",
            "triton==3.7.1",
            "awkward",
            "numpy",
            "packaging",
            "omegaconf",
        ),
        rate=150,
        layout="bin",
        reads="one.jsonl",
        vocabulary="model",
        repository="NVIDIA/Megatron-LM",
        beside="tokenmill-megatron",
        note="one process, with the threads of gigatoken; all tokens in memory before any is written; reads one .jsonl",
    ),
    Pipeline(
        "nemotron",
        "Nemotron data_prep, pretrain",
        "nemotron_pretrain.py",
        ("cosmos-xenna==0.2.0", "transformers==4.57.6", "ray[data,default]==2.55.1", "xxhash", "datasets", "pydantic"),
        rate=4,
        layout="nemotron",
        vocabulary="model",
        repository="NVIDIA-NeMo/Nemotron",
        note="on Ray, a shard for each worker",
    ),
    Pipeline(
        "curator",
        "NeMo Curator tokenizer writer",
        "curator_megatron.py",
        ("nemo-curator==1.4.0", "transformers==4.57.6", "torch==2.13.0"),
        rate=4,
        layout="bin",
        vocabulary="model",
        note="on Ray, a pair of .bin and .idx for each file",
    ),
    Pipeline(
        "marin",
        "marin: levanter's cache",
        "marin_cache.py",
        (
            *("jax==0.11.0", "tensorstore<0.1.85", "tokenizers==0.23.3", "transformers<6", "datasets<5", "optax<0.2.7"),
            *(
                "aqtp",
                "async-lru",
                "braceexpand",
                "chex",
                "cloudpickle",
                "connect-python",
                "dataclasses-json",
                "deepdiff",
            ),
            *(
                "draccus",
                "einops",
                "equinox",
                "filelock",
                "fsspec[http]",
                "gcsfs",
                "gitpython",
                "google-auth",
                "grpcio",
            ),
            *(
                "httpx",
                "humanfriendly",
                "immutabledict",
                "jaxtyping",
                "jinja2",
                "click",
                "jmp",
                "lenses",
                "marin-finelog",
                "msgspec",
            ),
            *(
                "marin-iris-native",
                "polars",
                "protobuf",
                "psutil",
                "pyarrow",
                "pydantic",
                "PyJWT[crypto]",
                "pyqwest<0.7",
            ),
            *("pytimeparse", "s3fs", "safetensors", "sqlalchemy", "starlette", "tabulate", "tblib", "tqdm-loggable"),
            *("uvicorn[standard]", "vortex-data", "wandb", "xxhash", "zstandard"),
        ),
        rate=4,
        layout="tokens",
        vocabulary="model",
        copies=True,
        repository="marin-community/marin",
        python="3.12",
        note="adds the end token as text after a space, which is one more token in each document; on local workers",
    ),
    Pipeline(
        "litdata",
        "litdata optimize, TokensLoader",
        "litdata_optimize.py",
        ("litdata==0.2.76", TIKTOKEN, "pyarrow"),
        rate=8,
        layout="litdata",
        named=2,
        note="a worker takes a file at a time",
    ),
    Pipeline(
        "mds",
        "MosaicML MDSWriter",
        "mds_writer.py",
        ("mosaicml-streaming==0.13.0", TIKTOKEN, "pyarrow"),
        rate=8,
        layout="mds",
        named=2,
        note="one process, as its writer is",
    ),
    Pipeline(
        "gigatoken",
        "gigatoken alone",
        "gigatoken_files.py",
        ("gigatoken==0.10.0", "pyarrow"),
        rate=150,
        layout="bin",
        vocabulary="ranks",
        bare=True,
        note="encode_files; result in memory, nothing written or checked",
    ),
    Pipeline(
        "tiktoken-1",
        "tiktoken alone, 1 thread",
        "tiktoken_memory.py",
        (TIKTOKEN, "numpy", "pyarrow"),
        rate=8,
        layout="bin",
        bare=True,
        threads=1,
        note="text and result in memory, nothing written",
    ),
    Pipeline(
        "tiktoken-2",
        "tiktoken alone, 2 threads",
        "tiktoken_memory.py",
        (TIKTOKEN, "numpy", "pyarrow"),
        rate=8,
        layout="bin",
        bare=True,
        threads=2,
        note="text and result in memory, nothing written",
    ),
)
TOKENMILL = Pipeline(
    "tokenmill",
    "tokenmill prepare --to nanogpt",
    "",
    ("tokenmill", "gigatoken==0.10.0", TIKTOKEN),
    rate=150,
    layout="nanogpt",
    named=2,
    options=("--to", "nanogpt", "--val", "none"),
    note="store and train.bin, both with checksums and synced to the disk",
)
STORE = replace(
    TOKENMILL,
    name="tokenmill-store",
    title="tokenmill prepare",
    layout="store",
    options=(),
    note="the store alone, without train.bin",
)
MEGATRON = replace(
    TOKENMILL,
    name="tokenmill-megatron",
    title="tokenmill prepare --to megatron",
    layout="megatron",
    reads="one.jsonl",
    options=("--to", "megatron", "--val", "none"),
    note="from one .jsonl: store, .bin and .idx, all with checksums and synced to the disk",
)
PLAIN = replace(
    TOKENMILL,
    name="tokenmill-tiktoken",
    title="tokenmill --engine tiktoken",
    rate=8,
    options=("--engine", "tiktoken", *TOKENMILL.options),
    note="the same pipeline with the engine of the recipes above: what is left is what the pipeline gives",
)
MILLS = (TOKENMILL, STORE, MEGATRON, PLAIN)
