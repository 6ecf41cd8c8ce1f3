"""What is said when an object store does not do what it is asked: what happened, why in one line, and what to do.

Clients tell more than people want to know, and more than they should: whole answers, in which S3 repeats tokens.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from tokenmill import humanize
from tokenmill.errors import FAILED, SourceError, StorageError, TokenmillError
from tokenmill.storage.addresses import CREDENTIALS, FileInfo, split_url

EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken")
REFUSED = ("SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthenticationFailed", "AuthorizationFailure")
MISSING_BUCKET = ("NoSuchBucket", "ContainerNotFound")
INSTANCE = ("/latest/api/token", "/latest/meta-data", "metadata/identity", "computeMetadata")
"""Where an instance in a cloud gets its credentials: what is asked when there are no others."""

NO_CREDENTIALS = {
    "s3": "no keys in the environment or ~/.aws, and no role of an instance",
    "gs": "no key file, no login, and no account of an instance",
    "az": "no key in the environment, and no identity of an instance",
}
UNSAID = {
    "Missing AccessKeyId": ("there is a secret key, and no access key", "Set AWS_ACCESS_KEY_ID."),
    "Missing SecretAccessKey": ("there is an access key, and no secret key", "Set AWS_SECRET_ACCESS_KEY."),
    "Account must be specified": ("it is not said in which account", "Set AZURE_STORAGE_ACCOUNT_NAME."),
}
"""What a client says of options that are missing, and what is meant."""

RESUME = "Run the same command again: what is committed stays."
ADDRESS = "Check the network, and the address of the endpoint if you have set one."
MAX_CHARACTERS = 200


def is_answer(error: BaseException) -> bool:
    """Whether a server has answered, and this is what it said."""
    return _status(str(error)) is not None


def code(error: BaseException) -> str:
    """What the server calls the error: NoSuchBucket and so on; empty if it does not say."""
    return _told(str(error), "Code")


def is_final(error: BaseException) -> bool:
    """Whether it will be the same however often one asks."""
    text = str(error)
    if "redirect without LOCATION" in text:
        return True
    if is_answer(error):
        return not re.search(r"status code: (408|429|5(?!01))", text)  # 501: not implemented, now and later
    return _no_tls(text) is not None or _asks_an_instance(text) or bool(_no_name(text) and "Temporary" not in text)


def is_rejection(error: BaseException) -> bool:
    """The same of a server that has answered before: a name that cannot be resolved may come back."""
    return is_final(error) and _no_name(str(error)) is None


def reason(error: BaseException) -> str:
    """Why, in one short line: the words of the server or of the system."""
    text = str(error)
    own, _, _ = text.partition("\n\nDebug source")
    own = re.sub(
        r"(Generic \w+ error: )|(Error performing \w+ request: )|(Error performing \S+ \S+ in .*? - )", "", own
    )
    own = re.sub(r"HTTP error: |https?://\S+", "", own.partition("<")[0])
    said = _no_name(text) or _no_tls(text) or _status(text) or _system(text) or own
    return humanize.escape_control_characters(" ".join(said.split()))[:MAX_CHARACTERS]


def changed(path: str, expected: str, found: str) -> SourceError:
    """The error for a source that is not the one that was planned."""
    return SourceError(
        "a source changed since the run was planned",
        f"file         {path}",
        f"expected     {expected}",
        f"found        {found}",
        "Restore the file, or start a new run with another --out.",
    )


def another_version(url: str, fingerprint: str, found: FileInfo | None) -> SourceError:
    """The same for one behind a network, which is known by its fingerprint."""
    described = f"fingerprint {found.fingerprint}, {found.size} bytes" if found else "nothing"
    return changed(url, f"fingerprint {fingerprint}", described)


def failed(url: str, doing: str, error: BaseException) -> TokenmillError:
    """The error for an object that could not be read, written or listed: what happened, and what to do.

    Raise it from None: what the client says in full has the server's answer in it.
    """
    explained = _missing(url, error) or _no_credentials(url, error) or _refused(url, doing, error)
    advice = {"reach": ADDRESS, "use": "Check the settings in the environment, and in the profile."}.get(doing, RESUME)
    found = explained or StorageError(f"cannot {doing} {_shown(url)}", f"reason       {reason(error)}", advice)
    return _for_good(found) if _is_lasting(doing, error) else found


def _is_lasting(doing: str, error: BaseException) -> bool:
    """Whether running the command again gives the same; credentials that have expired are renewed."""
    unsaid = any(words in str(error) for words in UNSAID)
    return (is_final(error) and code(error) not in EXPIRED) or unsaid or doing == "use"


def _for_good(error: TokenmillError) -> TokenmillError:
    return type(error)(error.headline, *error.details, exit_code=FAILED)


def no_conditional_create(url: str, why: str) -> StorageError:
    """The error for a server on which two drivers could both create the same object."""
    kind, bucket, _ = split_url(url)
    return StorageError(
        f"the object store cannot create an object only if there is none ({kind}://{bucket})",
        f"reason       {why}",
        "needed       PUT with If-None-Match: * answers 412 if the object exists, and creates it if not",
        "known to     Amazon S3, Azure, Google Cloud Storage; SeaweedFS 4.48 and Ceph 18.2 were tried",
        "Without it, two runs could mix in one store. Use such a server, or an --out on a disk.",
    )


def _shown(url: str) -> str:
    """A URL without what nobody but us puts into a store."""
    return url.partition("/.tokenmill")[0]


def _missing(url: str, error: BaseException) -> TokenmillError | None:
    kind, bucket, _ = split_url(url)
    if code(error) in MISSING_BUCKET:
        what = "container" if kind == "az" else "bucket"
        asked = [f"asked        {host}" for host in _host(str(error))]
        return StorageError(f"there is no {what} {bucket}", *asked, "Make it first, or check its name.")
    if isinstance(error, FileNotFoundError) or code(error) == "NoSuchKey":
        return SourceError(f"there is no {_shown(url)}")
    return None


def _no_credentials(url: str, error: BaseException) -> StorageError | None:
    kind, bucket, _ = split_url(url)
    if _asks_an_instance(str(error)):
        why = f"reason       {NO_CREDENTIALS[kind]}"
        return StorageError(f"there are no credentials for {kind}://{bucket}", why, CREDENTIALS[kind])
    for words, (meant, advice) in UNSAID.items():
        if words in str(error):
            return StorageError(f"{kind}://{bucket} cannot be used", f"reason       {meant}", advice)
    return None


def _refused(url: str, doing: str, error: BaseException) -> StorageError | None:
    why, where = f"reason       {reason(error)}", _shown(url)
    if code(error) in EXPIRED:
        return StorageError("the credentials have expired", f"at           {where}", why, f"Renew them. {RESUME}")
    region = _other_region(error)
    if region is not None:
        headline = f"the bucket {split_url(url)[1]} is in another region"
        return StorageError(headline, *[f"region       {region}"] * bool(region), f"Give --region {region or 'NAME'}.")
    if code(error) in REFUSED or re.match("40[13]", _status(str(error)) or ""):
        advice = "Check the credentials, and what they allow."
        return StorageError(f"the object store does not let us {doing} {where}", why, advice)
    return None


def _asks_an_instance(text: str) -> bool:
    return any(path in text for path in INSTANCE)


def _told(text: str, tag: str) -> str:
    """What the server's answer says under a tag; the client tells the answer twice."""
    match = re.search(f"<{tag}>([^<]*)</{tag}>", text)
    return match[1].strip() if match else ""


def _status(text: str) -> str | None:
    """What a server has answered: 403 Forbidden: SignatureDoesNotMatch, and the first sentence about it."""
    match = re.search(r"status code: ([0-9]{3}[A-Za-z '-]*)", text)
    if match is None:
        return None
    if "HTTP request to an HTTPS server" in text or "plain HTTP request was sent to HTTPS" in text:
        return f"{match[1]}: TLS is spoken there, so the address begins with https://"
    message = re.split(r"\n|(?<=\.) |\\n", _told(text, "Message"))[0]
    named = _told(text, "Code")
    return ": ".join(filter(None, [match[1].strip(), named, message if message != named else ""]))


def _host(text: str) -> list[str]:
    """The server that was asked, if it is told, and its port."""
    match = re.search(r"Error performing \w+ (https?://\S+) in ", text)
    return [urlsplit(match[1]).netloc.rpartition("@")[2]] if match else []


def _no_name(text: str) -> str | None:
    match = re.search(r'failed to lookup address information: ([^"]*)"', text)
    name = re.sub(":[0-9]+$", "", " ".join(_host(text)))
    return f"the name {name} cannot be resolved: {match[1]}" if match else None


def _no_tls(text: str) -> str | None:
    wrong = re.search(r"InvalidMessage\(\s*InvalidContentType|WRONG_VERSION_NUMBER|wrong version number", text)
    return f"no TLS at {' '.join(_host(text))}: is it http://?" if wrong else None


def _system(text: str) -> str | None:
    """What the system says, if there was no connection, or it broke."""
    host = " ".join(_host(text))
    certificate = re.search(r"InvalidCertificate\(\s*(\w+)", text)
    if certificate:
        return f"the certificate of {host} is not accepted: {certificate[1]}"
    system = re.search(r'Os \{\s*code: [0-9]+,\s*kind: \w+,\s*message: "([^"]*)"', text)
    if "tcp connect error" in text and system:
        return f"nobody answers at {host}: {system[1]}"
    if re.search(r"\bTimedOut\b|kind: Timeout|operation timed out", text):
        return f"{host} does not answer in time" if host else "no answer in time"
    if system and host:
        return f"the connection to {host} broke: {system[1]}"
    return f"the connection to {host} broke" if host and "HTTP error" in text else None


def _other_region(error: BaseException) -> str | None:
    """The region that a bucket is in, empty if that is not told; None if it is not what is wrong."""
    text = str(error)
    if code(error) in ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"):
        expected = re.search(r"expecting '([\w-]+)'", _told(text, "Message"))
        region = _told(text, "Region") or (expected[1] if expected else "")
        return region if re.fullmatch("[a-z0-9-]*", region) else ""
    return "" if "redirect without LOCATION" in text else None
