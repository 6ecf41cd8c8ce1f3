"""Small files of a model on the Hub, at one commit, by huggingface_hub's own client and in its own cache.

A branch is resolved to a commit once. Files that are in the cache at that commit are not requested again. If the Hub
cannot be reached, or in offline mode, the files of the revision that the cache holds are used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from tokenmill import humanize
from tokenmill.errors import FAILED, TRY_AGAIN, USAGE, TokenizerError
from tokenmill.storage.hub.address import is_commit
from tokenmill.storage.hub.client import CONNECT_SECONDS, endpoint, hub_token, library

CONFIG = "tokenizer_config.json"
MAX_LISTED = 200  # models of an organization that are compared with an unknown name
MAIN = "main"


class ModelFolder:
    """The files of a model at one commit. A file is downloaded when its path is asked for.

    Attributes:
        repository: `ORG/MODEL`.
        commit: The commit of all files.
        names: The names of the files; without a connection, those that are in the cache.
    """

    def __init__(
        self, repository: str, revision: str | None, probed: tuple[str, ...], *, asks_first: bool = False
    ) -> None:
        """The files `probed` may be all that the cache has of a commit. `asks_first` asks the Hub for all names."""
        self.repository = repository
        self._hub = _library()
        self._is_online = False
        self._paths: dict[str, str] = {}
        # The first file is requested by the name of the branch, so that the cache records its commit for offline mode.
        self._revision = revision
        self.names: tuple[str, ...] = ()
        self.commit = revision or MAIN
        if self._hub.constants.HF_HUB_OFFLINE:
            if not self._use_cache(probed):
                raise _offline(repository)
            return
        is_pinned = is_commit(self.commit) and not asks_first
        if is_pinned and self._use_cache(probed) and CONFIG in self.names and len(self.names) > 1:
            return
        self._connect(probed)

    def path(self, name: str) -> str | None:
        """The local path of a file; None if the model has no such file."""
        if name not in self._paths and name in self.names and self._is_online:
            with self._translated():
                self._download(name)
        return self._paths.get(name)

    def _connect(self, probed: tuple[str, ...]) -> None:
        """Ask the Hub for the commit and the names of the files; if it cannot be reached, use the cache."""
        with self._translated(lambda: self._use_cache(probed)):
            api = self._hub.HfApi(endpoint=endpoint(), token=hub_token() or False, library_name="tokenmill")
            info = api.model_info(self.repository, revision=self._revision, timeout=CONNECT_SECONDS)
            if not is_commit(info.sha or ""):
                raise TokenizerError("this is no answer of a Hub", f"asked        {endpoint()}", "Check HF_ENDPOINT.")
            self.commit, self._is_online = info.sha, True
            self.names = tuple(sibling.rfilename for sibling in info.siblings or ())

    def _download(self, name: str) -> None:
        token = hub_token() or False
        with _no_progress_bars(self._hub), contextlib.suppress(self._hub.errors.RemoteEntryNotFoundError):
            path = self._hub.hf_hub_download(
                self.repository, name, revision=self._revision, token=token, endpoint=endpoint()
            )
            self._paths[name] = path
            self.commit = self._revision = _commit_of(path) or self.commit

    def _use_cache(self, probed: tuple[str, ...]) -> bool:
        """Use the files of the revision that the cache holds; False if it holds none of them."""
        pinned = self._revision or MAIN
        for name in probed:
            path = self._hub.try_to_load_from_cache(self.repository, name, revision=pinned)
            if isinstance(path, str):
                self._paths[name], pinned = path, _commit_of(path) or pinned
        if self._paths and is_commit(pinned):
            self.commit, self.names = pinned, tuple(self._paths)
            return True
        return False

    @contextlib.contextmanager
    def _translated(self, without_answer: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Raise errors of requests in the words of a user, unless `without_answer` makes up for a missing answer."""
        try:
            yield
        except (OSError, library().HTTPError) as error:  # the Hub's own errors are HTTP errors, too
            if _is_answer(self._hub, error) or not without_answer():
                _raise(self._hub, error, self.repository, self._revision)


def _library() -> Any:
    import huggingface_hub  # noqa: PLC0415 - not for local runs
    from huggingface_hub import constants, errors, utils  # noqa: F401, PLC0415 - attributes of the module from here on

    return huggingface_hub


def _commit_of(path: str) -> str | None:
    """The commit in the path of a cached file: `.../snapshots/COMMIT/NAME`."""
    parts = path.split(os.sep)
    following = parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-1] else ""
    return following if is_commit(following) else None


@contextlib.contextmanager
def _no_progress_bars(hub: Any) -> Iterator[None]:
    """Turn the progress bars of downloads off, unless the environment fixes them."""
    bars = hub.utils
    if bars.are_progress_bars_disabled() or hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    bars.disable_progress_bars()
    try:
        yield
    finally:
        bars.enable_progress_bars()


def _is_answer(hub: Any, error: Exception) -> bool:
    """Whether the Hub answered, and refused: asking its cache instead would hide that."""
    refusals = (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError, hub.errors.GatedRepoError)
    status = getattr(getattr(error, "response", None), "status_code", None)
    return isinstance(error, refusals) or (status is not None and status < 500 and status not in (408, 425, 429))


def _raise(hub: Any, error: Exception, repository: str, revision: str | None) -> NoReturn:
    """Raise the error of a request in the words of a user."""
    token = hub_token()
    page = f"{endpoint()}/{repository}"
    renew = "check HF_TOKEN or run `hf auth login` again" if token else "set HF_TOKEN or run `hf auth login`"
    sent = "one was sent, and it was not accepted" if token else "none was sent"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, hub.errors.GatedRepoError) or status == 403:
        raise TokenizerError(
            f"the model {repository} is gated",
            f"token        {sent}",
            f"Accept its terms at {page}, then {renew}.",
            exit_code=FAILED,
        ) from None
    if isinstance(error, hub.errors.RevisionNotFoundError):
        raise TokenizerError(
            f"the model {repository} has no revision {revision}", f"See {page}/tree/{MAIN}.", exit_code=FAILED
        ) from None
    if isinstance(error, hub.errors.RepositoryNotFoundError) or status in (401, 404):
        raise TokenizerError(
            f"no such path, and no such model on the Hub: {repository}",
            *_similar(hub, repository, token),
            f"If it is private, {renew}.   (token: {sent})",
            "A path that begins with ./ is never looked for on the Hub.",
            exit_code=USAGE,
        ) from None
    reason = humanize.escape_control_characters(str(error).partition("\n")[0])[:200] or type(error).__name__
    if token:
        reason = reason.replace(token, "...")
    raise TokenizerError(
        f"the Hub cannot be reached, and its cache does not have {repository}",
        f"reason       {reason}",
        "Check the network, and HF_ENDPOINT and HTTPS_PROXY if you set them, or give the path of a tokenizer.json.",
        exit_code=TRY_AGAIN,
    ) from None


def _similar(hub: Any, repository: str, token: str | None) -> list[str]:
    """Models of the same organization with a similar name. No answer is no advice."""
    organization = repository.partition("/")[0]
    try:
        api = hub.HfApi(endpoint=endpoint(), token=token or False)
        names = [model.id for model in api.list_models(author=organization, limit=MAX_LISTED)]
    except Exception:  # noqa: BLE001 - advice only
        return []
    return humanize.did_you_mean(repository, names, 3)


def _offline(repository: str) -> TokenizerError:
    return TokenizerError(
        f"offline mode is on, and the cache of the Hub does not have the tokenizer of {repository}",
        "Unset HF_HUB_OFFLINE, or fill the cache where there is a network:",
        f"hf download {repository} tokenizer.json tokenizer_config.json",
        exit_code=FAILED,
    )
