"""Models at a URL: downloaded once, and again when the server has another version."""

import hashlib
import logging
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from weft.hub.choice import parts_of
from weft.hub.download import Remote, download, opened
from weft.hub.failure import Unavailable, is_out_of_reach, reason, size_text
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
    from httpx2 import HTTPError, InvalidURL  # noqa: PLC0415
    from huggingface_hub import constants, get_token  # noqa: PLC0415

    url = str(source.url)
    urls = [urlunsplit(urlsplit(url)._replace(path=part)) for part in parts_of(urlsplit(url).path)]
    # All parts are in the folder of the first.
    folder = url_folder() / hashlib.sha256(urls[0].encode()).hexdigest()[:32]
    cached = [folder / file_name(each) for each in urls]
    is_cached = all(path.is_file() for path in cached)
    if source.offline or constants.is_offline_mode():
        if not is_cached:
            raise Unavailable(f"it is not cached in {folder.parent}, and --offline keeps it from being downloaded")
        return cached[0]
    token = source.token or get_token()
    headers = _headers(url, token)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with holding(folder / "lock"):
            _download([_probe(each, headers) for each in urls], cached, counter)
    except (HTTPError, OSError, InvalidURL) as error:
        why = reason(error, where=bare(url), has_token=bool(headers))
        if not (is_cached and is_out_of_reach(error)):
            raise Unavailable(why) from None
        logger.warning("%s; taking what is cached of it", why)
    return cached[0]


def _download(remotes: list[Remote], cached: list[Path], counter: DownloadCounter) -> None:
    missing = [(remote, path) for remote, path in zip(remotes, cached, strict=True) if not _is_current(remote, path)]
    if not missing:
        logger.info("it is cached: %s", cached[0])
        return
    sizes = [remote.size for remote, _ in missing]
    counter.n_total = None if None in sizes else sum(size or 0 for size in sizes)
    logger.info("downloading %s%s", cached[0].name, "" if counter.n_total is None else f", {size_text(counter.n_total)}")
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
