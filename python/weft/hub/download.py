"""One file from a server, in one piece at the end: what is cut goes on where it was, also after a restart."""

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from weft.hub.failure import size_text, words
from weft.hub.progress import Tally
from weft.hub.unavailable import Unavailable

if TYPE_CHECKING:
    from httpx2 import Response
    from huggingface_hub.utils import tqdm

__all__ = ["Remote", "download", "opened"]

logger = logging.getLogger("weft")

MAX_FAILURES = 5
"""Attempts, one after the other, that bring nothing, after which it is given up."""

PAUSE_S = 1.0
"""Between two attempts, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file on a server."""

    name: str
    """What messages call it."""
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    etag: str | None = None
    """What stands for this version of it, in quotes as in HTTP; None is nothing that could."""
    size: int | None = None
    """In bytes; None is unknown."""
    sha256: str | None = None
    """What its bytes come to; None is unknown."""


def download(remote: Remote, target: Path, partial: Path, tally: Tally) -> None:
    """Brings a file to `target`, by way of `partial`, which an earlier attempt may have left behind and this one may leave.

    `target` is there only when all of it is, and has the length and the hash that the server told.

    Raises:
        Unavailable: The room does not suffice, or what has come is not what was told.
        httpx2.HTTPError: The server does not give it.
        OSError: It cannot be written.
    """
    from httpx2 import TransportError  # noqa: PLC0415

    target.parent.mkdir(parents=True, exist_ok=True)
    partial.touch()
    n_there = _n_to_keep(partial, remote)
    tally.add(remote.name, n_there)
    if tally.n_total is not None:
        _check_room(target.parent, tally.n_total, tally.n_total - tally.n_bytes)
    n_failures = 0
    with tally.bar(remote.name, n_there, remote.size) as bar:
        while n_there != remote.size or n_there == 0:
            try:
                _pull(remote, partial, n_there, tally, bar)
                break
            except TransportError as error:
                n_now = partial.stat().st_size
                n_failures = 0 if n_now > n_there else n_failures + 1
                if n_failures == MAX_FAILURES:
                    raise
                n_there = n_now
                logger.warning("%s: %s; going on at %s", remote.name, words(error), size_text(n_now))
                time.sleep(PAUSE_S)
    _check(remote, partial)
    partial.replace(target)


@contextmanager
def opened(url: str, headers: Mapping[str, str]) -> Iterator["Response"]:
    """What a server answers to GET, of which nothing is read yet. It is the client of the hub's library: its proxies hold.

    Raises:
        httpx2.HTTPError: The server is not reached, or answers that it does not give it.
    """
    from huggingface_hub import constants  # noqa: PLC0415
    from huggingface_hub.utils import get_session, hf_raise_for_status  # noqa: PLC0415

    # Without an encoding lengths are those of the file.
    asked = {**headers, "Accept-Encoding": "identity"}
    with get_session().stream("GET", url, headers=asked, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        if not response.is_success:
            response.read()
            hf_raise_for_status(response)
        yield response


def _n_to_keep(partial: Path, remote: Remote) -> int:
    """How many bytes of an earlier attempt are good; without a length and a version nothing can be said of them."""
    n = partial.stat().st_size
    if remote.size is None or (remote.etag is None and remote.sha256 is None) or n > remote.size:
        os.truncate(partial, 0)
        return 0
    return n


def _check_room(folder: Path, n_total: int, n_more: int) -> None:
    if (free := shutil.disk_usage(folder).free) < n_more:
        raise Unavailable(
            f"of its {size_text(n_total)}, {size_text(n_more)} have still to be written to {folder},"
            f" where {size_text(free)} are free"
        )


def _pull(remote: Remote, partial: Path, n_there: int, tally: Tally, bar: "tqdm") -> None:
    """Appends what comes, from byte `n_there` on, or from the first where the server starts again there."""
    headers = dict(remote.headers)
    if n_there:
        headers["Range"] = f"bytes={n_there}-"
        if remote.etag is not None and remote.etag.startswith('"'):
            headers["If-Range"] = remote.etag
    with opened(remote.url, headers) as response:
        begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        start = int(begins[1]) if response.status_code == 206 and begins is not None else 0
        if start not in (0, n_there):
            raise Unavailable(f"the server sends {remote.name} from byte {start}, and was asked for byte {n_there}")
        if start != n_there:
            tally.add(remote.name, -n_there)
            bar.update(-n_there)
        with partial.open("r+b") as file:
            file.seek(start)
            file.truncate()
            for piece in response.iter_bytes():
                file.write(piece)
                bar.update(len(piece))
                tally.add(remote.name, len(piece))
            # What is renamed must be there even if the power goes a moment later.
            file.flush()
            os.fsync(file.fileno())


def _check(remote: Remote, partial: Path) -> None:
    """Throws away what is not what was told, so that the next attempt begins anew."""
    n = partial.stat().st_size
    if remote.size is not None and n != remote.size:
        partial.unlink()
        raise Unavailable(f"{remote.name} was to have {remote.size} bytes, and {n} have come")
    if remote.sha256 is not None:
        with partial.open("rb") as file:
            came = hashlib.file_digest(file, "sha256").hexdigest()
        if came != remote.sha256:
            partial.unlink()
            raise Unavailable(f"{remote.name} was damaged on its way: its SHA-256 is {came}, and was to be {remote.sha256}")
