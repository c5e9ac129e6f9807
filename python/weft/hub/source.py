"""Sources of downloadable models: names of repositories and images, and URLs."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class ModelFiles(NamedTuple):
    """Local files of a downloaded model."""

    model: Path
    """Path of the model, or of the first part of a split model, next to the others."""
    projector: Path | None = None
    """Path of the projector for images and audio, if it was requested and exists."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Source of a model: `repo`, optionally with a quantization or `file`, or `url`, or `docker`."""

    repo: str | None = None
    """`USER/MODEL` or `USER/MODEL:QUANT`."""
    file: str | None = None
    """File of the repository, with priority over the quantization."""
    url: str | None = None
    docker: str | None = None
    """`[REPO/]MODEL[:TAG]` of Docker's registry."""
    token: str | None = field(default=None, repr=False)
    """Access token for the hub; None is the token that the hub's library finds."""
    offline: bool = False
    """Uses cached files only."""
    wants_projector: bool = False
    """Also downloads the projector of the repository, if there is one."""

    @property
    def name(self) -> str:
        """Name for messages. For a URL, without user, password and query, which may be secret."""
        if self.url is not None:
            return bare(self.url)
        if self.docker is not None:
            return self.docker
        return f"{self.repo}, {self.file}" if self.file is not None else str(self.repo)


def repo_name(given: str) -> str:
    """Validates `USER/MODEL` or `USER/MODEL:QUANT`; raises ValueError."""
    part = r"[A-Za-z0-9](?:[\w.-]*\w)?"
    if len(given) > 256 or re.fullmatch(rf"{part}/{part}(?::\w[\w.-]*)?", given, re.ASCII) is None:
        raise ValueError(f"{given!r} is not USER/MODEL or USER/MODEL:QUANT, for example ggml-org/gemma-3-1b-it-GGUF:Q4_K_M")
    return given


_IMAGE = re.compile(
    r"(?:docker\.io/)?((?:[a-z0-9]+(?:[._-]+[a-z0-9]+)*/){0,3}[a-z0-9]+(?:[._-]+[a-z0-9]+)*)(?::(\w[\w.-]{0,127}))?", re.ASCII
)


def docker_name(given: str) -> str:
    """Validates `[REPO/]MODEL[:TAG]`, the image name in Docker's registry; raises ValueError."""
    if len(given) > 256 or _IMAGE.fullmatch(given) is None:
        raise ValueError(f"{given!r} is not [REPO/]MODEL[:TAG] in lowercase, for example smollm2:135M-Q4_0")
    return given


def docker_parts(name: str) -> tuple[str, str]:
    """Returns the repository and the tag of an image name, with the defaults `ai/` and `latest`."""
    found = _IMAGE.fullmatch(name)
    assert found is not None, "validated by docker_name"
    repo, tag = found.groups()
    return repo if "/" in repo else f"ai/{repo}", tag or "latest"


def http_address(given: str) -> str:
    """Validates an http(s) URL of a file; raises ValueError."""
    try:
        parts = urlsplit(given)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path.strip("/") != ""
        _ = parts.port
    except ValueError:
        is_fine = False
    if not is_fine or re.search(r"[\s\x00-\x1f]", given):
        raise ValueError(f"{given!r} is not the URL of a file, for example https://example.org/model.gguf")
    return given


def bare(url: str) -> str:
    """Returns a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def file_name(url: str) -> str:
    """Returns the local name of the file at a URL."""
    name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    return name if name not in ("", ".", "..") and "\0" not in name and len(name.encode()) <= 200 else "model.gguf"
