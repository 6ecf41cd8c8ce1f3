"""What a dataset declares about itself: configs and splits in its card (README.md), splits in dataset_dict.json."""

from __future__ import annotations

import glob
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tokenmill.storage.globs import matches
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode, decode_yaml

CARD = "README.md"
DATASET_DICT = "dataset_dict.json"

# Of a card or a dataset_dict.json, so many bytes are read.
MAX_BYTES = 4 << 20

# The split of files that a config declares without one, as in `datasets`.
DEFAULT_SPLIT = "train"

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*$", re.DOTALL | re.MULTILINE)
# The key `configs` up to the next key. The rest of a card is not parsed: it can be long.
_CONFIGS = re.compile(r"^configs:.*\n?(?:(?:[ \t#-].*)?\n)*(?:[ \t#-].*)?", re.MULTILINE)


class _SplitFiles(msgspec.Struct):
    """The files of one split in a card."""

    path: str | list[str]
    split: str = DEFAULT_SPLIT


class _CardConfig(msgspec.Struct):
    """One config in a card. The Hub allows several forms of `data_files`."""

    config_name: str = "default"
    data_files: str | list[str | _SplitFiles] | dict[str, str | list[str]] = ""
    data_dir: str = ""
    default: str = ""


class _Card(msgspec.Struct):
    """The part of a card that is used."""

    configs: list[_CardConfig] = []


class _DatasetDict(msgspec.Struct):
    """A file that `DatasetDict.save_to_disk` writes."""

    splits: list[str]


@dataclass(frozen=True, slots=True)
class Config:
    """A config of a card: patterns of paths for each split; without any, all files below `directory`.

    `directory` is part of the patterns.
    """

    name: str
    is_default: bool
    directory: str
    patterns: dict[str, list[str]] = field(default_factory=dict)

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of files that the patterns spell."""
        tails = [re.split(r"[*?\]]", pattern)[-1] for patterns in self.patterns.values() for pattern in patterns]
        return tuple(dict.fromkeys(tail for tail in tails if "." in tail))

    def files(self, paths: Iterable[str]) -> dict[str, set[str]]:
        """The files of each split among paths that are relative to the directory of the card."""
        known = set(paths)
        found: dict[str, set[str]] = {}
        for split, patterns in self.patterns.items():
            globs = [pattern for pattern in patterns if glob.has_magic(pattern)]
            found[split] = known.intersection(patterns)
            found[split] |= {path for path in known if any(matches(path, pattern) for pattern in globs)}
        return found


def parse_card(content: bytes) -> list[Config]:
    """The configs of a card; none if it declares none. Raises MalformedDataError if they cannot be read."""
    if not content.removeprefix(BOM_UTF8).startswith(b"---"):
        return []
    try:
        front = _FRONT_MATTER.search(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedDataError("it is not UTF-8") from error
    configs = _CONFIGS.search(front[1]) if front else None
    return [_config(config) for config in decode_yaml(configs[0], _Card).configs] if configs else []


def parse_dataset_dict(content: bytes) -> list[str]:
    """The names of the splits, which are directories. Raises MalformedDataError if they cannot be read."""
    return decode(content, _DatasetDict).splits


def default_config(configs: Sequence[Config]) -> Config | None:
    """The only config, or the one that the card calls default; None if there are several and none of them is."""
    if len(configs) == 1:
        return configs[0]
    named = (config for config in configs if config.name == "default")
    return next((config for config in configs if config.is_default), next(named, None))


def _config(config: _CardConfig) -> Config:
    directory = config.data_dir.strip("/").removeprefix("./")
    patterns: dict[str, list[str]] = {}
    for split, path in _pairs(config):
        relative = path.removeprefix("./")
        patterns.setdefault(split, []).append(f"{directory}/{relative}" if directory else relative)
    return Config(config.config_name, config.default.lower() == "true", directory, patterns)


def _pairs(config: _CardConfig) -> list[tuple[str, str]]:
    """Each split and path that a config declares."""
    files = config.data_files
    if isinstance(files, dict):
        return [(split, path) for split, paths in files.items() for path in _listed(paths)]
    pairs = []
    for each in _listed(files) if isinstance(files, str) else files:
        split, paths = (DEFAULT_SPLIT, each) if isinstance(each, str) else (each.split, each.path)
        pairs += [(split, path) for path in _listed(paths)]
    return pairs


def _listed(paths: str | list[str]) -> list[str]:
    return ([paths] if paths else []) if isinstance(paths, str) else paths
