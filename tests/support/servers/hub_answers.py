"""How the tests' hub answers: the routes that huggingface_hub uses for datasets and models, and those of the CDN."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tests.support.servers.hub_log import API, CDN, RESOLVE, Request
from tests.support.servers.repositories import File, Repository

if TYPE_CHECKING:
    from tests.support.servers.hub import Hub

REPOSITORY = r"(?P<name>[^/]+/[^/]+)"
ROUTES = {
    "info": re.compile(rf"/api/(?:datasets|models)/{REPOSITORY}(/revision/(?P<revision>[^/]+))?"),
    "refs": re.compile(rf"/api/(?:datasets|models)/{REPOSITORY}/refs"),
    "tree": re.compile(rf"/api/(?:datasets|models)/{REPOSITORY}/tree/(?P<revision>[^/]+)(/(?P<path>.*))?"),
    "paths_info": re.compile(rf"/api/(?:datasets|models)/{REPOSITORY}/paths-info/(?P<revision>[^/]+)"),
    "resolve": re.compile(rf"(?:/datasets)?/{REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)"),
}
"""Matched before anything is unquoted: a revision or a folder may contain a quoted slash."""


class HubHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer any request: record it, refuse it if there were too many, or find its route."""
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.url = urlsplit(self.path)
        self.record = Request(
            self._kind(), self.command, self.path, self.headers.get("Range", ""), "Authorization" in self.headers
        )
        self.hub.log.requests.append(self.record)
        if self.hub.limit and (seconds := self.hub.limit.seconds_to_wait(self.record)):
            self._answer(429, {"error": "Too Many Requests"}, {"Retry-After": str(seconds)})
        elif self.record.kind == CDN:
            self._answer_cdn()
        else:
            self._answer_route()

    do_HEAD = do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the hub keeps its own log."""

    def _kind(self) -> str:
        if self.connection.getsockname()[1] == self.hub.cdn_port:
            return CDN
        return API if self.url.path.startswith("/api/") else RESOLVE

    def _answer_route(self) -> None:
        if self.url.path == "/api/models":
            self._answer(200, [{"_id": name, "id": name, "modelId": name} for name in self.hub.repositories])
            return
        matches = ((route, pattern.fullmatch(self.url.path)) for route, pattern in ROUTES.items())
        route, match = next(((route, match) for route, match in matches if match), ("", None))
        if match is None:
            self._fail(404, "RouteNotFound")
            return
        parts = {key: unquote(value or "") for key, value in match.groupdict().items()}
        repository = self.hub.repositories.get(parts["name"])
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.token and given != repository.token):
            # Like the Hub, so that nobody learns which private repositories there are.
            self._fail(404 if given and repository is None else 401, "RepoNotFound")
        elif route == "resolve" and repository.gate and given != repository.gate:
            self._fail(403 if given else 401, "GatedRepo", repository)
        elif not repository.knows(parts.get("revision") or "main"):
            self._fail(404, "RevisionNotFound", repository)
        else:
            getattr(self, f"_answer_{route}")(repository, parts.get("path", ""))

    def _answer_info(self, repository: Repository, _path: str) -> None:
        self._answer(200, repository.info(), _commit(repository))

    def _answer_refs(self, repository: Repository, _path: str) -> None:
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": repository.sha}
        self._answer(200, {"branches": [branch], "tags": [], "converts": []}, _commit(repository))

    def _answer_tree(self, repository: Repository, path: str) -> None:
        query = dict(parse_qsl(self.url.query))
        names = repository.listing(path, query.get("recursive", "").lower() in {"true", "1"})
        if names is None:
            self._fail(404, "EntryNotFound", repository)
            return
        start = int(query.get("cursor", "0"))
        stop = start + min(self.hub.page_size, int(query.get("limit", self.hub.page_size)))
        headers = _commit(repository)
        if stop < len(names):
            # By the name the client used, which may be a proxy's.
            address = f"http://{self.headers['Host']}{self.url.path}?{urlencode({**query, 'cursor': stop})}"
            headers["Link"] = f'<{address}>; rel="next"'
        self._answer(200, [repository.entry(name) for name in names[start:stop]], headers)

    def _answer_paths_info(self, repository: Repository, _path: str) -> None:
        if "json" in self.headers.get("Content-Type", ""):
            names = json.loads(self.body)["paths"]
        else:
            names = [value for key, value in parse_qsl(self.body.decode()) if key == "paths"]
        entries = [repository.entry(name) for name in names]
        self._answer(200, [entry for entry in entries if entry], _commit(repository))

    def _answer_resolve(self, repository: Repository, path: str) -> None:
        file = repository.files.get(path)
        if file is None:
            self._fail(404, "EntryNotFound", repository)
        elif not file.in_lfs:
            self._send_file(file, _commit(repository))
        else:
            linked = {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
            location = self.hub.sign(f"/{quote(repository.name)}/{quote(path)}")
            self._answer(302, None, {"Location": location, **linked, **_commit(repository)})

    def _answer_cdn(self) -> None:
        """Send a file by its name, not by its hash as the real CDN: a test may change what is behind an address."""
        query = dict(parse_qsl(self.url.query))
        if not self.hub.is_signed(self.url.path, query.get("Expires", ""), query.get("Signature", "")):
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access denied</Message></Error>")
            return
        organisation, name, path = unquote(self.url.path).lstrip("/").split("/", 2)
        file = self.hub.repositories[f"{organisation}/{name}"].files.get(path)
        if file is None:
            self._answer(404, b"")
        else:
            self._send_file(file, {})

    def _send_file(self, file: File, headers: Mapping[str, str]) -> None:
        with open(file.path, "rb") as content:
            size, start, stop, status = file.size, 0, file.size, 200
            if wanted := re.fullmatch(r"bytes=(\d*)-(\d*)", self.record.range):
                start, stop = _span(wanted[1], wanted[2], size)
                status = 206
            if status == 206 and start >= stop:
                self._answer(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            common = {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes", **headers}
            span = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"} if status == 206 else {}
            self._begin(status, stop - start, {"Content-Type": "application/octet-stream", **common, **span})
            if self.command != "HEAD" and stop > start:
                self.connection.sendfile(content, start, stop - start)

    def _fail(self, status: int, code: str, repository: Repository | None = None) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self._answer(status, {"error": code}, headers | (_commit(repository) if repository else {}))

    def _answer(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        self._begin(status, len(body), {"Content-Type": "application/json", **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _begin(self, status: int, body_bytes: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer. It is recorded first: whoever has the answer finds it in the log."""
        self.record.status = status
        self.record.bytes_sent = 0 if self.command == "HEAD" else body_bytes
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(body_bytes)}.items():
            self.send_header(name, value)
        self.end_headers()


def _commit(repository: Repository) -> dict[str, str]:
    return {"X-Repo-Commit": repository.sha}


def _span(first: str, last: str, size: int) -> tuple[int, int]:
    """Start and stop of a range of a file, from the two numbers of a Range header, of which one may be missing."""
    if not first:
        return max(0, size - int(last or 0)), size
    return int(first), min(int(last) + 1, size) if last else size
