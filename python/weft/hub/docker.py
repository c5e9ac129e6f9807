"""Models in Docker's registry: the layer of an image that is a GGUF file.

The registry's protocol is https://distribution.github.io/distribution/spec/api/: a manifest lists the layers of a tag by hash,
and a request without a token is answered with the address that issues tokens.
"""

import logging
import os
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import parse_http_list, parse_keqv_list

import msgspec

from weft.hub.download import Remote, download, fetched_or_cached, opened
from weft.hub.failure import Unavailable, not_cached, reason, size_text
from weft.hub.folders import docker_folder, holding
from weft.hub.progress import DownloadCounter
from weft.hub.source import Source, docker_parts

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

logger = logging.getLogger("weft")

REGISTRY = "https://registry-1.docker.io"
"""Default registry; `WEFT_DOCKER_REGISTRY` may name another one, such as a mirror."""

MANIFESTS = "application/vnd.docker.distribution.manifest.v2+json,application/vnd.oci.image.manifest.v1+json"

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a manifest, the limit of registries for uploads."""

Response = TypeVar("Response")


class _Layer(msgspec.Struct, rename="camel"):
    media_type: str = ""
    digest: str = ""
    size: int | None = None


class _Manifest(msgspec.Struct):
    layers: list[_Layer] = []


class _Grant(msgspec.Struct):
    token: str = ""
    access_token: str = ""


def find(source: Source, counter: DownloadCounter) -> Path:
    """Returns the path of the model's file, after downloading it if necessary. Resolves the tag online.

    Raises:
        Unavailable: The model is not available.
    """
    repo, tag = docker_parts(str(source.docker))
    folder = docker_folder() / quote(repo, safe="")
    note = folder / f"{tag}.tag"
    registry = _Registry(repo)

    def fetch() -> Path:
        registry.check_url()
        with holding(folder / "lock"):
            return _fetch(registry, tag, note, counter)

    return fetched_or_cached(fetch, partial(_cached, note), partial(_reason, where=registry.base), offline=source.offline)


def _cached(note: Path) -> Path:
    """Returns the file that a tag referred to when it was last resolved."""
    with suppress(OSError, ValueError):  # Unreadable, or not a file name.
        path = note.with_name(note.read_text(encoding="ascii").strip())
        if path.is_file():
            return path
    raise Unavailable(not_cached(note.parents[1]))


def _fetch(registry: "_Registry", tag: str, note: Path, counter: DownloadCounter) -> Path:
    layer = _model(registry.manifest(tag))
    sha256 = _sha256(layer.digest)
    path = note.with_name(f"{sha256}.gguf")
    if path.is_file():
        logger.info("%s:%s is cached: %s", registry.repo, tag, path)
    else:
        name = f"{registry.repo}:{tag}"
        counter.expect(name, [layer.size])
        url = f"{registry.base}/blobs/{layer.digest.lower()}"
        remote = Remote(name=name, url=url, size=layer.size, sha256=sha256)
        registry.download(remote, path, counter)
    # Written last, so that the tag only refers to a complete file.
    written = note.with_name(f"{note.name}.incomplete")
    written.write_text(f"{path.name}\n", encoding="ascii")
    written.replace(note)
    return path


def _model(manifest: _Manifest) -> _Layer:
    """Returns the layer of the model; its media type contains `gguf`."""
    layers = [layer for layer in manifest.layers if "gguf" in layer.media_type]
    if not layers:
        raise Unavailable("no layer of the image is a GGUF file")
    if len(layers) > 1:
        raise Unavailable(f"{len(layers)} layers of the image are GGUF files; only models in one file are supported")
    return layers[0]


def _sha256(digest: str) -> str:
    """Returns the hash of a layer. It is validated, because it becomes part of a path."""
    if (found := re.fullmatch(r"sha256:([0-9a-f]{64})", digest.lower())) is None:
        raise Unavailable(f"its manifest names the model {digest!r}, which is not a SHA-256")
    return found[1]


class _Registry:
    """One repository of a registry, with a token if one is required."""

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.url = (os.environ.get("WEFT_DOCKER_REGISTRY") or REGISTRY).rstrip("/")
        self.base = f"{self.url}/v2/{repo}"
        self._headers: dict[str, str] = {}

    def check_url(self) -> None:
        """Raises Unavailable if `WEFT_DOCKER_REGISTRY` is not a URL."""
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise Unavailable(f"WEFT_DOCKER_REGISTRY is {self.url!r}, which is not a URL such as {REGISTRY}")

    def manifest(self, tag: str) -> _Manifest:
        """Returns the manifest of an image."""
        url, accept = f"{self.base}/manifests/{tag}", {"Accept": MANIFESTS}
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

        try:
            return _get_json(url, accept, _Manifest)
        except HfHubHTTPError as error:
            if not self._request_token(error):
                raise
        return _get_json(url, accept | self._headers, _Manifest)

    def download(self, remote: Remote, path: Path, counter: DownloadCounter) -> None:
        """Downloads a layer, with a new token whenever one expires: they are valid for minutes."""
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

        partial = path.with_name(f"{path.name}.incomplete")
        n_before = -1
        while True:
            try:
                return download(replace(remote, headers=self._headers), path, partial, counter)
            except HfHubHTTPError as error:
                n_existing = partial.stat().st_size
                if n_existing <= n_before or not self._request_token(error):
                    raise
                n_before = n_existing
                # The next attempt counts these bytes again.
                counter.add(remote.name, -n_existing)

    def _request_token(self, error: "HfHubHTTPError") -> bool:
        """Requests a token if the response requires one and names its issuer. Returns True if there is a token now."""
        if error.response.status_code != 401:
            return False
        scheme, _, challenge = error.response.headers.get("WWW-Authenticate", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        try:
            given = parse_keqv_list(parse_http_list(challenge))
            realm = urlsplit(given.pop("realm", ""))
        except (ValueError, IndexError):
            raise Unavailable(f"{self.url} requires a token, but names no valid issuer: {challenge!r}") from None
        if realm.scheme not in ("https", urlsplit(self.url).scheme):
            return False
        wanted = urlencode({"scope": f"repository:{self.repo}:pull", **given})
        query = f"{realm.query}&{wanted}" if realm.query else wanted
        grant = _get_json(realm._replace(query=query, fragment="").geturl(), {}, _Grant)
        self._headers = {"Authorization": f"Bearer {grant.token or grant.access_token}"}
        return True


def _get_json(url: str, headers: dict[str, str], kind: type[Response]) -> Response:
    """Returns a JSON response of a server."""
    body = b""
    with opened(url, headers) as response:
        for piece in response.iter_bytes():
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise Unavailable(f"{url.partition('?')[0]} returned more than {size_text(MAX_ANSWER_BYTES)}")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Unavailable(f"{url.partition('?')[0]} does not return a {kind.__name__.strip('_').lower()}: {error}") from None


def _reason(error: Exception, where: str) -> str:
    """Returns the reason of a failure. Messages about the hub's tokens do not apply to registries."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    if not isinstance(error, HfHubHTTPError) or error.response.status_code not in (401, 403, 404):
        return reason(error, where=where)
    status = f"{error.response.status_code} {error.response.reason_phrase}".strip()
    return f"{where} has no such image, or requires a login, which is not supported ({status})"
