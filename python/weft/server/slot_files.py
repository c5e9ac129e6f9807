"""What slots hold, saved in one folder and nowhere else."""

import unicodedata
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from weft import Engine, InvalidRequest, PrefixFile, PrefixFileError
from weft.fields.shown import shown
from weft.server.errors import NotSupportedError, SlotFileError
from weft.server.run.aside import Aside, Purpose
from weft.server.run.turns import Turns

__all__ = ["SlotFiles"]

MAX_NAME_BYTES = 255
"""Longest name of a file on the file systems there are."""

FORBIDDEN = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
"""Separators, what some system keeps for itself, and what looks like either: llama-server's list."""

RESERVED = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))})
"""Names of devices where files with any ending are no files."""


class SlotFiles:
    """Saves, restores and erases what slots hold: for each slot one thing after the other, and no slot waits for another."""

    def __init__(self, engine: Engine, folder: str | None, aside: Aside) -> None:
        self._engine = engine
        self._folder = folder
        self._aside = aside
        self._turns = Turns()

    async def save(self, slot: int, filename: str | None) -> PrefixFile:
        """Saves what a slot holds, as far as it is cached.

        Raises:
            NotSupportedError: the server has no folder for it, or the slot holds pictures or sounds.
            InvalidRequest: there is no such slot, it holds nothing, or the name is none of a file in the folder.
            SlotFileError: the file cannot be written.
        """
        path = await self._path(filename)
        async with self._turn(slot):
            tokens, adapters, invoked_at = await self._engine.held_by_slot(slot)
            if not tokens:
                raise InvalidRequest("slot", f"slot {slot} holds no tokens")
            if any(token < 0 for token in tokens):
                # What these places hold is known by this process alone.
                raise NotSupportedError("This feature is not supported by multimodal: a slot that holds pictures or sounds")
            try:
                return await self._engine.save_prefix(tokens, path, compute=False, adapters=adapters, invoked_at=invoked_at)
            except InvalidRequest:
                raise InvalidRequest("slot", f"what slot {slot} held is no longer cached") from None
            except OSError as error:
                raise SlotFileError(path.name, error) from error

    async def restore(self, slot: int, filename: str | None) -> PrefixFile:
        """Lets a slot hold what was saved.

        Raises:
            NotSupportedError: the server has no folder for it.
            InvalidRequest: there is no such slot, or no such file, or it does not belong to this model and cache, or is damaged.
        """
        path = await self._path(filename)
        async with self._turn(slot):
            try:
                return await self._engine.load_prefix(path, slot=slot)
            except PrefixFileError as error:
                raise InvalidRequest("filename", f"cannot restore {path.name}: {error.reason}") from None
            except OSError as error:
                raise InvalidRequest("filename", f"cannot restore {path.name}: {error.strerror or error}") from None

    async def erase(self, slot: int) -> int:
        """Forgets what a slot holds; returns how many tokens that was.

        Raises:
            InvalidRequest: there is no such slot.
        """
        async with self._turn(slot):
            return await self._engine.erase_slot(slot)

    def _turn(self, slot: int) -> AbstractAsyncContextManager[None]:
        # Who names a slot that is not there waits with others, until he is told.
        return self._turns.one(slot % self._engine.limits.n_slots)

    async def _path(self, filename: str | None) -> Path:
        """The file of that name, once the name is what it may be."""
        if self._folder is None:
            raise NotSupportedError("This server does not support slots action. Start it with `--slot-save-path`")
        if filename is None:
            raise InvalidRequest("filename", "filename must be given")
        if not _is_name(filename):
            raise InvalidRequest("filename", f"{shown(filename)} is no name of a file")
        # The file system may be slow.
        return await self._aside.elsewhere(Purpose.SLOT_FILE, 0, _inside, Path(self._folder), filename)


def _is_name(text: str) -> bool:
    """Whether a text can name a file directly inside of a folder, on any system."""
    if not text or len(text.encode(errors="replace")) > MAX_NAME_BYTES:
        return False
    if any(character in FORBIDDEN or unicodedata.category(character) in ("Cc", "Cs") for character in text):
        return False
    if ".." in text or text == "." or text[0] == " " or text[-1] in " .":
        return False
    return text.partition(".")[0].rstrip(" ").upper() not in RESERVED


def _inside(folder: Path, name: str) -> Path:
    """The file of that name directly inside of the folder, symbolic links followed. What is there must be a regular file."""
    folder = folder.resolve()
    path = (folder / name).resolve()
    if path.parent != folder:
        raise InvalidRequest("filename", f"{shown(name)} is not inside of the folder for slots")
    if path.exists() and not path.is_file():
        raise InvalidRequest("filename", f"{shown(name)} is no regular file")
    return path
