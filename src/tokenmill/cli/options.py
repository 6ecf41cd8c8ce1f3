"""The options that several commands share, and the headings under which help lists them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tokenmill.system import environment
from tokenmill.system.limits import require_limits

Function = TypeVar("Function", bound=Callable[..., Any])

# With more options than these, help puts them under headings.
MAX_FLAT = 12
HEADINGS = {
    "Text and tokenizer": "--tokenizer --version --column --separator --engine --eot --bos",
    "Output": "--out",
    "Exports": "--to --val --shuffle --shard-tokens --tail --end-token --dtype --sequence-tokens --name",
    "Machine": "--workers --memory --unit-bytes --limit-units --force",
    "Clusters": "--on --rank --of",
    "Bad documents": "--on-bad --max-bad --document-timeout --max-document-bytes --quarantine-text",
    "Resuming": "--retry-quarantine --repair --moved",
    "Storage": "--endpoint --region --allow-http --cache",
    "General": "--json --quiet --debug --help",
}
REST = "Options"


class Command(click.Command):
    """A command whose help lists many options under headings. It checks the limits of its process first."""

    checks_limits = True

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command if the system's limits allow the smallest run; raise otherwise."""
        if self.checks_limits:
            require_limits()
            # numpy does no linear algebra here, and its threads count toward the process limit.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, heading by heading."""
        for heading, section in sections(self, ctx).items():
            with formatter.section(heading):
                formatter.write_dl([option.get_help_record(ctx) or ("", "") for option in section])


def sections(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """The options of a command by heading, its own ones first. A command with few options has one heading."""
    options = [param for param in command.get_params(context) if isinstance(param, click.Option) and not param.hidden]
    if len(options) <= MAX_FLAT:
        return {REST: options}
    by_heading: dict[str, list[click.Option]] = {heading: [] for heading in (REST, *HEADINGS)}
    for option in options:
        name = max(option.opts, key=len)
        by_heading[next((heading for heading, names in HEADINGS.items() if name in names.split()), REST)].append(option)
    return {heading: section for heading, section in by_heading.items() if section}


def example(*commands: str) -> str:
    """The end of a command's help."""
    return "\n  ".join(["\b\nExample:", *commands])


def unescape_separator(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    r"""Replace the \n, \t, \r and \\ that were typed by the characters that they mean in code."""
    if value is None:
        return None
    parts = value.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for part in parts)


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a seed. Give a whole number: --shuffle 1337.") from None


def _apply(_context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Set the environment of this process and its children at once, because workers start early."""
    environment.apply(**{parameter.name or "": value})


def _group(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


tokenizer = _group(
    click.option(
        "--tokenizer",
        "-t",
        required=True,
        metavar="T",
        help="gpt2, cl100k_base, ...; a model on the Hub (ORG/MODEL[@REVISION]); a .tiktoken file; "
        "a tokenizer.json or its directory.",
    ),
    click.option("--version", metavar="V", help="Which version of a dataset: `tokenmill datasets` lists them."),
    click.option("--column", metavar="NAME", help="Where the text is. [default: text, or where the dataset has it]"),
    click.option(
        "--separator",
        metavar="TEXT",
        callback=unescape_separator,
        help="What stands between documents in .txt files, such as '\\n\\n'. [default: a file is a document]",
    ),
    click.option(
        "--engine",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "gigatoken", "tiktoken", "tokenizers"]),
        help="All give the same tokens.",
    ),
    click.option(
        "--eot", metavar="ID", help="The end token: an id, its spelling, or none. [default: the tokenizer's own]"
    ),
    click.option("--bos", metavar="ID", help="The begin token: an id, its spelling, or none. [default: none]"),
)

units = _group(
    click.option("--unit-bytes", metavar="SIZE", help="Text in a unit of work. [default: by corpus size, 1 to 64 MiB]"),
    click.option(
        "--limit-units", type=click.IntRange(1), metavar="N", help="Only the first N units, to try something out."
    ),
)

bad_documents = _group(
    click.option(
        "--on-bad",
        default="quarantine",
        show_default=True,
        type=click.Choice(["quarantine", "fail"]),
        help="What becomes of documents that cannot be tokenized: named in DIR/quarantine.jsonl, or the run ends.",
    ),
    click.option(
        "--max-bad",
        default="0.1%",
        show_default=True,
        metavar="SHARE",
        help="More bad documents than this end the run.",
    ),
    click.option(
        "--document-timeout",
        default="600",
        show_default=True,
        metavar="SECONDS",
        help="A document that takes longer is bad.",
    ),
    click.option(
        "--max-document-bytes",
        metavar="SIZE",
        help="A longer document is bad. Frozen with the store. [default: 32 MiB]",
    ),
    click.option("--quarantine-text", is_flag=True, help="Keep the text of bad documents beside their names."),
)

resuming = _group(
    click.option("--retry-quarantine", is_flag=True, help="Do the units again that have documents in quarantine."),
    click.option("--repair", is_flag=True, help="Check the content of every part, and make damaged ones again."),
    click.option(
        "--moved",
        multiple=True,
        metavar="OLD=NEW",
        help="A source, or a directory of sources, has another path now; can be given several times.",
    ),
)

exports = _group(
    click.option(
        "--val",
        metavar="V",
        help="Held out: a share of the documents, chosen by hash (0.01 or 1%; the tokens are about as many), "
        "first-shard, or none. [default: by format]",
    ),
    click.option(
        "--shuffle", type=_seed, metavar="SEED", help="Put all documents into the random order of a seed, such as 1337."
    ),
    click.option("--shard-tokens", metavar="N", help="Tokens in a shard, such as 100M. [default: by format]"),
    click.option(
        "--tail",
        type=click.Choice(["keep", "drop", "merge"]),
        help="A last shard that is not full: keep it, drop it, or merge it into the one before. [default: by format]",
    ),
)

export_details = _group(
    click.option(
        "--end-token",
        type=click.Choice(["appended", "prepended"]),
        help="Where the end token stands: after each document or before it. [default: by format]",
    ),
    click.option(
        "--dtype", type=click.Choice(["uint16", "int32", "uint32"]), help="Type of the tokens. [default: by vocabulary]"
    ),
    click.option("--sequence-tokens", metavar="N", help="Tokens in a sequence of mds. [default: 2048]"),
    click.option("--name", metavar="NAME", help="What file names start with, where a format has it in them."),
)

workers = click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: one per core]")

resources = _group(
    workers,
    click.option("--memory", metavar="SIZE", help="Budget of a machine, such as 8GB. [default: 70 % of what there is]"),
)

force = click.option("--force", is_flag=True, help="Begin even if the disk seems too small.")

executor = click.option(
    "--on",
    default="local",
    show_default=True,
    metavar="PLACE",
    help="Where the work is done: local, ray (the cluster of this machine), or ray://HOST:PORT.",
)

rank = _group(
    click.option(
        "--rank",
        type=click.IntRange(0),
        metavar="I",
        help="This is process I, from 0, of several that share the work. [default: as Slurm or Kubernetes says]",
    ),
    click.option("--of", type=click.IntRange(1), metavar="N", help="How many there are."),
)

storage = _group(
    click.option(
        "--endpoint",
        metavar="URL",
        expose_value=False,
        callback=_apply,
        help="Where an S3-compatible store is. [default: AWS_ENDPOINT_URL, or Amazon]",
    ),
    click.option(
        "--region",
        metavar="NAME",
        expose_value=False,
        callback=_apply,
        help="The region of the bucket. [default: AWS_REGION, or the profile's]",
    ),
    click.option(
        "--allow-http",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_apply,
        help="Send credentials to an http:// endpoint on another machine. [default: it is refused]",
    ),
)

cache = click.option(
    "--cache",
    metavar="DIR",
    expose_value=False,
    callback=_apply,
    help="Keep whole files of the Hub here, checked by their hash. [default: only what is needed is fetched]",
)

_QUIET = "tokenmill.quiet"


def _remember_quiet(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


def quiet() -> bool:
    """Whether the current command runs with --quiet."""
    return bool(click.get_current_context().meta.get(_QUIET))


general = _group(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("--quiet", "-q", is_flag=True, expose_value=False, callback=_remember_quiet, help="Show no progress."),
    click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails."),
)
