"""The options of a call whose source is a store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.options import JobOptions, PrepareOptions
from tokenmill.pipeline.planning.chat import CHAT_OPTIONS
from tokenmill.pipeline.planning.pieces import DEPENDENT, option_name
from tokenmill.store.source_store import SourceStore
from tokenmill.tokenization.spec import TokenizerSpec

# What is about files. A store has its documents, units and splits.
OF_FILES = (
    *("column", "segments", "messages", *CHAT_OPTIONS, "tokens_column", "source_bos", "source_eot", "rows"),
    *("source_tokenizer", "separator", "join", "template", "null", "template_special", "prefix", "prefix_rate"),
    *("version", "split", "config", "unit_bytes", "moved"),
)
# What needs text: another tokenizer.
OF_TEXT = ("special", "fim_rate")
# What cannot be done with documents that are kept together.
OF_DOCUMENTS = ("dedup", "min_tokens", "max_tokens")


def refuse_files(options: PrepareOptions) -> None:
    """Raise UsageError for options that a store as source cannot have."""
    for name in OF_FILES:
        if getattr(options, name) not in {None, ()}:
            advice = "The store has its documents already. The option is about files."
            raise UsageError(f"{option_name(name)} cannot be used with a store as source", advice)
    if isinstance(options.tokenizer, list | tuple) and len(options.tokenizer) > 1:
        advice = "Prepare a store with each tokenizer."
        raise UsageError("several tokenizers cannot be used with a store as source", advice)


def with_source(options: PrepareOptions, source: SourceStore) -> PrepareOptions:
    """The options of a call, with those of the source for what is not given.

    Without a tokenizer it is that of the source, with its begin and end token.
    """
    job = source.job
    taken: dict[str, Any] = {"max_document_bytes": job.document_bytes, "keep": job.keep or None}
    if options.tokenizer is None:
        taken |= {name: "none" if token is None else token for name, token in (("bos", job.begin), ("eot", job.end))}
        taken |= {"tokenizer": job.tokenizer.name}
    return replace(options, **{name: value for name, value in taken.items() if getattr(options, name) is None})


def without_effect(source: SourceStore, spec: TokenizerSpec) -> tuple[str, ...]:
    """The options of another store that mean nothing for this source with this tokenizer."""
    of_text = ("special", "fim_rate", *DEPENDENT["fim_rate"]) if is_same(source.job.tokenizer, spec) else ()
    return *OF_FILES, *of_text


def is_same(one: TokenizerSpec, other: TokenizerSpec) -> bool:
    """Whether two tokenizers have the same ids for the same texts."""
    return (one.sha256, one.pattern, one.vocabulary_size) == (other.sha256, other.pattern, other.vocabulary_size)


def other_tokenizer(options: JobOptions, source: SourceStore, spec: TokenizerSpec) -> TokenizerSpec | None:
    """The tokenizer of the source if its documents have to be decoded; None if it is that of the new store.

    Raises UsageError for options that need the other case, and for columns that the source does not keep.
    """
    old, store = source.job.tokenizer, source.input
    has_ids = is_same(old, spec)
    where = f"store        {store.directory}"
    for name in OF_TEXT if has_ids else ():
        if getattr(options, name) is not None:
            advice = "The store has the tokens of its documents. It is about text."
            raise UsageError(f"{option_name(name)} needs another tokenizer than that of the source", where, advice)
    for name in OF_DOCUMENTS if store.splits_rows else ():
        if getattr(options, name) is not None:
            advice = "A row of the sources may be several documents, which are kept together."
            raise UsageError(f"{option_name(name)} cannot be used with this store as source", where, advice)
    if store.has_spans and not has_ids:
        raise UsageError(
            "a store with a mask can be a source only for the same tokenizer",
            where,
            f"tokenizer    was {old.name}, is now {spec.name}",
            "Which text is trained on is not known. Prepare the files again with the new tokenizer.",
        )
    return None if has_ids else old


def refuse_missing_columns(source: SourceStore, names: tuple[str, ...]) -> None:
    """Raise UsageError for a column that is asked for and that the source does not keep."""
    missing = [name for name in names if name not in source.input.keep]
    if missing:
        raise UsageError(
            f"the column {missing[0]!r} is not kept in the source",
            f"store        {source.input.directory}",
            f"kept columns {', '.join(source.input.keep) or 'none'}",
            "A store as source has the columns that were kept with --keep.",
        )
