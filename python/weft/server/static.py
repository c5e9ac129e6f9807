"""A folder of files, served as they are."""

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
from weft.server.run.aside import Aside, Purpose

__all__ = ["Files"]

INDEX = "index.html"


class Files:
    """The files of a folder, by their paths in it. Nothing outside of it is served, wherever a link in it may lead.

    A file takes the place of a route, but who asks for a route waits for no disk: what the routes' paths begin with is looked for
    in the folder at the start, and again, for the next who asks, whenever one of them was asked for.
    """

    def __init__(self, folder: str, aside: Aside, prefix: str = "") -> None:
        self._aside = aside
        self._root = Path(folder).resolve()
        self._prefix = prefix
        self._of_routes: frozenset[str] = frozenset()
        """First steps of the routes' paths."""
        self._taken: set[str] = set()
        """Those of them that something in the folder had as its name when it was last looked for."""
        self._looked_for: set[str] = set()
        """Those that are being looked for again."""

    def give_way(self, routes: Iterable[str]) -> None:
        """Takes the paths of the routes, and looks what of the folder stands in their way."""
        self._of_routes = frozenset(filter(None, map(_first_step, routes)))
        self._taken = {name for name in self._of_routes if self._is_there(name)}

    async def answer(self, path: str) -> ASGIResponse | None:
        """The file at a path that begins with a slash, or None where there is none.

        A folder is answered with its `index.html`, at a path that ends with a slash, so that relative links in it hold.
        """
        if not self._may_have(path):
            return None
        found = await self._aside.elsewhere(Purpose.FILE, 0, self._find, path)
        if found is None:
            return None
        if found.name == INDEX and path.rpartition("/")[2] not in ("", INDEX):
            return ASGIResponse(status_code=301, headers={"location": self._prefix + _as_folder(path)})
        kind, encoding = guess_type(found.name)
        return ASGIFileResponse(
            file_path=found,
            filename=found.name,
            content_disposition_type="inline",
            # What is packed is sent packed: nobody here unpacks it.
            media_type="application/octet-stream" if kind is None or encoding is not None else kind,
            headers={"cache-control": "no-cache", "x-content-type-options": "nosniff"},
        )

    def _may_have(self, path: str) -> bool:
        """Whether a file at a path is to be looked for; not where its first step was no name in the folder."""
        name = _first_step(path)
        if name not in self._of_routes:
            return True
        if name not in self._looked_for:
            self._look_again(name)
        return name in self._taken or ".." in path

    def _look_again(self, name: str) -> None:
        self._looked_for.add(name)
        try:
            self._aside.begin(Purpose.FILE, partial(self._look, name))
        except TextsWaitingError:  # It is looked for when it is asked for the next time.
            self._looked_for.discard(name)

    def _look(self, name: str) -> None:
        (self._taken.add if self._is_there(name) else self._taken.discard)(name)
        self._looked_for.discard(name)

    def _is_there(self, name: str) -> bool:
        return lexists(self._root / name)

    def _find(self, path: str) -> Path | None:
        try:
            file = (self._root / path.lstrip("/")).resolve()
            if file.is_dir():
                file = (file / INDEX).resolve()
            return file if file.is_relative_to(self._root) and file.is_file() else None
        except (OSError, ValueError):  # A name that is too long, a null byte, a folder that may not be read.
            return None


def _first_step(path: str) -> str:
    return path.lstrip("/").partition("/")[0]


def _as_folder(path: str) -> str:
    """The path of a folder, with one slash at either end and none beside another: two at the beginning would name a host."""
    steps = [step for step in normpath(f"/{path}").split("/") if step]
    return quote("".join(f"/{step}" for step in steps) + "/")
