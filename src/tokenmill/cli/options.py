"""The options that several commands share, and the headings under which help lists them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import partial
from typing import Any

import click

from tokenmill.errors import PYTHON_NAMES
from tokenmill.executors import terminal
from tokenmill.system import storage_settings
from tokenmill.system.arguments import Option, choices_of, types_of
from tokenmill.system.limits import require_limits

# With more options than these, help puts them under headings.
MAX_FLAT = 12
HEADINGS = {
    "Training batches": "",
    "Dataset card": "--card --name --license --description --creator --url --published",
    "Text and tokenizer": "--tokenizer",
    **dict.fromkeys(("Columns", "Tokens", "Conversations", "Fill in the middle", "Selection"), ""),
    "Output": "--out --print-job",
    **dict.fromkeys(("Exports", "Machine", "Clusters", "Bad documents", "Resuming"), ""),
    "Storage": "--endpoint --region --allow-http --cache",
    "General": "--json --quiet --debug --help --help-all",
}
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
    "prepare": "--tokenizer --out --to --val --shuffle --column --separator --template --keep --where --workers",
    "plan": "--tokenizer --out --to --shuffle --column --separator --template --where --workers --nodes --cores",
    "export": "--to --out --val --shuffle --shard-tokens --workers",
}


class Command(click.Command):
    """A command whose help lists many options under headings. It checks the limits of its process first.

    The options of storage apply while it runs. Options that a record declares (`declared`, or all) are made when they
    are first needed. Those that are not given are no arguments of the function.
    """

    checks_limits = True

    def __init__(
        self,
        *arguments: Any,
        common: Sequence[click.Option] = (),
        record: str = "PrepareOptions",
        declared: Sequence[str] | None = (),
        **attributes: Any,
    ) -> None:
        self._declare: Callable[[], list[DeclaredOption]] | None = partial(_declared_options, record, declared)
        super().__init__(*arguments, **attributes)
        self._params += common

    @property
    def params(self) -> list[click.Parameter]:
        """The arguments, the declared options and the others."""
        if self._declare is not None:
            arguments = sum(isinstance(each, click.Argument) for each in self._params)
            self._params[arguments:arguments], self._declare = self._declare(), None
        return self._params

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params

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
        for option in self.params:
            if isinstance(option, DeclaredOption) and ctx.params[option.name] in (None, ()):
                del ctx.params[option.name]
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


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a seed. Give a whole number: --shuffle 1337.") from None


class TokenPosition(click.ParamType[int]):
    """A number from 0 on, with or without the commas that tokenmill prints."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or raise click's own error."""
        if isinstance(value, str):
            value = value.replace(",", "").replace("_", "")
        return int(click.IntRange(0).convert(value, param, ctx))


# The types of options whose values are explained, or that take more spellings.
TYPES: dict[str, Any] = {
    "shuffle": _seed,
    **dict.fromkeys(("row", "byte", "step", "position"), TokenPosition()),
}


class DeclaredOption(click.Option):
    """An option that a field of a record declares."""

    name: str

    def __init__(self, field: Field[Any], hint: Any) -> None:
        about: Option = field.metadata["option"]
        self.heading = about.heading
        choices = choices_of(hint)
        number = click.IntRange(about.least) if about.least is not None else TYPES.get(field.name)
        flag = next((flag for flag, name in PYTHON_NAMES.items() if name == field.name), field.name.replace("_", "-"))
        default = about.unset or (field.default if field.default not in {None, (), False, MISSING} else "")
        texts = [about.meaning, "Repeatable." if about.repeatable else "", f"[default: {default}]" if default else ""]
        super().__init__(
            [f"--{flag}", field.name, *([f"-{about.short}"] if about.short else [])],
            type=click.Choice(choices) if choices else number,
            is_flag=hint is bool,
            multiple=about.repeatable,
            required=field.default is MISSING,
            default=None,
            metavar=about.metavar,
            callback=unescape if about.escapes else None,
            help=" ".join(filter(None, texts)),
        )


def _declared_options(record: str, names: Sequence[str] | None) -> list[DeclaredOption]:
    from tokenmill import options  # noqa: PLC0415 - only for a command that runs or shows its help

    declaration: type = getattr(options, record)
    types = types_of(declaration)
    named = [each for each in fields(declaration) if names is None or each.name in names]
    return [DeclaredOption(each, types[each.name]) for each in named if each.metadata["option"].heading]


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
    by_heading: dict[str, list[click.Option]] = {heading: [] for heading in (REST, *HEADINGS)}
    for option in options:
        name = max(option.opts, key=len)
        named = next((heading for heading, names in HEADINGS.items() if name in names.split()), REST)
        by_heading[option.heading if isinstance(option, DeclaredOption) else named].append(option)
    common = COMMON.get(command.name or "", "").split()
    for section in by_heading.values():
        section.sort(key=lambda option: common.index(option.opts[0]) if option.opts[0] in common else len(common))
    return {heading: section for heading, section in by_heading.items() if section}


def unescape(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    r"""Replace the \n, \t, \r and \\ that were typed by the characters that they mean in code."""
    if value is None:
        return None
    parts = value.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for part in parts)


def _remember_setting(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta.setdefault(_SETTINGS, {})[parameter.name or ""] = value


CARD = (
    click.Option(["--card"], metavar="DIR", help="Write a dataset card here: README.md and croissant.json."),
    click.Option(["--name"], metavar="NAME", help="Name of the dataset. [default: the last DIR's name]"),
    click.Option(
        ["--license"], metavar="ID", help="License: an id of the Hub, such as odc-by, or the URL of its text."
    ),
    click.Option(["--description"], metavar="TEXT", help="Description of the dataset. [default: its counts]"),
    click.Option(["--creator"], metavar="NAME", help="Organization that made the dataset."),
    click.Option(["--url"], metavar="URL", help="Web address of the dataset."),
    click.Option(["--published"], metavar="DATE", help="Date of publication, such as 2026-11-17."),
)

STORAGE = (
    click.Option(
        ["--endpoint"],
        metavar="URL",
        expose_value=False,
        callback=_remember_setting,
        help="Address of an S3-compatible server. [default: AWS_ENDPOINT_URL, or Amazon]",
    ),
    click.Option(
        ["--region"],
        metavar="NAME",
        expose_value=False,
        callback=_remember_setting,
        help="Region of the bucket. [default: AWS_REGION, or the profile's]",
    ),
    click.Option(
        ["--allow-http"],
        is_flag=True,
        default=None,
        expose_value=False,
        callback=_remember_setting,
        help="Allow credentials over http:// to another machine. [default: refused]",
    ),
)

CACHE = click.Option(
    ["--cache"],
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


GENERAL = (
    click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
    click.Option(
        ["--quiet", "-q"],
        is_flag=True,
        expose_value=False,
        callback=_remember_quiet,
        help="Show no progress; the summary stays.",
    ),
    click.Option(["--debug"], is_flag=True, expose_value=False, help="Show a traceback when something fails."),
)

# The options of `prepare` and `plan` that are not declared in their record.
PRINT_JOB = click.Option(["--print-job"], is_flag=True, help="Print these options as a file for --job, and exit.")
OF_SOURCES = (PRINT_JOB, *STORAGE, CACHE, *GENERAL)


def command(
    short_help: str,
    *examples: str,
    cls: type[Command] = Command,
    common: Sequence[click.Option] = (*STORAGE, *GENERAL),
    **attributes: Any,
) -> Callable[[Callable[..., Any]], Command]:
    """A command with the options that others have, too, and examples at the end of its help."""
    epilog = "\n  ".join(["\b\nExample:", *examples])
    return click.command(cls=cls, short_help=short_help, epilog=epilog, common=common, **attributes)


def with_job(given: dict[str, Any], print_job: bool, needed: Sequence[str]) -> dict[str, Any]:
    """The options that are given, with those of the job file. With `print_job`, print them and end the command."""
    from tokenmill.api import job_file  # noqa: PLC0415 - for these commands only

    context, arguments = click.get_current_context(), job_file.with_job(given)
    if print_job:
        terminal.echo(job_file.as_toml(arguments), nl=False)
        context.exit()
    for parameter in context.command.params:
        if parameter.name in needed and not arguments.get(parameter.name):
            raise click.MissingParameter(ctx=context, param=parameter)
    return arguments
