"""The options of `prepare`, `plan`, `export`, `loader` and `locate`, each declared once.

From a field follow the option of the command, the keyword in Python and what both say about it, the key in a job file,
and the field of the request. Records by what an option decides: the job (the bytes of a store), shards, or the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenmill.choices import (
    BadDocumentAction,
    Dedup,
    EndTokenPosition,
    EngineName,
    Field,
    FimSplit,
    Mask,
    Null,
    Packing,
    Prefilled,
    Shuffle,
    Special,
    Split,
    Stdin,
    Tail,
    TemplateSpecial,
    TokenType,
    Turns,
)
from tokenmill.system.arguments import option, required

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Pool
    from tokenmill.executors.progress import Reporter
    from tokenmill.tokenization.objects import TokenizerObject
else:  # objects whose types are not checked, so that no module is loaded for them
    Pool = Reporter = TokenizerObject = Any

# A path or an address. Write an address such as s3://bucket/run as a str: a Path would drop a slash.
StrPath = str | os.PathLike[str]

# Rows that are in no file: a frame, a table, a dataset, or an iterable of strings or dicts.
Rows = Iterable[Any]

# One store, or several that are read as one.
Stores = StrPath | Sequence[StrPath]

_text = partial(option, heading="Text and tokenizer")
_columns = partial(option, heading="Columns")
_tokens = partial(option, heading="Tokens")
_chat = partial(option, heading="Conversations")
_fim = partial(option, heading="Fill in the middle")
_selection = partial(option, heading="Selection")
_output = partial(option, heading="Output")
_shards = partial(option, heading="Exports")
_machine = partial(option, heading="Machine")
_clusters = partial(option, heading="Clusters")
_bad_documents = partial(option, heading="Bad documents")
_resuming = partial(option, heading="Resuming")
_batches = partial(option, heading="Training batches")
_others = partial(option, heading="Options")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How conversations become documents, and what is trained on."""

    messages: str | None = _chat(
        "Column of lists of messages: conversations, rendered by the chat template of the model.",
        metavar="NAME",
        of_store=True,
        can_be_off=True,
    )
    tools: str | None = _chat(
        "Column of the tools of a conversation: a list, or JSON text.", metavar="NAME", of_store=True, can_be_off=True
    )
    chat_template: StrPath | None = _chat(
        "A file with the template, or the name of one of the model's.", metavar="FILE|NAME", unset="the model's"
    )
    chat_set: str | Sequence[str] = _chat(
        "A variable of the template: enable_thinking=false, date=2026-11-18.",
        default=(),
        metavar="KEY=VALUE",
        repeatable=True,
    )
    train: str | None = _chat(
        "Which turns are trained on: assistant, last, all, or roles. A message with train or weight says it itself.",
        metavar="ROLE,...",
        unset="assistant",
        of_store=True,
    )
    turns: Turns | None = _chat(
        "A conversation is one document, or each turn of the assistant is one, with what is before it.",
        unset="whole",
        of_store=True,
    )
    prefilled: Prefilled | None = _chat(
        "Tokens that the generation prompt forces, such as <think>: mask them, or train on them.",
        unset="mask",
        of_store=True,
    )
    roles: str | None = _chat(
        "Other names of roles in the data: human=user,gpt=assistant.",
        metavar="NAME=ROLE,...",
        of_store=True,
        can_be_off=True,
    )


@dataclass(frozen=True)
class JobOptions(ChatOptions):
    """What decides the tokens of a store, and where it is."""

    sources: StrPath | Sequence[StrPath] | Rows = option(
        "Files, directories, globs or addresses, the name of a dataset, or a store. A pipe, or - for standard input.",
        default=(),
        repeatable=True,
        python="Or rows: a `Dataset` or `DatasetDict`, a DataFrame, an Arrow table, an iterable of strings or dicts.",
    )
    _: KW_ONLY
    tokenizer: StrPath | TokenizerObject | Sequence[StrPath | TokenizerObject] | None = _text(
        "gpt2, cl100k_base, ...; a model on the Hub (ORG/MODEL[@REVISION]); a .tiktoken file; a tokenizer.json or its "
        "directory. Several: one store for each, DIR/T.",
        metavar="T",
        short="t",
        repeatable=True,
        python="Also a tokenizer of `tokenizers`, `tiktoken` or `transformers`.",
    )
    out: StrPath | None = _output(
        "Directory of the store. An unfinished run in it is resumed.", metavar="DIR", short="o"
    )
    job: StrPath | None = _output("A file of options, in TOML. Options that are given beside it win.", metavar="FILE")
    like: StrPath | None = _text(
        "A store: take its tokenizer, bos, eot and all options about text. none switches one off: --keep none. Both "
        "stores can be read together.",
        metavar="DIR",
    )
    version: str | None = _text("Version of a named dataset; `tokenmill datasets` lists them.", metavar="V")
    split: str | Sequence[str] = _text(
        "Split to read of a directory or Hub dataset that has several. all takes all of them.",
        default=(),
        metavar="NAME",
        repeatable=True,
    )
    config: str | None = _text("Config to read of such a dataset.", metavar="NAME", unset="its card's default")
    stdin: Stdin | None = _text(
        "What the lines of a pipe are: JSON objects, or documents.", unset="jsonl if the first line is a JSON object"
    )
    engine: EngineName = _text("Library that tokenizes. All give the same tokens.", default="auto")
    eot: str | int | None = _text(
        "Token after each document: an id, its text, or none.", metavar="ID", unset="the tokenizer's end-of-text token"
    )
    bos: str | int | None = _text("Token before each document: an id, its text, or none.", metavar="ID", unset="none")
    column: str | None = _columns(
        "Column with the text, or a path of fields such as data.text.",
        metavar="NAME",
        unset="text, or the named dataset's own",
        of_store=True,
    )
    segments: str | None = _columns(
        "Column of lists of {text, train}: a document of pieces, of which some are trained on.",
        metavar="NAME",
        of_store=True,
        can_be_off=True,
    )
    tokens_column: str | None = _tokens(
        "Column of lists of token ids: the documents are taken as they are.", metavar="NAME", can_be_off=True
    )
    source_tokenizer: StrPath | None = _tokens(
        "Tokenizer of the ids in the sources, if it is another one: they are decoded, and their text is tokenized.",
        metavar="T",
        unset="that of --tokenizer",
    )
    source_bos: str | int | None = _tokens(
        "Token before each document in the sources, which is removed: an id, its text, or none.",
        metavar="ID",
        unset="found in a sample",
    )
    source_eot: str | int | None = _tokens(
        "The same for the token after each document.", metavar="ID", unset="found in a sample"
    )
    rows: str | None = _tokens(
        "What a row of tokens is: a document (documents), a part of a stream of documents (stream), or such a part "
        "that begins with the last token of the row before (overlap). With files whose rows have no length: "
        "documents:2048, overlap:2049.",
        metavar="ROWS",
        unset="documents; refused if all rows have one length",
    )
    separator: str | None = _columns(
        "Document separator in .txt files, such as '\\n\\n'.",
        metavar="TEXT",
        unset="each file is one document",
        escapes=True,
        of_store=True,
        can_be_off=True,
    )
    join: str | None = _columns(
        "Between strings of a list.", metavar="TEXT", unset="\\n", escapes=True, can_be_off=True
    )
    template: str | None = _columns(
        "Several columns as one text: '{title}\\n\\n{text}'.",
        metavar="TEXT",
        escapes=True,
        of_store=True,
        can_be_off=True,
    )
    null: Null | None = _columns(
        "A null in a column of the template: skip the row, or empty text.", unset="skip", of_store=True
    )
    special: Special | None = _columns(
        "Special tokens that columns spell: text, the token, or a bad document.",
        unset="text; refuse with --messages",
        of_store=True,
    )
    template_special: TemplateSpecial | None = _columns(
        "Special tokens that the template spells: the token, or text. Needed if it spells one.", of_store=True
    )
    prefix: str | None = _columns(
        "Text before each document, from columns: '{host}\\n\\n'. It is tokenized by itself.",
        metavar="TEXT",
        escapes=True,
        can_be_off=True,
    )
    prefix_rate: str | float | None = _columns(
        "Fraction of documents that get the prefix.", metavar="FRACTION", unset="all", of_store=True
    )
    keep: str | Sequence[str] | None = _columns(
        "Columns of the sources to keep in the store, such as id,url.", metavar="NAMES", can_be_off=True
    )
    fim_rate: str | float | None = _fim(
        "Fraction of documents to rearrange for fill-in-the-middle, such as 0.5.", metavar="FRACTION", can_be_off=True
    )
    fim_spm: str | float | None = _fim(
        "Fraction of these that get the order SPM instead of PSM.", metavar="FRACTION", unset="0.5", of_store=True
    )
    fim_split: FimSplit | None = _fim("Cut them between characters or lines.", unset="character", of_store=True)
    fim_tokens: str | Sequence[str] | None = _fim(
        "Their control tokens: a family such as qwen, or PREFIX,SUFFIX,MIDDLE.",
        metavar="TOKENS",
        unset="those of the vocabulary",
        of_store=True,
    )
    fim_seed: int | None = _fim("Seed of these choices.", metavar="N", unset="1337", least=0, of_store=True)
    deny: StrPath | None = _selection(
        "Leave out rows: a file of JSON Lines names value, host or row; a store, all that was erased in it.",
        metavar="FILE|DIR",
        of_store=True,
        can_be_off=True,
    )
    where: str | None = _selection(
        "Filter on columns: \"language = 'en' and score > 0.8\".", metavar="EXPR", can_be_off=True
    )
    dedup: Dedup | None = _selection(
        "Leave out documents whose text is equal to that of an earlier one.", can_be_off=True
    )
    min_tokens: str | int | None = _selection("Leave out documents with fewer tokens.", metavar="N", can_be_off=True)
    max_tokens: str | int | None = _selection("Leave out documents with more tokens.", metavar="N", can_be_off=True)
    unit_bytes: str | int | None = _machine(
        "Text per unit of work.", metavar="SIZE", unset="1 to 64 MiB, by corpus size"
    )
    limit_units: int | None = _machine("Do only the first N units, for a trial.", metavar="N", least=1)
    max_document_bytes: str | int | None = _bad_documents(
        "A longer document is bad. Fixed for the store.", metavar="SIZE", unset="32 MiB", of_store=True
    )


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """What decides the files of an export, and `prepare` takes, too."""

    val: str | float | None = _shards(
        "Validation split: a fraction of documents (0.01 or 1%), split:NAME (a split of the sources), first-shard, or "
        "none.",
        metavar="V",
        unset="by format",
    )
    shuffle: int | None = _shards("Shuffle all documents with this seed, such as 1337.", metavar="SEED")
    shard_tokens: str | int | None = _shards("Tokens per shard, such as 100M.", metavar="N", unset="by format")
    tail: Tail | None = _shards(
        "Last shard, if it is not full: keep it, drop it, or merge it with the one before.", unset="by format"
    )
    mask: Mask | None = _shards(
        "How tokens that are not trained on are marked: labels of -100 (parquet, megatron, mds), weights (parquet), "
        "or ignore: not at all.",
        unset="by format; refused without a mask",
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where the work runs and what it may use. Nothing of it changes a byte."""

    workers: int | None = _machine("Worker processes.", metavar="N", unset="one per core", least=1)
    memory: str | int | None = _machine(
        "Memory budget per machine, such as 8GB.", metavar="SIZE", unset="70 % of available"
    )
    force: bool = _machine("Start even if the disk seems too small.", default=False)
    on: str = _clusters(
        "Where the work runs: local, ray (the cluster of this machine), or ray://HOST:PORT.",
        default="local",
        metavar="EXECUTOR",
    )
    rank: int | None = _clusters(
        "Number of this process, from 0, if several share the work.",
        metavar="I",
        unset="set by Slurm or Kubernetes",
        least=0,
    )
    of: int | None = _clusters("Number of processes that share the work.", metavar="N", least=1)
    reporter: Reporter | None = option(
        "Receives progress and notices.", unset="a bar in a terminal or notebook, otherwise nothing is shown"
    )
    executor: Pool | None = option("Running workers to use instead of new ones.")


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(RunOptions, ShardOptions, JobOptions):
    """The options of `prepare` and `plan`."""

    to: str | Sequence[str] = _shards(
        "Also export to DIR/FORMAT. `tokenmill export` has more options.",
        default=(),
        metavar="FORMAT",
        repeatable=True,
    )
    metrics: StrPath | None = _machine("Metrics for Prometheus, replaced every few seconds.", metavar="FILE")
    on_bad: BadDocumentAction = _bad_documents(
        "On a bad document: record it in DIR/quarantine.jsonl, or fail.", default="quarantine"
    )
    max_bad: str | float = _bad_documents("Fail with more bad documents than this.", default="0.1%", metavar="FRACTION")
    max_skipped: str | float = _bad_documents(
        "Fail with more rows without text than this: null, or without the column.", default="1%", metavar="FRACTION"
    )
    document_timeout: str | float = _bad_documents(
        "A document that takes longer to tokenize is bad.", default=600, metavar="SECONDS"
    )
    quarantine_text: bool = _bad_documents("Also record the text of bad documents.", default=False)
    trust_tokens: bool = _bad_documents(
        "Take token ids that the tokenizer does not give for their text.", default=False
    )
    retry_quarantine: bool = _resuming("Redo the units that have documents in quarantine.", default=False)
    repair: bool = _resuming("Check the content of every part, and redo damaged parts.", default=False)
    drop_spool: bool = _resuming(
        "Remove DIR/spool, the copy of rows that are in no file, when the store is complete.", default=False
    )
    moved: str | Sequence[str] = _resuming(
        "New path of a source or of a directory of sources.", default=(), metavar="OLD=NEW", repeatable=True
    )


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PrepareOptions):
    """The options of `plan`: those of `prepare`, and a cluster."""

    nodes: int | None = _clusters("Also estimate the job on a cluster of so many nodes.", metavar="N", least=1)
    cores: int | None = _clusters("Cores of each node.", metavar="C", unset="those of this machine", least=1)


@dataclass(frozen=True)
class ExportOptions(RunOptions, ShardOptions):
    """The options of `export`."""

    directory: Stores = field(
        metadata=required(
            "The store. Several are exported as one, in this order: with one split and one shuffle over all of them. "
            "A recipe, a file that ends in .toml or .json, is exported as the tokens that its stages read, in whole "
            "documents, shuffled."
        ),
    )
    _: KW_ONLY
    to: str = field(
        metadata=required("Format of the files; `tokenmill formats` lists them.", heading="Exports", metavar="FORMAT")
    )
    out: StrPath | None = _output(
        "Directory of the files. A recipe needs it.", metavar="DIR2", short="o", unset="FORMAT in the last DIR"
    )
    eot_position: EndTokenPosition | None = _shards(
        "Where the eot token is: appended to each document or prepended.", unset="by format"
    )
    dtype: TokenType | None = _shards("Type of the tokens.", unset="by vocabulary")
    sequence_tokens: str | int | None = _shards("Tokens per sequence, for mds.", metavar="N", unset="2048")
    packed: str | int | None = _shards(
        "Rows of whole documents, at most N tokens each, with a loss mask, for parquet: as Megatron-Bridge reads them.",
        metavar="N",
        unset="a row for each document",
    )
    name: str | None = _shards("Start of the file names, for llmc, build-nanogpt and megatron.", metavar="NAME")
    columns: str | None = _shards(
        "Column of the tokens or the text, for parquet and text.", metavar="NAME", unset="input_ids, text"
    )
    with_columns: str | Sequence[str] | None = _shards(
        "Kept columns of the store to add to the files, for parquet and text. Erased documents have no values in them.",
        metavar="A,B,...",
        unset="none",
    )


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What decides the batches of a training that reads stores."""

    sequence_tokens: str | int | None = _batches("Tokens of a sequence.", metavar="N", unset="2048")
    batch_sequences: int | None = _batches("Sequences of a batch, over all ranks.", metavar="N", unset="8", least=1)
    seed: int | None = _batches("Seed of the order.", metavar="N", unset="1337", least=0)
    val: str | float | None = _batches(
        "Hold out a fraction of documents (0.01 or 1%) or split:NAME, as in exports.", metavar="V", unset="none"
    )
    split: Split = _batches("Split to read, with --val.", default="train")
    shuffle: Shuffle | None = _batches(
        "Order: of all grains, within windows of a billion tokens, so that few parts are read at a time, or that of "
        "the store.",
        unset="full",
    )
    packing: Packing | None = _batches(
        "Cut the stream into sequences; pack documents, few of them cut; or none cut, and sequences padded.",
        unset="concat",
    )
    grain: str | int | None = _batches(
        "Tokens that stay together in a shuffle, a multiple of --sequence-tokens.", metavar="N", unset="8192"
    )


@dataclass(frozen=True)
class TrainingOptions(BatchOptions):
    """The options of `loader`."""

    stores: Stores = field(
        metadata=required(
            "A complete store or several, mixed by their sizes; or a recipe, a file that ends in .toml or .json. A "
            "recipe has its own choices, so only `prefetch`, `fields`, `rank` and `world_size` go with it."
        )
    )
    _: KW_ONLY
    epochs: int | None = _others("Epochs of a pass, after which a `for` loop ends.", metavar="N", unset="1", least=1)
    prefetch: str | int = _others(
        "Memory of this process for batches that are fetched ahead from an object store. More survives a longer "
        "failure of the server.",
        default="256MB",
        metavar="SIZE",
    )
    fields: str | Sequence[Field] | None = _others(
        "Arrays of a batch: input_ids, labels, tokens, position_ids, cu_seqlens, document_ids, source_ids.",
        metavar="A,B,...",
        unset="input_ids,labels",
    )
    rank: int | None = option(
        "The number of this process, from 0.", unset="from torch.distributed, from `RANK`, from Slurm, or 0"
    )
    world_size: int | None = option("The number of processes that share each batch.", unset="as for `rank`, or 1")


@dataclass(frozen=True)
class TemplateOptions(ChatOptions):
    """The options of `template`."""

    model: StrPath | TokenizerObject = field(
        metadata=required("The tokenizer, as for prepare: its files have the template.")
    )
    source: StrPath | None = option("A file of conversations, one of which is shown.", default=None)
    _: KW_ONLY
    row: int = _others("Row of the file, from 0.", default=0, metavar="N", least=0)


@dataclass(frozen=True)
class LocateOptions(BatchOptions):
    """The options of `locate`."""

    where: Stores = field(
        metadata=required(
            "A store, several stores, the directory of an export, or a file of an export. With --step, also a recipe."
        )
    )
    token: int | None = option("The position of a token in the store or the file, from 0.", default=None)
    token2: int | None = option(
        "The end of a range: all documents with tokens in [token, token2) are found, 1,000 at most.", default=None
    )
    _: KW_ONLY
    source: StrPath | None = _others("Find a document of this source file, given by --row or --byte.", metavar="FILE")
    row: int | None = _others("Row of the document in its source. With --step: row of the batch.", metavar="N")
    byte: int | None = _others("Byte at which the document starts, in text and JSON Lines.", metavar="N")
    store: Stores | None = _others(
        "Store of an exported file, if the file is not inside it.", metavar="DIR", repeatable=True
    )
    context: int = _others("Tokens to show before and after.", default=40, metavar="N", least=0)
    step: int | None = _batches("Find a token of a training batch: its step, from 0.", metavar="N")
    position: int | None = _batches("Position of the token in row --row of the batch.", metavar="P")
