"""Settings of object stores in the environment and in profiles.

Credentials come from where the store's other tools find them: the environment, the instance, and for S3 the keys of a
profile. They are passed to the client and nowhere else.
"""

from __future__ import annotations

import configparser
import os
import re
from typing import Any

from tokenmill.errors import FAILED, StorageError
from tokenmill.storage.digest import hash_of
from tokenmill.system import environment
from tokenmill.system.storage_settings import StorageSettings

PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
ENDPOINTS = re.compile(r"AWS_ENDPOINT(_URL(_S3)?)?|AZURE_(STORAGE_)?ENDPOINT")
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
PROFILE_ENDPOINT = "endpoint_url of the profile"
GOOGLE_LOGIN = "~/.config/gcloud/application_default_credentials.json"


def identity(scheme: str, settings: StorageSettings) -> str:
    """A hash of all settings of a client. It changes when keys are renewed, also those in a file."""
    values = {**settings.variables(PREFIXES[scheme]), environment.ALLOW_HTTP: str(settings.allows_http)}
    files = [(path, _version(path)) for path in _files(scheme)]
    return hash_of(repr((sorted(values.items()), files)).encode())


def location(scheme: str, settings: StorageSettings) -> tuple[str, ...]:
    """The server that a client of a scheme talks to now: endpoint, region and profile, as far as they are set."""
    values = settings.variables(PREFIXES[scheme])
    names = [name for name in sorted(values) if ENDPOINTS.fullmatch(name) or name in REGIONS]
    return (*(f"{name}={values[name]}" for name in names), values.get("AWS_PROFILE", ""))


def check_endpoints(scheme: str, settings: StorageSettings, profile: dict[str, Any]) -> None:
    """Refuse an endpoint that is not an address, or that would receive credentials without encryption.

    A text that is not the name of a region is refused, too.
    """
    values = settings.variables(PREFIXES[scheme])
    endpoints = {name: value for name, value in values.items() if ENDPOINTS.fullmatch(name) and value}
    if profile.get("endpoint"):
        endpoints[PROFILE_ENDPOINT] = profile["endpoint"]
    is_allowed = any(
        values.get(f"{PREFIXES[scheme]}{name}", "").lower() in ("true", "1")
        for name in ("SKIP_SIGNATURE", "ALLOW_HTTP", "STORAGE_SKIP_SIGNATURE")
    )
    regions = {name: values.get(name) for name in REGIONS} | {"region of the profile": profile.get("region")}
    for name, region in regions.items():
        if region:
            environment.check_region(name, region)
    for variable, address in endpoints.items():
        name = "--endpoint" if address == settings.endpoint else variable
        environment.check_server(name, address)
        if not is_allowed:
            settings.check_encrypted(name, address)


def given(settings: StorageSettings) -> dict[str, Any]:
    """The endpoint and the region that a caller gives, as options of the client of S3.

    The client reads the environment, too, where the name of another variable could take precedence.
    """
    options = {"region": settings.region, "endpoint": settings.endpoint, "aws_endpoint_url_s3": settings.endpoint}
    return {name: value for name, value in options.items() if value is not None}


def profile(settings: StorageSettings) -> dict[str, Any]:
    """The keys, the region and the endpoint of the AWS profile, unless the settings or the environment set them."""
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
    values = {**config, **keys}
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    variables = settings.variables(PREFIXES["s3"])
    if not any(name in variables for name in REGIONS):
        names["region"] = "region"
    if not any(name.startswith("AWS_ENDPOINT") for name in variables):
        names["endpoint"] = "endpoint_url"
    return {name: values[key] for name, key in names.items() if key in values}


def _files(scheme: str) -> list[str]:
    """The files that may contain credentials for a scheme."""
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
    """Values that change when a file is rewritten or replaced; empty if it does not exist."""
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
