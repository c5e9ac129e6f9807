"""The page for writers, as Vite builds it from `web/`: its files, compressed, with the headers that confine it."""

import gzip
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from litestar.response.base import ASGIResponse

from weft.server.auth import Header
from weft.server.executor import Executor, Purpose

INDEX = "index.html"

ASSETS = "/assets/"
"""Path of the folder of all other files. Their names contain a hash of their content, so browsers may cache them forever."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    # Svelte creates the elements of its compiled templates with its policy, and the page starts its workers with the other one.
    "require-trusted-types-for 'script'; trusted-types svelte-trusted-html weft-worker"
)
"""Content security policy. It allows only this server's files, and no string becomes markup or code."""

MEDIA_TYPES = MappingProxyType(
    {
        ".css": "text/css",
        ".html": "text/html",
        ".js": "text/javascript",
        ".png": "image/png",
        ".svg": "image/svg+xml",
        ".woff2": "font/woff2",
    }
)
"""Media types by file extension. The tables of the operating system may differ."""

_HEADERS = MappingProxyType(
    {"content-security-policy": POLICY, "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
)

_GZIP = re.compile(rb"(?:^|,)\s*gzip\s*(?:;\s*q=(?P<weight>[01](?:\.[0-9]{0,3})?)\s*)?(?=,|$)", re.IGNORECASE)
"""Entry of `Accept-Encoding` for gzip; it is refused with the weight 0."""


class _File(NamedTuple):
    plain: ASGIResponse
    compressed: ASGIResponse


class BuiltPage:
    """The files of the page."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._files: dict[str, _File] = {}
        """Files that were requested before."""

    async def answer(self, path: str, headers: Iterable[Header]) -> ASGIResponse | None:
        """Returns the file at a path of the server, or None if the page has no such file."""
        name = path[1:] if path.startswith(ASSETS) else INDEX
        if name not in _names():
            return None
        if name not in self._files:
            self._files[name] = await self._executor.run_in_thread(Purpose.FILE, 0, _read, name)
        return self._files[name].compressed if _accepts_gzip(headers) else self._files[name].plain


@cache
def _names() -> frozenset[str]:
    """Returns the paths of all files, relative to the index."""
    return frozenset({INDEX, *(f"assets/{file.name}" for file in (_folder() / "assets").iterdir())})


def _read(name: str) -> _File:
    """Reads and compresses a file; for a worker thread."""
    plain = _folder().joinpath(*PurePosixPath(name).parts).read_bytes()
    media_type = MEDIA_TYPES[PurePosixPath(name).suffix]
    caching = "no-cache" if name == INDEX else "public, max-age=31536000, immutable"
    headers = {**_HEADERS, "cache-control": caching, "vary": "accept-encoding"}
    return _File(
        ASGIResponse(body=plain, media_type=media_type, headers=headers),
        ASGIResponse(body=gzip.compress(plain, mtime=0), media_type=media_type, headers={**headers, "content-encoding": "gzip"}),
    )


def _folder() -> Traversable:
    return files("weft.server") / "web"


def _accepts_gzip(headers: Iterable[Header]) -> bool:
    accepted = b",".join(value for name, value in headers if name == b"accept-encoding")
    return any(float(entry["weight"] or 1) > 0 for entry in _GZIP.finditer(accepted))
