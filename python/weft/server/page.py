"""The page at `/`: type a prompt, and watch its branches grow, or talk in several chats. And a script for pages of users' own."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from litestar.response.base import ASGIResponse

from weft.settings import Settings

__all__ = ["PATHS", "SCRIPT", "page", "script", "text_of"]

PATHS = ("/", "/index.html")
"""Where the page is."""

SCRIPT = "/completion.js"
"""Where the script is that pages in the folder of `--path` may import, as they could from llama-server in 2024."""


def page(settings: Settings) -> ASGIResponse:
    """The page: several chats with `--compat parallel`, whose server was for them; else one prompt and its branches."""
    return _page("parallel.html" if settings.compat == "parallel" else "page.html")


@cache
def script() -> ASGIResponse:
    """A module of JavaScript that has texts written by this server."""
    return ASGIResponse(body=text_of("completion.js"), media_type="text/javascript", headers=_HEADERS)


_HEADERS = {
    "x-content-type-options": "nosniff",
    # The next version of the server has another page.
    "cache-control": "no-cache",
}


@cache
def text_of(name: str) -> str:
    """A file beside this one, with what several share in the place of the line that names it."""
    shared = "events.js"
    return _read(name).replace(f"// {shared}\n", _read(shared))


def _read(name: str) -> str:
    return (files("weft.server") / name).read_text(encoding="utf-8")


@cache
def _page(name: str) -> ASGIResponse:
    """A page of one file. Its browser is told to run and load nothing else."""
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
    """How the policy names the one inline element of this kind (https://www.w3.org/TR/CSP3/#grammardef-hash-source)."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
