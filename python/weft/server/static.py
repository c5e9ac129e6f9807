"""Static files of a folder."""

from collections.abc import Iterable
from functools import partial
from mimetypes import guess_type
from os.path import lexists
from pathlib import Path
from posixpath import normpath
from urllib.parse import quote

from litestar.response.base import ASGIResponse
from litestar.response.file import ASGIFileResponse

from weft.server.errors import TextsWaitingError
from weft.server.executor import Executor, Purpose

INDEX = "index.html"


class Files:
    """The files of a folder, by relative path. Links that lead outside the folder are not followed.

    A file overrides a route, but requests for routes do not wait for the disk: the first components of the routes' paths are
    looked up in the folder at startup, and again in the background after each request for one, for use by the next request.
    """

    def __init__(self, folder: str, executor: Executor, prefix: str = "", routes: Iterable[str] = ()) -> None:
        """Looks up which of the routes the folder overrides."""
        self._executor = executor
        self._root = Path(folder).resolve()
        self._prefix = prefix
        self._route_names = frozenset(filter(None, map(_first_step, routes)))
        """First components of the routes' paths."""
        self._overridden = {name for name in self._route_names if self._is_there(name)}
        """Components for which the folder had an entry at the last lookup."""
        self._in_progress: set[str] = set()
        """Components whose lookup is in progress."""

    async def answer(self, path: str) -> ASGIResponse | None:
        """Returns the file at a path that begins with a slash, or None if there is none.

        For a folder it returns its `index.html`; without a trailing slash it redirects, so that relative links work.
        """
        if not self._may_contain(path):
            return None
        found = await self._executor.run_in_thread(Purpose.FILE, 0, self._find, path)
        if found is None:
            return None
        if found.name == INDEX and path.rpartition("/")[2] not in ("", INDEX):
            return ASGIResponse(status_code=301, headers={"location": self._prefix + _as_folder(path)})
        kind, encoding = guess_type(found.name)
        return ASGIFileResponse(
            file_path=found,
            filename=found.name,
            content_disposition_type="inline",
            # Compressed files are sent unchanged, without Content-Encoding.
            media_type="application/octet-stream" if kind is None or encoding is not None else kind,
            headers={"cache-control": "no-cache", "x-content-type-options": "nosniff"},
        )

    def _may_contain(self, path: str) -> bool:
        """Returns whether to look for a file at a path. False if the path belongs to a route and the folder had no such entry."""
        name = _first_step(path)
        if name not in self._route_names:
            return True
        if name not in self._in_progress:
            self._start_lookup(name)
        return name in self._overridden or ".." in path

    def _start_lookup(self, name: str) -> None:
        self._in_progress.add(name)
        try:
            self._executor.start(Purpose.FILE, partial(self._lookup, name))
        except TextsWaitingError:  # The next request for the path retries.
            self._in_progress.discard(name)

    def _lookup(self, name: str) -> None:
        (self._overridden.add if self._is_there(name) else self._overridden.discard)(name)
        self._in_progress.discard(name)

    def _is_there(self, name: str) -> bool:
        return lexists(self._root / name)

    def _find(self, path: str) -> Path | None:
        try:
            file = (self._root / path.lstrip("/")).resolve()
            if file.is_dir():
                file = (file / INDEX).resolve()
            return file if file.is_relative_to(self._root) and file.is_file() else None
        except (OSError, ValueError):  # The name is too long or has a null byte, or the folder is not readable.
            return None


def _first_step(path: str) -> str:
    return path.lstrip("/").partition("/")[0]


def _as_folder(path: str) -> str:
    """Returns the path of a folder with single slashes, one at each end. Two at the beginning would denote a host."""
    steps = [step for step in normpath(f"/{path}").split("/") if step]
    return quote("".join(f"/{step}" for step in steps) + "/")
