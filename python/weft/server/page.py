"""The built-in page at `/` (a prompt and its branches, or several chats), and a script for users' own pages."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from litestar.response.base import ASGIResponse

from weft.settings import Settings

__all__ = ["PATHS", "SCRIPT", "page", "script", "text_of"]

PATHS = ("/", "/index.html")
"""Paths of the page."""

SCRIPT = "/completion.js"
"""Path of the script that pages in the folder of `--path` may import, as from llama-server in 2024."""


def page(settings: Settings) -> ASGIResponse:
    """Returns the page: several chats with `--compat parallel`, else one prompt and its branches."""
    return _page("parallel.html" if settings.compat == "parallel" else "page.html")


@cache
def script() -> ASGIResponse:
    """Returns a JavaScript module for generating text with this server."""
    return ASGIResponse(body=text_of("completion.js"), media_type="text/javascript", headers=_HEADERS)


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


@cache
def _page(name: str) -> ASGIResponse:
    """Returns a self-contained page, with a policy that forbids browsers to load anything else."""
    text = text_of(name)
    policy = {
        "default-src": "'none'",
        "connect-src": "'self'",
        "script-src": _hash_of("script", text),
        "style-src": _hash_of("style", text),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = _HEADERS | {
        "content-security-policy": "; ".join(f"{name} {source}" for name, source in policy.items()),
        "referrer-policy": "no-referrer",
    }
    return ASGIResponse(body=text, media_type="text/html", headers=headers)


def _hash_of(element: str, text: str) -> str:
    """Returns the policy's source expression for the only inline element of this kind.

    See https://www.w3.org/TR/CSP3/#grammardef-hash-source.
    """
    [content] = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
