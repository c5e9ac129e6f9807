"""The page at `/`: type a prompt, and watch its branches grow."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from litestar.response.base import ASGIResponse

__all__ = ["PATHS", "page"]

PATHS = ("/", "/index.html")
"""Where the page is."""


@cache
def page() -> ASGIResponse:
    """The page. It is one file, and its browser is told to run and load nothing else."""
    text = (files("weft.server") / "page.html").read_text(encoding="utf-8")
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
    headers = {
        "content-security-policy": "; ".join(f"{name} {source}" for name, source in policy.items()),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        # The next version of the server has another page.
        "cache-control": "no-cache",
    }
    return ASGIResponse(body=text, media_type="text/html", headers=headers)


def _hash_of(element: str, text: str) -> str:
    """How the policy names the one inline element of this kind (https://www.w3.org/TR/CSP3/#grammardef-hash-source)."""
    [content] = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
