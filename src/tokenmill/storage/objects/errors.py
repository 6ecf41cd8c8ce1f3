"""Errors of object stores: what happened, the reason in one line, and what to do.

Errors of the client are longer, and must not be shown whole: they contain the server's answer, in which S3 repeats
tokens.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tokenmill import humanize
from tokenmill.errors import FAILED, SourceError, StorageError, StoreError, TokenmillError
from tokenmill.storage.addresses import CREDENTIALS, FileInfo, split_url

EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken")
REFUSED = ("SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthenticationFailed", "AuthorizationFailure")
MISSING_BUCKET = ("NoSuchBucket", "ContainerNotFound")
SLOW_DOWN = ("SlowDown", "ServerBusy", "TooManyRequests")  # of S3, Azure and others

# Paths of the metadata server of a cloud instance, which the client asks if it has no other credentials.
INSTANCE = ("/latest/api/token", "/latest/meta-data", "metadata/identity", "computeMetadata")

# The reason that is shown if that server does not answer.
NO_CREDENTIALS = {
    "s3": "no keys in the environment or ~/.aws, and no role of an instance",
    "gs": "no key file, no login, and no account of an instance",
    "az": "no key in the environment, and no identity of an instance",
}

# The client's text for a missing option, then the reason and the advice that replace it.
MISSING_OPTIONS = {
    "Missing AccessKeyId": ("there is a secret key, and no access key", "Set AWS_ACCESS_KEY_ID."),
    "Missing SecretAccessKey": ("there is an access key, and no secret key", "Set AWS_SECRET_ACCESS_KEY."),
    "Account must be specified": ("no storage account is set", "Set AZURE_STORAGE_ACCOUNT_NAME."),
}

RESUME = "Run the same command again: committed work is kept."
ADDRESS = "Check the network, and the address of the endpoint if you have set one."
MAX_CHARACTERS = 200


def is_answer(error: BaseException) -> bool:
    """Whether the error is the answer of a server."""
    return _status(str(error)) is not None


def code(error: BaseException) -> str:
    """The error code of the server, such as NoSuchBucket; empty without one."""
    return _tag(str(error), "Code")


def is_slow_down(error: BaseException) -> bool:
    """Whether the server has refused a request because there are too many. Its answer to HEAD has no code."""
    return code(error) in SLOW_DOWN or bool(_TOO_MANY.search(str(error)))


def is_final(error: BaseException) -> bool:
    """Whether repeating the request cannot help."""
    text = str(error)
    if "redirect without LOCATION" in text:
        return True
    if is_answer(error):
        return not re.search(r"status code: (408|429|5(?!01))", text)  # 501, not implemented, is final
    no_name = _NO_NAME.search(text)
    return bool(_NO_TLS.search(text)) or _asks_an_instance(text) or bool(no_name and "Temporary" not in no_name[1])


def is_rejection(error: BaseException) -> bool:
    """The same for servers that have answered before: their names, and credentials, may be found again."""
    return is_final(error) and not _NO_NAME.search(str(error)) and not _asks_an_instance(str(error))


def reason(error: BaseException) -> str:
    """The reason in one short line: the message of the server or of the system."""
    text = str(error)
    rest, _, _ = text.partition("\n\nDebug source")
    rest = re.sub(
        r"(Generic \w+ error: )|(Error performing \w+ request: )|(Error performing \S+ \S+ in .*? - )", "", rest
    )
    rest = re.sub(r"HTTP error: |https?://\S+", "", rest.partition("<")[0])
    message = _status(text) or _network(text) or rest
    return humanize.escape_control_characters(" ".join(message.split()))[:MAX_CHARACTERS]


def changed(path: str, expected: str, found: str) -> SourceError:
    """The error for a source that changed after planning."""
    return SourceError(
        "a source changed since the run was planned",
        f"file         {path}",
        f"expected     {expected}",
        f"found        {found}",
        "Restore the file, or start a new run with another --out.",
    )


def another_version(url: str, fingerprint: str, found: FileInfo | None) -> SourceError:
    """The same for a remote source, which its fingerprint identifies."""
    described = f"fingerprint {found.fingerprint}, {found.size} bytes" if found else "nothing"
    return changed(url, f"fingerprint {fingerprint}", described)


@contextlib.contextmanager
def explained(url: str, action: str) -> Iterator[None]:
    """Turn an error of the client into one that names the URL, the action and what to do."""
    try:
        yield
    except TokenmillError:
        raise
    except FileNotFoundError as error:
        raise StoreError(f"cannot {action} {url}", "reason       there is no such object") from error
    except Exception as error:
        if type(error).__module__.startswith("obstore"):
            raise failed(url, action, error) from None
        raise


def failed(url: str, action: str, error: BaseException) -> TokenmillError:
    """The error for an object that could not be read, written or listed.

    Raise it from None: the text of the client's error contains the server's answer.
    """
    known = _missing(url, error) or _no_credentials(url, error) or _refused(url, action, error)
    advice = {"reach": ADDRESS, "use": "Check the settings in the environment, and in the profile."}.get(action, RESUME)
    result = known or StorageError(f"cannot {action} {_shown(url)}", f"reason       {reason(error)}", advice)
    if _is_lasting(action, error):
        return type(result)(result.headline, *result.details, exit_code=FAILED)
    return result


def _is_lasting(action: str, error: BaseException) -> bool:
    """Whether running the command again will fail the same way. Expired credentials can be renewed."""
    is_option_missing = any(text in str(error) for text in MISSING_OPTIONS)
    return (is_final(error) and code(error) not in EXPIRED) or is_option_missing or action == "use"


def no_conditional_create(url: str, why: str) -> StorageError:
    """The error for a server on which two drivers could both create the same object."""
    kind, bucket, _ = split_url(url)
    return StorageError(
        f"the object store has no conditional create ({kind}://{bucket})",
        f"reason       {why}",
        "needed       PUT with If-None-Match: * answers 412 if the object exists, and creates it if not",
        "known to     Amazon S3, Azure, Google Cloud Storage; SeaweedFS 4.48 and Ceph 18.2 were tried",
        "Without it, two runs could mix in one store. Use such a server, or an --out on a disk.",
    )


def _shown(url: str) -> str:
    """A URL without the names that only tokenmill adds below a store."""
    return url.partition("/.tokenmill")[0]


def _missing(url: str, error: BaseException) -> TokenmillError | None:
    kind, bucket, _ = split_url(url)
    if code(error) in MISSING_BUCKET:
        what = "container" if kind == "az" else "bucket"
        host = _host(str(error))
        asked = [f"asked        {host}"] * bool(host)
        return StorageError(f"there is no {what} {bucket}", *asked, "Make it first, or check its name.")
    if isinstance(error, FileNotFoundError) or code(error) == "NoSuchKey":
        return SourceError(f"there is no {_shown(url)}")
    return None


def _no_credentials(url: str, error: BaseException) -> StorageError | None:
    kind, bucket, _ = split_url(url)
    if _asks_an_instance(str(error)):
        why = f"reason       {NO_CREDENTIALS[kind]}"
        return StorageError(f"there are no credentials for {kind}://{bucket}", why, CREDENTIALS[kind])
    for text, (why, advice) in MISSING_OPTIONS.items():
        if text in str(error):
            return StorageError(f"{kind}://{bucket} cannot be used", f"reason       {why}", advice)
    return None


def _refused(url: str, action: str, error: BaseException) -> StorageError | None:
    why, where = f"reason       {reason(error)}", _shown(url)
    if code(error) in EXPIRED:
        return StorageError("the credentials have expired", f"at           {where}", why, f"Renew them. {RESUME}")
    region = _other_region(error)
    if region is not None:
        headline = f"the bucket {split_url(url)[1]} is in another region"
        return StorageError(headline, *[f"region       {region}"] * bool(region), f"Give --region {region or 'NAME'}.")
    if code(error) in REFUSED or re.match("40[13]", _status(str(error)) or ""):
        advice = "Check the credentials, and what they allow."
        return StorageError(f"the object store does not allow this process to {action} {where}", why, advice)
    return None


def _asks_an_instance(text: str) -> bool:
    return any(path in text for path in INSTANCE)


def _tag(text: str, tag: str) -> str:
    """The first content of an XML tag in the server's answer; empty without one."""
    match = re.search(f"<{tag}>([^<]*)</{tag}>", text)
    return match[1].strip() if match else ""


def _status(text: str) -> str | None:
    """The answer of a server: `403 Forbidden: SignatureDoesNotMatch: ` and the first sentence of its message."""
    match = re.search(r"status code: ([0-9]{3}[A-Za-z '-]*)", text)
    if match is None:
        return None
    if "HTTP request to an HTTPS server" in text or "plain HTTP request was sent to HTTPS" in text:
        return f"{match[1]}: TLS is spoken there, so the address begins with https://"
    message = re.split(r"\n|(?<=\.) |\\n", _tag(text, "Message"))[0]
    name = _tag(text, "Code")
    return ": ".join(filter(None, [match[1].strip(), name, message if message != name else ""]))


def _host(text: str) -> str:
    """The host and port of the server; empty if the error does not name it."""
    match = re.search(r"Error performing \w+ (https?://\S+) in ", text)
    return urlsplit(match[1]).netloc.rpartition("@")[2] if match else ""


_TOO_MANY = re.compile(r"status code: 429|performing HEAD .*status code: 503")
_NO_NAME = re.compile(r'failed to lookup address information: ([^"]*)"')
_NO_TLS = re.compile(r"InvalidMessage\(\s*InvalidContentType|WRONG_VERSION_NUMBER|wrong version number")
_SYSTEM = r'Os \{\s*code: [0-9]+,\s*kind: \w+,\s*message: "([^"]*)"'
# What failed without an answer: what the client's text has, and the sentence. The first one that fits counts.
_NETWORK = (
    (_NO_NAME, "the name {name} cannot be resolved: {detail}"),
    (_NO_TLS, "no TLS at {host}: is it http://?"),
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), "the certificate of {host} is not accepted: {detail}"),
    (re.compile(rf"(?s)(?=.*tcp connect error).*?{_SYSTEM}"), "no server answers at {host}: {detail}"),
    (re.compile(r"\bTimedOut\b|kind: Timeout|operation timed out"), "{host} does not answer in time"),
    (re.compile(_SYSTEM), "the connection to {host} broke: {detail}"),
    (re.compile("HTTP error"), "the connection to {host} broke"),
)


def _network(text: str) -> str | None:
    """What failed on the way to the server."""
    host = _host(text)
    for pattern, sentence in _NETWORK:
        if (match := pattern.search(text)) and (host or pattern is not _NETWORK[-1][0]):
            detail = match[1] if match.groups() else ""
            return sentence.format(host=host or "the server", name=re.sub(":[0-9]+$", "", host), detail=detail)
    return None


def _other_region(error: BaseException) -> str | None:
    """The region of the bucket if that is the problem, empty if the server does not name it; None for other errors."""
    text = str(error)
    if code(error) in ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"):
        expected = re.search(r"expecting '([\w-]+)'", _tag(text, "Message"))
        region = _tag(text, "Region") or (expected[1] if expected else "")
        return region if re.fullmatch("[a-z0-9-]*", region) else ""
    return "" if "redirect without LOCATION" in text else None
