"""Resumable download of one file, which appears at its final path only when it is complete."""

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from weft.hub.failure import Unavailable, is_out_of_reach, size_text, words
from weft.hub.progress import DownloadCounter

if TYPE_CHECKING:
    from httpx2 import Response
    from huggingface_hub.utils import tqdm

logger = logging.getLogger("weft")

T = TypeVar("T")

MAX_FAILURES = 5
"""Maximum consecutive attempts without progress."""

PAUSE_S = 1.0
"""Pause between two attempts, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file on a server."""

    name: str
    """Name for messages."""
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    etag: str | None = None
    """Version of the file, in quotes as in HTTP; None if it has none."""
    size: int | None = None
    """Size in bytes; None if unknown."""
    sha256: str | None = None
    """Hash of the content; None if unknown."""


def download(remote: Remote, target: Path, partial: Path, counter: DownloadCounter) -> None:
    """Downloads a file to `target` by way of `partial`, which may exist from an interrupted attempt, and may remain after one.

    `target` is created only when it is complete, with the expected size and hash.

    Raises:
        Unavailable: There is not enough disk space, or size or hash are wrong.
        httpx2.HTTPError: The server rejects the request.
        OSError: The file cannot be written.
    """
    from httpx2 import TransportError  # noqa: PLC0415

    target.parent.mkdir(parents=True, exist_ok=True)
    partial.touch()
    n_existing = _n_to_keep(partial, remote)
    counter.add(remote.name, n_existing)
    if counter.n_total is not None:
        _check_room(target.parent, counter.n_total, counter.n_total - counter.n_bytes)
    n_failures = 0
    with counter.bar(remote.name, n_existing, remote.size) as bar:
        while n_existing != remote.size or n_existing == 0:
            try:
                _pull(remote, partial, n_existing, counter, bar)
                break
            except TransportError as error:
                n_now = partial.stat().st_size
                n_failures = 0 if n_now > n_existing else n_failures + 1
                if n_failures == MAX_FAILURES:
                    raise
                n_existing = n_now
                logger.warning("%s: %s; resuming at %s", remote.name, words(error), size_text(n_now))
                time.sleep(PAUSE_S)
    _check(remote, partial)
    partial.replace(target)


def fetched_or_cached(
    fetch: Callable[[], T], cached: Callable[[], T], why: Callable[[Exception], str], *, offline: bool, is_hub: bool = False
) -> T:
    """Returns the result of `fetch`, or of `cached` if `offline`, in the offline mode of the hub, or if a server is out of reach.

    Args:
        fetch: Downloads what is not cached.
        cached: Returns the cached files; raises Unavailable if there are none.
        why: Returns the reason of a failure of `fetch`.
        offline: Uses cached files only.
        is_hub: Adds to the reason of a failure that nothing is cached.

    Raises:
        Unavailable: Neither is available.
    """
    from httpx2 import HTTPError, InvalidURL  # noqa: PLC0415
    from huggingface_hub import constants  # noqa: PLC0415

    if offline or constants.is_offline_mode():
        return cached()
    try:
        return fetch()
    except (HTTPError, OSError, InvalidURL) as error:
        failure = why(error)
        if not is_out_of_reach(error):
            raise Unavailable(failure) from None
        try:
            found = cached()
        except Unavailable:
            if is_hub:
                raise Unavailable(f"{failure}, and it is not cached") from None
            raise Unavailable(failure) from None
        logger.warning("%s; using the cached files", failure)
        return found


@contextmanager
def opened(url: str, headers: Mapping[str, str]) -> Iterator["Response"]:
    """Sends a GET request and yields the response, without reading its body.

    Uses the client of the hub's library, with its proxies.

    Raises:
        httpx2.HTTPError: The server is unreachable, or returns an error.
    """
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub.utils import get_session, hf_raise_for_status  # noqa: PLC0415

    # With an encoding, Content-Length would not be the size of the file.
    request_headers = {**headers, "Accept-Encoding": "identity"}
    with get_session().stream("GET", url, headers=request_headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        if not response.is_success:
            response.read()
            hf_raise_for_status(response)
        yield response


def _n_to_keep(partial: Path, remote: Remote) -> int:
    """Returns the number of usable bytes in `partial`; 0 without a known size and version, which are required to resume."""
    n = partial.stat().st_size
    if remote.size is None or (remote.etag is None and remote.sha256 is None) or n > remote.size:
        os.truncate(partial, 0)
        return 0
    return n


def _check_room(folder: Path, n_total: int, n_more: int) -> None:
    if (free := shutil.disk_usage(folder).free) < n_more:
        raise Unavailable(
            f"{size_text(n_more)} of its {size_text(n_total)} must still be downloaded to {folder},"
            f" which has {size_text(free)} of free space"
        )


def _pull(remote: Remote, partial: Path, n_existing: int, counter: DownloadCounter, bar: "tqdm") -> None:
    """Appends the response to `partial`, from byte `n_existing` or, if the server does not support ranges, from the beginning."""
    headers = dict(remote.headers)
    if n_existing:
        headers["Range"] = f"bytes={n_existing}-"
        if remote.etag is not None and remote.etag.startswith('"'):
            headers["If-Range"] = remote.etag
    with opened(remote.url, headers) as response:
        begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        start = int(begins[1]) if response.status_code == 206 and begins is not None else 0
        if start not in (0, n_existing):
            raise Unavailable(f"the server sent {remote.name} from byte {start}, but byte {n_existing} was requested")
        if start != n_existing:
            counter.add(remote.name, -n_existing)
            bar.update(-n_existing)
        with partial.open("r+b") as file:
            file.seek(start)
            file.truncate()
            for piece in response.iter_bytes():
                file.write(piece)
                bar.update(len(piece))
                counter.add(remote.name, len(piece))
            # Synchronizes before the rename, so that the file is complete even after a power failure.
            file.flush()
            os.fsync(file.fileno())


def _check(remote: Remote, partial: Path) -> None:
    """Checks size and hash, and deletes an invalid file, so that the next attempt restarts."""
    n = partial.stat().st_size
    if remote.size is not None and n != remote.size:
        partial.unlink()
        raise Unavailable(f"{remote.name} has {remote.size} bytes, but only {n} were received")
    if remote.sha256 is not None:
        with partial.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != remote.sha256:
            partial.unlink()
            raise Unavailable(f"{remote.name} was damaged in transfer: its SHA-256 is {digest}, not {remote.sha256}")
