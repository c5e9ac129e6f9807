"""Models at a URL: downloaded once, and again when the server has another version."""

import hashlib
import logging
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from weft.hub.choice import parts_of
from weft.hub.download import Remote, download, fetched_or_cached, opened
from weft.hub.failure import Unavailable, not_cached, reason
from weft.hub.folders import holding, url_folder
from weft.hub.progress import DownloadCounter
from weft.hub.source import Source, bare, file_name

logger = logging.getLogger("weft")

MAGIC = b"GGUF"
"""First bytes of a GGUF file."""


def find(source: Source, counter: DownloadCounter) -> Path:
    """Returns the path of the model's file (the first part of a split model), after downloading it if necessary.

    Checks the current version online.

    Raises:
        Unavailable: The model is not available.
    """
    from huggingface_hub import get_token  # noqa: PLC0415

    url = str(source.url)
    urls = [urlunsplit(urlsplit(url)._replace(path=part)) for part in parts_of(urlsplit(url).path)]
    # All parts are in the folder of the first.
    folder = url_folder() / hashlib.sha256(urls[0].encode()).hexdigest()[:32]
    paths = [folder / file_name(each) for each in urls]
    headers = _headers(url, source.token or get_token())

    def cached() -> Path:
        if not all(path.is_file() for path in paths):
            raise Unavailable(not_cached(folder.parent))
        return paths[0]

    def fetch() -> Path:
        with holding(folder / "lock"):
            _download([_probe(each, headers) for each in urls], paths, counter)
        return paths[0]

    why = partial(reason, where=bare(url), has_token=bool(headers))
    return fetched_or_cached(fetch, cached, why, offline=source.offline)


def _download(remotes: list[Remote], cached: list[Path], counter: DownloadCounter) -> None:
    missing = [(remote, path) for remote, path in zip(remotes, cached, strict=True) if not _is_current(remote, path)]
    if not missing:
        logger.info("it is cached: %s", cached[0])
        return
    counter.expect(cached[0].name, [remote.size for remote, _ in missing])
    for remote, path in missing:
        version = hashlib.sha256(str(remote.etag).encode()).hexdigest()[:16]
        partial = path.with_name(f"{path.name}.{version}.incomplete")
        for stale in path.parent.glob(f"{path.name}.*.incomplete"):
            if stale != partial:
                stale.unlink()
        # While the file is being replaced it has no recorded version, so it counts as outdated.
        note = _version_file(path)
        note.unlink(missing_ok=True)
        download(remote, path, partial, counter)
        note.write_text(f"{bare(remote.url)}\n{remote.etag or ''}\n", encoding="utf-8")


def _is_current(remote: Remote, path: Path) -> bool:
    """Returns True if the cached file has the server's version. Without a version, it counts as current."""
    if not path.is_file() or not _version_file(path).is_file():
        return False
    return remote.etag is None or _version_file(path).read_text(encoding="utf-8").splitlines()[1:] == [remote.etag]


def _version_file(path: Path) -> Path:
    """Returns the path of the file that records URL and version of a download."""
    return path.with_name(f"{path.name}.from")


def _probe(url: str, headers: dict[str, str]) -> Remote:
    """Requests a file's metadata and checks its first bytes. Uses GET, since not every server supports HEAD."""
    with opened(url, headers) as response:
        beginning = b""
        for piece in response.iter_bytes():
            beginning += piece
            if len(beginning) >= len(MAGIC):
                break
        if not beginning.startswith(MAGIC):
            raise Unavailable(f"the URL does not return a GGUF file; its content begins with {bytes(beginning[:12])!r}")
        length = response.headers.get("Content-Length", "")
        return Remote(
            name=file_name(url),
            url=url,
            headers=headers,
            etag=response.headers.get("ETag"),
            size=int(length) if length.isdecimal() else None,
        )


def _headers(url: str, token: str | None) -> dict[str, str]:
    """Returns the authorization header, only for the hub, so that no other server receives the token."""
    from huggingface_hub import constants  # noqa: PLC0415

    is_hub = token is not None and urlsplit(url)[:2] == urlsplit(constants.ENDPOINT)[:2]
    return {"Authorization": f"Bearer {token}"} if is_hub else {}
