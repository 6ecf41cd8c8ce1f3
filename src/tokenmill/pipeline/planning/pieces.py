"""The options of documents that are made of pieces: fill-in-the-middle and prefixes."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.errors import UsageError
from tokenmill.humanize import parse_fraction
from tokenmill.options import JobOptions
from tokenmill.sources.text_columns import parse_template
from tokenmill.store.job import DEFAULT_FIM_SEED, DEFAULT_FIM_SPM, PARSE, Job
from tokenmill.system.arguments import column_names
from tokenmill.tokenization.control_tokens import spelled_special_tokens
from tokenmill.tokenization.fim import CHARACTER
from tokenmill.tokenization.fim_tokens import find_fim_tokens

# The options that have no meaning without another one.
DEPENDENT = {"fim_rate": ("fim_spm", "fim_split", "fim_tokens", "fim_seed"), "prefix": ("prefix_rate",)}


def fraction_of(option: str, value: str | float) -> float:
    """A fraction of documents or rows, which may be given as text."""
    text = str(value).strip()
    fraction = parse_fraction(text)
    if fraction is None or not 0 <= fraction <= 1:
        raise UsageError(f"{option} {text} is not a fraction", "Give a fraction of the documents: 0.001, or 0.1%.")
    return fraction


def piece_options(options: JobOptions) -> dict[str, Any]:
    """The fields of the job that these options decide with any tokenizer. Raises UsageError for contradictions."""
    for name, dependent in DEPENDENT.items():
        given = next((each for each in dependent if getattr(options, each) is not None), None)
        if given is not None and getattr(options, name) is None:
            raise UsageError(f"{option_name(given)} needs {option_name(name)}")
        other = "segments" if options.segments else "messages"
        if getattr(options, other) and getattr(options, name) is not None:
            raise UsageError(f"{option_name(name)} cannot be used with --{other}", _WITH_SPANS[name, other])
    if options.fim_rate is not None and options.template_special == PARSE and options.special != PARSE:
        raise UsageError(
            "--fim-rate cannot be used with --template-special parse",
            "A document could be cut inside a control token of the template.",
        )
    if options.prefix is not None:
        parse_template(options.prefix)
    return {
        "fim_rate": None if options.fim_rate is None else fraction_of("--fim-rate", options.fim_rate),
        "fim_spm": DEFAULT_FIM_SPM if options.fim_spm is None else fraction_of("--fim-spm", options.fim_spm),
        "fim_split": options.fim_split or CHARACTER,
        "fim_seed": DEFAULT_FIM_SEED if options.fim_seed is None else options.fim_seed,
        "prefix": options.prefix or "",
        "prefix_rate": 1.0 if options.prefix_rate is None else fraction_of("--prefix-rate", options.prefix_rate),
    }


_WITH_SPANS = {
    ("fim_rate", "segments"): "Documents of segments are not rearranged: what is trained on would change.",
    ("fim_rate", "messages"): "Conversations are not rearranged: what is trained on would change.",
    ("prefix", "segments"): "The prefix can be a segment of its own.",
    ("prefix", "messages"): "The prefix can be a message of its own, such as one of the system.",
}


def with_pieces(job: Job, options: JobOptions) -> Job:
    """The job with the control tokens of its tokenizer. Raises UsageError if it has none, or for those of a prefix."""
    if job.prefix and job.special != PARSE:
        spelled = spelled_special_tokens(job.tokenizer, parse_template(job.prefix).literals)
        if spelled:
            raise UsageError(
                f"the prefix spells {spelled[0]}, a special token of {job.tokenizer.name}",
                f"prefix       {job.prefix!r}",
                "Use --special parse to make it the token, also in the values of columns. Or leave it out.",
            )
    if job.fim_rate is None:
        return job
    tokens = find_fim_tokens(job.tokenizer, column_names(options.fim_tokens, "fim_tokens") or ())
    return msgspec.structs.replace(job, fim_tokens=tokens)


def option_name(name: str) -> str:
    """An option as a user writes it."""
    return f"--{name.replace('_', '-')}"
