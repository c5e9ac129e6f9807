"""A model that is named and not given: what of which repository of the hub, or which address."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = ["Found", "Source", "bare", "file_name", "http_address", "repo_name"]


class Found(NamedTuple):
    """What was named, in local files."""

    model: Path
    """Of a split model its first part, with the others beside it."""
    projector: Path | None = None
    """What reads pictures and sounds for it, where that was wanted and is there."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model comes from: `repo`, with a quantisation or a file of it, or `url`."""

    repo: str | None = None
    """`USER/MODEL` or `USER/MODEL:QUANT`."""
    file: str | None = None
    """A file of the repository; it wins over the quantisation."""
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    """What the hub is shown; None is the one that the hub's own library finds."""
    offline: bool = False
    """Whether only what is cached may be taken."""
    wants_projector: bool = False
    """Whether the projector that lies beside the model in its repository is wanted too, where there is one."""

    @property
    def name(self) -> str:
        """What messages call it. An address is told without what follows its path, which may be a secret."""
        if self.url is not None:
            return bare(self.url)
        return f"{self.repo}, {self.file}" if self.file is not None else str(self.repo)


def repo_name(given: str) -> str:
    """A parser of `USER/MODEL` and `USER/MODEL:QUANT`; ValueError says what is wrong."""
    part = r"[A-Za-z0-9](?:[\w.-]*\w)?"
    if len(given) > 256 or re.fullmatch(rf"{part}/{part}(?::\w[\w.-]*)?", given, re.ASCII) is None:
        raise ValueError(f"{given!r} is not USER/MODEL or USER/MODEL:QUANT, as ggml-org/gemma-3-1b-it-GGUF:Q4_K_M")
    return given


def http_address(given: str) -> str:
    """A parser of http(s) addresses of files; ValueError says what is wrong."""
    try:
        parts = urlsplit(given)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path.strip("/") != ""
        _ = parts.port
    except ValueError:
        is_fine = False
    if not is_fine or re.search(r"[\s\x00-\x1f]", given):
        raise ValueError(f"{given!r} is not the address of a file, as https://example.org/model.gguf")
    return given


def bare(url: str) -> str:
    """An address without its user, its password, and what follows its path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def file_name(url: str) -> str:
    """The name under which the file at an address is kept."""
    name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return name if name not in ("", ".", "..") and "\0" not in name and len(name.encode()) <= 200 else "model.gguf"
