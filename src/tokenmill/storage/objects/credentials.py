"""Settings of object stores in the environment and in profiles, and what tells one set of them from another.

Credentials come from where the store's other tools find them: the environment, the instance, and for S3 the keys of a
profile. They are handed to the client and nowhere else.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import re
from typing import Any

from tokenmill.errors import FAILED, StorageError
from tokenmill.system import environment as settings

PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
ENDPOINTS = re.compile(r"AWS_ENDPOINT(_URL(_S3)?)?|AZURE_(STORAGE_)?ENDPOINT")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
PROFILE_ENDPOINT = "endpoint_url of the profile"
GOOGLE_LOGIN = "~/.config/gcloud/application_default_credentials.json"


def environment(scheme: str) -> dict[str, str]:
    """The variables that the client of a kind of store looks at."""
    prefix = PREFIXES[scheme]
    return {name: os.environ.get(name, "") for name in list(os.environ) if name.startswith(prefix)}


def identity(scheme: str) -> str:
    """A hash of every setting that a client is made of; it changes when keys are renewed, also those in a file."""
    said = {**environment(scheme), settings.ALLOW_HTTP: str(settings.allows_http())}
    files = [(path, _version(path)) for path in _files(scheme)]
    return hashlib.sha256(repr((sorted(said.items()), files)).encode()).hexdigest()


def location(scheme: str) -> tuple[str, ...]:
    """Which server a client of this kind talks to now: its endpoint and region, as far as they are set."""
    said = environment(scheme)
    named = [f"{name}={said[name]}" for name in sorted(said) if ENDPOINTS.fullmatch(name) or name in REGIONS]
    return (*named, said.get("AWS_PROFILE", ""))


def check_endpoints(scheme: str, profile: dict[str, Any]) -> None:
    """Refuse an endpoint that is not an address, or that would receive credentials without encryption."""
    said = environment(scheme)
    named = {name: value for name, value in said.items() if ENDPOINTS.fullmatch(name) and value}
    if profile.get("endpoint"):
        named[PROFILE_ENDPOINT] = profile["endpoint"]
    unsigned = any(
        said.get(f"{PREFIXES[scheme]}{name}", "").lower() in ("true", "1")
        for name in ("SKIP_SIGNATURE", "ALLOW_HTTP", "STORAGE_SKIP_SIGNATURE")
    )
    for name, address in named.items():
        settings.check_server(name, address)
        if not unsigned:
            settings.check_encrypted(name, address)


def profile() -> dict[str, Any]:
    """The keys and the region of the AWS profile, where the environment has none."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    name = os.environ.get("AWS_PROFILE", "default")
    keys_file, config_file = _files("s3")
    keys = _section(keys_file, name)
    config = _section(config_file, name if name == "default" else f"profile {name}")
    if "AWS_PROFILE" in os.environ and not keys and not config:
        raise StorageError(
            f"there is no AWS profile {name!r}", "See AWS_PROFILE and the files in ~/.aws.", exit_code=FAILED
        )
    found = {**config, **keys}
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ:
        names["region"] = "region"
    if not any(name.startswith("AWS_ENDPOINT") for name in os.environ):
        names["endpoint"] = "endpoint_url"
    return {name: found[key] for name, key in names.items() if key in found}


def _files(scheme: str) -> list[str]:
    """The files that hold credentials of a kind of store, if they exist."""
    if scheme == "s3":
        home = os.path.expanduser("~/.aws")
        return [
            os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/credentials"),
            os.environ.get("AWS_CONFIG_FILE", f"{home}/config"),
        ]
    if scheme == "gs":
        return [os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or os.path.expanduser(GOOGLE_LOGIN)]
    return []


def _version(path: str) -> tuple[int, ...]:
    """What changes when a file is written again or replaced; empty if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _section(path: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except configparser.Error as error:
        reason = f"reason       line {getattr(error, 'lineno', '?')}"
        raise StorageError(f"{path} cannot be read", reason, exit_code=FAILED) from None
    return dict(parser[name]) if parser.has_section(name) else {}
