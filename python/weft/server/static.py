"""A folder of files, served as they are."""

from mimetypes import guess_type
from pathlib import Path
from posixpath import normpath
from urllib.parse import quote

from litestar.response.base import ASGIResponse
from litestar.response.file import ASGIFileResponse

from weft.server.run.aside import Aside, Purpose

__all__ = ["Files"]

INDEX = "index.html"


class Files:
    """The files of a folder, by their paths in it. Nothing outside of it is served, wherever a link in it may lead."""

    def __init__(self, folder: str, aside: Aside, prefix: str = "") -> None:
        self._aside = aside
        self._root = Path(folder).resolve()
        self._prefix = prefix

    async def answer(self, path: str) -> ASGIResponse | None:
        """The file at a path that begins with a slash, or None where there is none.

        A folder is answered with its `index.html`, at a path that ends with a slash, so that relative links in it hold.
        """
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

    def _find(self, path: str) -> Path | None:
        try:
            file = (self._root / path.lstrip("/")).resolve()
            if file.is_dir():
                file = (file / INDEX).resolve()
            return file if file.is_relative_to(self._root) and file.is_file() else None
        except (OSError, ValueError):  # A name that is too long, a null byte, a folder that may not be read.
            return None


def _as_folder(path: str) -> str:
    """The path of a folder, with one slash at either end and none beside another: two at the beginning would name a host."""
    steps = [step for step in normpath(f"/{path}").split("/") if step]
    return quote("".join(f"/{step}" for step in steps) + "/")
