"""Environments: one for each set of packages, made by uv, kept in a directory and used again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_SECONDS = 1800


class NotInstalled(Exception):
    """An environment could not be made; tells why in one line."""


@dataclass(frozen=True)
class Environment:
    """Where an environment's programs are, and the version of each package in it."""

    programs: Path
    versions: dict[str, str]

    def names(self, packages: tuple[str, ...]) -> str:
        """Some of its packages, with their versions."""
        return ", ".join(f"{name} {self.versions.get(name, '?')}" for name in map(_name, packages))


def _name(package: str) -> str:
    """The name of a requirement or a wheel."""
    return re.split(r"[\[=<>~]|-\d", package)[0]


def default_directory() -> str:
    """Where environments are kept unless told otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "tokenmill", "peers")


def make(directory: Path, packages: tuple[str, ...], more: list[str], python: str = "") -> Environment:
    """The environment with some packages, compiled, so that no first start pays for that; `more` are uv's options.

    It has this program's Python, or the version `python`.
    """
    content = b"".join(Path(word).read_bytes() for word in packages if word.endswith(".whl"))
    key = hashlib.sha256(json.dumps([python or sys.version, packages, more]).encode() + content).hexdigest()[:8]
    folder = directory / f"{_name(os.path.basename(packages[0]))}-{key}"
    program, record = folder / "bin" / "python", folder / "versions.json"
    if not record.exists():
        print(f"installing {' '.join(os.path.basename(package) for package in packages)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        uv("venv", "--quiet", "--python", python or sys.executable, str(folder))
        uv("pip", "install", "--quiet", "--compile-bytecode", "--python", str(program), *more, *packages)
        listed = json.loads(uv("pip", "list", "--python", str(program), "--format", "json"))
        record.write_text(json.dumps({package["name"]: package["version"] for package in listed}))
    return Environment(folder / "bin", json.loads(record.read_text()))


def build_wheel(checkout: Path, directory: Path) -> str:
    """A wheel of this checkout, as a user would install it."""
    uv("build", "--quiet", "--wheel", "--out-dir", str(directory), str(checkout))
    return str(next(directory.glob("*.whl")))


def uv(*words: str) -> str:
    """What uv prints; NotInstalled if it fails."""
    if not shutil.which("uv"):
        raise NotInstalled("uv is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    try:
        done = subprocess.run(
            ["uv", *words], capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"uv {words[0]} took more than {TIMEOUT_SECONDS} seconds") from error
    if done.returncode:
        lines = [line.strip(" \u00d7╰─▶│├") for line in done.stderr.splitlines() if line.strip()]
        raise NotInstalled(f"uv {words[0]} failed: {' '.join(lines[-2:])}"[:300])
    return done.stdout
