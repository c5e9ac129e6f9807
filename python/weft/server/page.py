"""The built-in pages of one file: `/` with `--compat parallel`, and `/docs`; and a script for users' own pages."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from litestar.response.base import ASGIResponse

PATHS = ("/", "/index.html")
"""Paths of the page."""

SCRIPT = "/completion.js"
"""Path of the script that pages in the folder of `--path` may import, as from llama-server in 2024."""

DOCS = {"/docs": "text/html", "/docs.css": "text/css", "/docs.js": "text/javascript"}
"""Media types of the documentation page and its files, by path. The page builds its content from `/openapi.json`."""

DOCS_FOLDER = "/docs/"
"""Path that leads to the documentation page."""


@cache
def parallel_page() -> ASGIResponse:
    """Returns the page of several chats, with a policy that forbids browsers to load anything else."""
    text = text_of("parallel.html")
    headers = _page_headers(script=_hash_of("script", text), style=_hash_of("style", text), images="data:")
    return ASGIResponse(body=text, media_type="text/html", headers=_HEADERS | headers)


@cache
def script() -> ASGIResponse:
    """Returns a JavaScript module for generating text with this server."""
    return ASGIResponse(body=text_of("completion.js"), media_type="text/javascript", headers=_HEADERS)


@cache
def docs_file(path: str) -> ASGIResponse:
    """Returns one of the files in `DOCS`, or a redirect from `DOCS_FOLDER`."""
    if path == DOCS_FOLDER:
        # Relative: a proxy or --api-prefix may put a path before this one.
        return ASGIResponse(status_code=308, headers={"location": "../docs"})
    name = path.strip("/")
    if path != "/docs":
        return ASGIResponse(body=text_of(name), media_type=DOCS[path], headers=_HEADERS)
    headers = _HEADERS | _page_headers(script="'self'", style="'self'", images="'self' data:")
    return ASGIResponse(body=text_of(f"{name}.html"), media_type=DOCS[path], headers=headers)


_HEADERS = {
    "x-content-type-options": "nosniff",
    # The page changes with the server's version.
    "cache-control": "no-cache",
}


@cache
def text_of(name: str) -> str:
    """Returns the text of a packaged file, with shared code inserted at the line that names it."""
    shared = "events.js"
    return _read(name).replace(f"// {shared}\n", _read(shared))


def _read(name: str) -> str:
    return (files("weft.server") / name).read_text(encoding="utf-8")


def _page_headers(*, script: str, style: str, images: str) -> dict[str, str]:
    """Returns the headers of a page that may connect to this server only, with a policy that allows these sources."""
    policy = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "script-src": script,
        "style-src": style,
        "img-src": images,
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {source}" for name, source in policy.items()),
        "referrer-policy": "no-referrer",
    }


def _hash_of(element: str, text: str) -> str:
    """Returns the policy's source expression for the only inline element of this kind.

    See https://www.w3.org/TR/CSP3/#grammardef-hash-source.
    """
    [content] = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
