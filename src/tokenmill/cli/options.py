"""The options that several commands share, and the headings under which help lists them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tokenmill.executors import terminal
from tokenmill.system import storage_settings
from tokenmill.system.limits import require_limits

Function = TypeVar("Function", bound=Callable[..., Any])

# With more options than these, help puts them under headings.
MAX_FLAT = 12
HEADINGS = {
    "Text and tokenizer": "--tokenizer --like --version --split --config --engine --eot --bos",
    "Columns": "--column --template --null --special --template-special --join --separator --keep",
    "Selection": "--where --deny --dedup --min-tokens --max-tokens",
    "Output": "--out",
    "Exports": "--to --val --shuffle --shard-tokens --tail --eot-position --dtype --sequence-tokens --name --columns"
    " --with",
    "Machine": "--workers --memory --unit-bytes --limit-units --force --metrics",
    "Clusters": "--on --rank --of",
    "Bad documents": "--on-bad --max-bad --max-skipped --document-timeout --max-document-bytes --quarantine-text",
    "Resuming": "--retry-quarantine --repair --moved",
    "Storage": "--endpoint --region --allow-http --cache",
    "General": "--json --quiet --debug --help --help-all",
}
# The first heading of a command about training batches, some of whose options other commands have, too.
BATCHES = "Training batches"
BATCH_OPTIONS = "--step --position --sequence-tokens --batch-sequences --seed --val --split --shuffle --packing --grain"
# The first heading of a command that writes a dataset card. Exports have a --name, too.
CARD = "Dataset card"
CARD_OPTIONS = "--card --name --license --description --creator --url --published"
REST = "Options"
# What a terminal shows while a command imports its libraries; most commands open a store.
STATUS = {
    **dict.fromkeys(("prepare", "plan"), "reading sources ..."),
    "bench": "starting ...",
    "datasets": "reading datasets ...",
    "formats": "",
}
_QUIET = "tokenmill.quiet"
_SETTINGS = "tokenmill.settings"
# Of commands with many options, --help shows these, and --help-all shows all.
COMMON = {
    **dict.fromkeys(
        ("prepare", "plan"),
        "--tokenizer --out --to --val --shuffle --column --separator --template --keep --where --workers",
    ),
    "export": "--to --out --val --shuffle --shard-tokens --workers",
}


class Command(click.Command):
    """A command whose help lists many options under headings. It checks the limits of its process first.

    The options of storage apply while it runs.
    """

    checks_limits = True

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with --help-all if --help shows only the common options."""
        return [*super().get_params(ctx), *([HELP_ALL] if self.name in COMMON else [])]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command if the system's limits allow the smallest run; raise otherwise."""
        if self.checks_limits:
            if not ctx.meta.get(_QUIET):
                terminal.show_status(STATUS.get(ctx.info_name or "", "opening the store ..."))
            require_limits()
            if "numpy" not in sys.modules:  # else this is the process of another program, and it is too late
                # numpy does no linear algebra here, and its threads count toward the process limit.
                os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        with storage_settings.using(**ctx.meta.get(_SETTINGS, {})):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, heading by heading, or only the common ones."""
        by_heading = sections(self, ctx)
        if self.name in COMMON and not ctx.params.get("help_all"):
            every = {option.opts[0]: option for section in by_heading.values() for option in section}
            by_heading = {"Common options": [every[name] for name in [*COMMON[self.name].split(), "--help-all"]]}
        for heading, section in by_heading.items():
            with formatter.section(heading):
                formatter.write_dl([option.get_help_record(ctx) or ("", "") for option in section])


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.params[parameter.name or ""] = True
        terminal.echo(ctx.get_help())
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options, and exit.",
)


def sections(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """The options of a command by heading, its own ones first. A command with few options has one heading."""
    options = [param for param in command.get_params(context) if isinstance(param, click.Option) and not param.hidden]
    if len(options) <= MAX_FLAT:
        return {REST: options}
    is_about_batches = any("--batch-sequences" in option.opts for option in options)
    headings = {BATCHES: BATCH_OPTIONS, **HEADINGS} if is_about_batches else HEADINGS
    if any("--card" in option.opts for option in options):
        headings = {CARD: CARD_OPTIONS, **headings}
    by_heading: dict[str, list[click.Option]] = {heading: [] for heading in (REST, *headings)}
    for option in options:
        name = max(option.opts, key=len)
        by_heading[next((heading for heading, names in headings.items() if name in names.split()), REST)].append(option)
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


def _remember_setting(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_SETTINGS, {})[parameter.name or ""] = value


def group(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


tokenizers = group(
    click.option(
        "--tokenizer",
        "-t",
        multiple=True,
        metavar="T",
        help="gpt2, cl100k_base, ...; a model on the Hub (ORG/MODEL[@REVISION]); a .tiktoken file; "
        "a tokenizer.json or its directory. If repeated: one store for each, DIR/T.",
    ),
    click.option(
        "--like",
        metavar="DIR",
        help="Instead of --tokenizer: take tokenizer, bos, eot and all options about text of this store. none switches "
        "one off: --keep none. Both stores can be read together.",
    ),
    click.option("--version", metavar="V", help="Version of a named dataset; `tokenmill datasets` lists them."),
    click.option(
        "--split",
        multiple=True,
        metavar="NAME",
        help="Split to read of a directory or Hub dataset that has several; repeatable. all takes all of them.",
    ),
    click.option("--config", metavar="NAME", help="Config to read of such a dataset. [default: its card's default]"),
    click.option("--column", metavar="NAME", help="Column with the text. [default: text, or the named dataset's own]"),
    click.option(
        "--separator",
        metavar="TEXT",
        callback=unescape_separator,
        help="Document separator in .txt files, such as '\\n\\n'. [default: each file is one document]",
    ),
    click.option(
        "--engine",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "gigatoken", "tiktoken", "tokenizers"]),
        help="Library that tokenizes. All give the same tokens.",
    ),
    click.option(
        "--eot",
        metavar="ID",
        help="Token after each document: an id, its text, or none. [default: the tokenizer's end-of-text token]",
    ),
    click.option("--bos", metavar="ID", help="Token before each document: an id, its text, or none. [default: none]"),
)

units = group(
    click.option("--unit-bytes", metavar="SIZE", help="Text per unit of work. [default: 1 to 64 MiB, by corpus size]"),
    click.option("--limit-units", type=click.IntRange(1), metavar="N", help="Do only the first N units, for a trial."),
)

max_skipped = click.option(
    "--max-skipped",
    default="1%",
    show_default=True,
    metavar="FRACTION",
    help="Fail with more rows without text than this: null, or without the column.",
)

bad_documents = group(
    click.option(
        "--on-bad",
        default="quarantine",
        show_default=True,
        type=click.Choice(["quarantine", "fail"]),
        help="On a bad document: record it in DIR/quarantine.jsonl, or fail.",
    ),
    click.option(
        "--max-bad",
        default="0.1%",
        show_default=True,
        metavar="FRACTION",
        help="Fail with more bad documents than this.",
    ),
    max_skipped,
    click.option(
        "--document-timeout",
        default="600",
        show_default=True,
        metavar="SECONDS",
        help="A document that takes longer to tokenize is bad.",
    ),
    click.option(
        "--max-document-bytes",
        metavar="SIZE",
        help="A longer document is bad. Fixed for the store. [default: 32 MiB]",
    ),
    click.option("--quarantine-text", is_flag=True, help="Also record the text of bad documents."),
)

resuming = group(
    click.option("--retry-quarantine", is_flag=True, help="Redo the units that have documents in quarantine."),
    click.option("--repair", is_flag=True, help="Check the content of every part, and redo damaged parts."),
    click.option(
        "--moved",
        multiple=True,
        metavar="OLD=NEW",
        help="New path of a source or of a directory of sources; repeatable.",
    ),
)

exports = group(
    click.option(
        "--val",
        metavar="V",
        help="Validation split: a fraction of documents (0.01 or 1%), split:NAME (a split of the sources), "
        "first-shard, or none. [default: by format]",
    ),
    click.option("--shuffle", type=_seed, metavar="SEED", help="Shuffle all documents with this seed, such as 1337."),
    click.option("--shard-tokens", metavar="N", help="Tokens per shard, such as 100M. [default: by format]"),
    click.option(
        "--tail",
        type=click.Choice(["keep", "drop", "merge"]),
        help="Last shard, if it is not full: keep it, drop it, or merge it with the one before. [default: by format]",
    ),
)

export_details = group(
    click.option(
        "--eot-position",
        type=click.Choice(["appended", "prepended"]),
        help="Where the eot token is: appended to each document or prepended. [default: by format]",
    ),
    click.option(
        "--dtype", type=click.Choice(["uint16", "int32", "uint32"]), help="Type of the tokens. [default: by vocabulary]"
    ),
    click.option("--sequence-tokens", metavar="N", help="Tokens per sequence, for mds. [default: 2048]"),
    click.option("--name", metavar="NAME", help="Start of the file names, for llmc, build-nanogpt and megatron."),
    click.option("--columns", metavar="NAME", help="Column of the tokens, for parquet. [default: input_ids]"),
    click.option(
        "--with",
        "with_columns",
        metavar="A,B,...",
        help="Kept columns of the store to add to the files, for parquet. [default: none]",
    ),
)

card = group(
    click.option("--card", metavar="DIR", help="Write a dataset card here: README.md and croissant.json."),
    click.option("--name", metavar="NAME", help="Name of the dataset. [default: the last DIR's name]"),
    click.option("--license", metavar="ID", help="License: an id of the Hub, such as odc-by, or the URL of its text."),
    click.option("--description", metavar="TEXT", help="Description of the dataset. [default: its counts]"),
    click.option("--creator", metavar="NAME", help="Organization that made the dataset."),
    click.option("--url", metavar="URL", help="Web address of the dataset."),
    click.option("--published", metavar="DATE", help="Date of publication, such as 2026-11-17."),
)
# The parameters of a card's options.
CARD_FIELDS = ("card", "name", "license", "description", "creator", "url", "published")

workers = click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="Worker processes. [default: one per core]"
)

resources = group(
    workers,
    click.option(
        "--memory", metavar="SIZE", help="Memory budget per machine, such as 8GB. [default: 70 % of available]"
    ),
)

force = click.option("--force", is_flag=True, help="Start even if the disk seems too small.")

executor = click.option(
    "--on",
    default="local",
    show_default=True,
    metavar="EXECUTOR",
    help="Where the work runs: local, ray (the cluster of this machine), or ray://HOST:PORT.",
)

rank = group(
    click.option(
        "--rank",
        type=click.IntRange(0),
        metavar="I",
        help="Number of this process, from 0, if several share the work. [default: set by Slurm or Kubernetes]",
    ),
    click.option("--of", type=click.IntRange(1), metavar="N", help="Number of processes that share the work."),
)

storage = group(
    click.option(
        "--endpoint",
        metavar="URL",
        expose_value=False,
        callback=_remember_setting,
        help="Address of an S3-compatible server. [default: AWS_ENDPOINT_URL, or Amazon]",
    ),
    click.option(
        "--region",
        metavar="NAME",
        expose_value=False,
        callback=_remember_setting,
        help="Region of the bucket. [default: AWS_REGION, or the profile's]",
    ),
    click.option(
        "--allow-http",
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_remember_setting,
        help="Allow credentials over http:// to another machine. [default: refused]",
    ),
)

cache = click.option(
    "--cache",
    metavar="DIR",
    expose_value=False,
    callback=_remember_setting,
    help="Keep whole files of the Hub here, checked by hash. [default: fetch only what is needed]",
)


def _remember_quiet(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


def quiet() -> bool:
    """Whether the current command runs with --quiet."""
    return bool(click.get_current_context().meta.get(_QUIET))


general = group(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option(
        "--quiet",
        "-q",
        is_flag=True,
        expose_value=False,
        callback=_remember_quiet,
        help="Show no progress; the summary stays.",
    ),
    click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails."),
)
