"""A server that speaks the hub's routes, and serves files beside them; what it counts shows what was asked of it."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

PIECE = 4096


class FakeHub:
    """What the server has, and how it behaves."""

    def __init__(self) -> None:
        self.url = ""
        self.repos: dict[str, dict[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        """Beside the hub, by their paths."""
        self.images: dict[str, bytes] = {}
        """Those of a registry of images, as `REPO/MODEL:TAG`, each with one layer that is a GGUF file."""
        self.manifests: dict[str, Any] = {}
        """Further images, by what they are said to be made of."""
        self.locked = False
        """Whether the registry's tokens are good for nothing."""
        self.challenge: str | None = None
        """How the registry says where tokens are; None is as it should."""
        self.grants: list[str] = []
        """What tokens were asked for, each of which is good until `lasts` files were asked for with it."""
        self.lasts = 1_000
        self.tells_version = True
        """Whether those have an ETag."""
        self.private: dict[str, str] = {}
        """The token that a repository wants."""
        self.gated: set[str] = set()
        self.n_left = 0
        self.status = 200
        """What everything is answered with, if it is an error."""
        self.cuts: list[int] = []
        """After how many bytes the next answers break off."""
        self.damages = False
        """Whether what is sent has another first byte."""
        self.hold: threading.Event | None = None
        """What the second half of each file waits for."""
        self.n_sent = 0
        """Bytes of files."""
        self.ranges: list[str] = []
        """What was asked for in pieces."""
        self.tokens: list[str | None] = []
        """What each request for a file shows."""
        self.asked: list[str] = []
        """Every request: its method and path."""

    def manifest(self, tagged: str) -> dict[str, Any]:
        data = self.images[tagged]
        model = {
            "mediaType": "application/vnd.docker.ai.gguf.v3",
            "digest": f"sha256:{hashlib.sha256(data).hexdigest()}",
            "size": len(data),
        }
        return {"schemaVersion": 2, "layers": [{"mediaType": "application/vnd.docker.ai.license", "digest": "x"}, model]}

    def commit(self, repo: str) -> str:
        told = hashlib.sha1(repo.encode(), usedforsecurity=False)
        for name, data in sorted(self.repos[repo].items()):
            told.update(name.encode() + data)
        return told.hexdigest()

    def listing(self, repo: str) -> dict[str, Any]:
        siblings = []
        for name, data in sorted(self.repos[repo].items()):
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": "b" * 40}
            if name.endswith(".gguf"):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"id": repo, "sha": self.commit(repo), "siblings": siblings}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        if self.hub.status != 200:
            self._say(self.hub.status, b"", {})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            if self._may(found[1]):
                self._say(200, json.dumps(self.hub.listing(found[1])).encode(), {"Content-Type": "application/json"})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*found.groups())
        elif found := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._send(self.hub.repos[found[1]][found[2]])
        elif path == "/grants":
            self.hub.grants.append(urlsplit(self.path).query)
            self.hub.n_left = self.hub.lasts
            self._say(200, json.dumps({"token": f"grant{len(self.hub.grants)}"}).encode(), {})
        elif found := re.fullmatch(r"/v2/(.+)/(manifests|blobs)/(.+)", path):
            self._image(*found.groups())
        elif found := re.fullmatch(r"/layers/([0-9a-f]+)", path):
            self._send(next(data for data in self.hub.images.values() if hashlib.sha256(data).hexdigest() == found[1]))
        elif path in self.hub.files:
            self._send(self.hub.files[path], tells_version=self.hub.tells_version)
        else:
            self._say(404, b"", {})

    def _may(self, repo: str) -> bool:
        token = self.headers["Authorization"]
        if repo not in self.hub.repos:
            self._say(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo in self.hub.gated:
            self._say(403, b"", {"X-Error-Code": "GatedRepo"})
        elif repo in self.hub.private and token is None:
            self._say(401, b"", {"X-Error-Message": "Invalid username or password."})
        elif repo in self.hub.private and token != f"Bearer {self.hub.private[repo]}":
            self._say(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        else:
            return True
        return False

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if not self._may(repo):
            return
        if revision not in (self.hub.commit(repo), "main") or name not in self.hub.repos[repo]:
            self._say(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = self.hub.repos[repo][name]
        headers = {
            "X-Repo-Commit": self.hub.commit(repo),
            "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "X-Linked-Size": str(len(data)),
            "Location": f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{repo}/{name}",
        }
        self._say(302, b"", headers)

    def _image(self, repo: str, kind: str, name: str) -> None:
        if self.headers["Authorization"] != f"Bearer grant{len(self.hub.grants)}" or self.hub.n_left == 0 or self.hub.locked:
            realm = f'Bearer realm="{self.hub.url}/grants",service="registry.docker.io",scope="repository:{repo}:pull"'
            self._say(401, b"", {"WWW-Authenticate": self.hub.challenge or realm})
        elif kind == "blobs":
            self.hub.n_left -= 1
            cdn = self.hub.url.replace("127.0.0.1", "localhost")
            self._say(307, b"", {"Location": f"{cdn}/layers/{name.removeprefix('sha256:')}"})
        elif (tagged := f"{repo}:{name}") in self.hub.manifests:
            self._say(200, json.dumps(self.hub.manifests[tagged]).encode(), {})
        elif tagged in self.hub.images:
            self._say(200, json.dumps(self.hub.manifest(tagged)).encode(), {})
        else:
            self._say(404, b"", {})

    def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send(self, data: bytes, *, tells_version: bool = True) -> None:
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        self.hub.tokens.append(self.headers["Authorization"])
        begins, status = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked is not None and self.headers["If-Range"] in (None, etag):
            self.hub.ranges.append(asked[0])
            begins, status = int(asked[1]), 206
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) - begins))
        if tells_version:
            self.send_header("ETag", etag)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begins}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(data, begins)

    def _send_body(self, data: bytes, begins: int) -> None:
        cut = self.hub.cuts.pop(0) if self.hub.cuts else len(data)
        sent = bytes([data[0] ^ self.hub.damages]) + data[1:]
        for at in range(begins, len(data), PIECE):
            if self.hub.hold is not None and at >= len(data) // 2:
                self.hub.hold.wait(20)
            piece = sent[at : min(at + PIECE, begins + cut)]
            try:
                self.wfile.write(piece)
            except OSError:  # The client has left.
                self.close_connection = True
                return
            self.hub.n_sent += len(piece)
            if at + PIECE >= begins + cut:
                self.close_connection = begins + cut < len(data)
                return


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients may leave."""


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """One that serves until it is left."""
    hub = FakeHub()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        if hub.hold is not None:
            hub.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
