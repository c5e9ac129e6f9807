"""Folders of downloads and their content."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote

from weft.hub.choice import choose, is_first, quant_of
from weft.hub.failure import Unavailable


def hub_folder() -> Path:
    """Returns the cache of the hub's library, shared with other programs: `LLAMA_CACHE`, or by `HF_HUB_CACHE` or `HF_HOME`."""
    from huggingface_hub import constants  # noqa: PLC0415

    return Path(os.environ.get("LLAMA_CACHE") or constants.HF_HUB_CACHE).expanduser().resolve()


def repository_folder(hub: Path, repo: str) -> Path:
    """Returns the cache folder of a repository: files by hash, and in `snapshots/COMMIT` by name."""
    return hub / f"models--{repo.replace('/', '--')}"


def url_folder() -> Path:
    """Returns the folder of downloads from URLs, which has one folder per model."""
    import platformdirs  # noqa: PLC0415

    return platformdirs.user_cache_path("weft", appauthor=False) / "urls"


def docker_folder() -> Path:
    """Returns the folder of downloads from Docker's registry, with one folder per repository: files by hash, and tags."""
    return url_folder().with_name("docker")


def snapshots(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields the cached commits of a repository, the current one first, then the latest, with the files of each."""
    try:
        current = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        current = ""
    try:
        found = [(entry.name == current, entry.stat().st_mtime, entry) for entry in (folder / "snapshots").iterdir()]
    except OSError:
        return
    for _, _, commit in sorted(found, reverse=True):
        # Skips links whose file was deleted.
        yield commit, [path.relative_to(commit).as_posix() for path in commit.rglob("*") if path.is_file()]


def cached() -> list[str]:
    """Returns the names of all downloads, sorted by kind: `USER/MODEL:QUANT` for the hub, URLs, and Docker images.

    Images are `docker.io/REPO/MODEL:TAG`.
    """
    found: set[str] = set()
    for folder in hub_folder().glob("models--*--*"):
        repo = folder.name.removeprefix("models--").replace("--", "/")
        for _, files in snapshots(folder):
            for name in filter(is_first, files):
                try:
                    choose(files, file=name)
                except Unavailable:  # The download is incomplete.
                    continue
                if name.lower().endswith(".gguf") and (quant := quant_of(name)) is not None and "mmproj" not in name:
                    found.add(f"{repo}:{quant}")
    return sorted(found) + sorted(downloaded_urls()) + sorted(_images())


def _images() -> Iterator[str]:
    for note in docker_folder().glob("*/*.tag"):
        if note.with_name(note.read_text(encoding="ascii").strip()).is_file():
            yield f"docker.io/{unquote(note.parent.name)}:{note.stem}"


def downloaded_urls() -> Iterator[str]:
    """Yields the URLs of downloads, without secret parts."""
    for kept in url_folder().glob("*/*.from"):
        if is_first(kept.stem) and kept.with_suffix("").is_file():
            text = kept.read_text(encoding="utf-8").splitlines()
            yield from text[:1]


@contextmanager
def holding(lock: Path) -> Iterator[None]:
    """Holds a lock, so that only one process downloads a model at a time."""
    import logging  # noqa: PLC0415

    from filelock import Timeout  # noqa: PLC0415
    from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415

    lock.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(WeakFileLock(lock, timeout=0.1))
        except Timeout:
            logging.getLogger("weft").info("waiting for another process to download it")
            stack.enter_context(WeakFileLock(lock))
        yield


HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""Format of commits and content hashes. Values from a server are validated before they become part of a path."""
