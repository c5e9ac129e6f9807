"""Saving and restoring the contents of slots as files in one folder."""

import unicodedata
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from weft import Engine, InvalidRequestError, PrefixFile, PrefixFileError
from weft.errors import NotSupportedError
from weft.fields.excerpt import excerpt
from weft.server.errors import SlotFileError
from weft.server.executor import Executor, Purpose
from weft.server.keyed_lock import KeyedLock

MAX_NAME_BYTES = 255
"""Maximum length of a file name on common file systems."""

FORBIDDEN = frozenset('/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff')
"""llama-server's list: separators, characters that some systems reserve, and their lookalikes."""

RESERVED = frozenset({"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))})
"""Windows device names, which are reserved with any extension."""


class SlotFiles:
    """Saves, restores and erases slots. Operations on one slot run one at a time; slots do not wait for each other."""

    def __init__(self, engine: Engine, folder: str | None, executor: Executor) -> None:
        self._engine = engine
        self._folder = folder
        self._executor = executor
        self._locks = KeyedLock()

    async def save(self, slot: int, filename: str | None) -> PrefixFile:
        """Saves the cached tokens of a slot.

        Raises:
            NotSupportedError: The server has no folder for slots, or the slot contains images or audio.
            InvalidRequestError: The slot does not exist or is empty, or the file name is invalid.
            SlotFileError: The file cannot be written.
        """
        path = await self._path(filename)
        async with self._lock(slot):
            tokens, adapters, invoked_at = await self._engine.slot_state(slot)
            if not tokens:
                raise InvalidRequestError("slot", f"slot {slot} is empty")
            if any(token < 0 for token in tokens):
                # Negative ids identify media only within this process.
                raise NotSupportedError("This feature is not supported by multimodal: a slot with images or audio")
            try:
                return await self._engine.save_prefix(tokens, path, compute=False, adapters=adapters, invoked_at=invoked_at)
            except InvalidRequestError:
                raise InvalidRequestError("slot", f"the tokens of slot {slot} are no longer cached") from None
            except OSError as error:
                raise SlotFileError(path.name, error) from error

    async def restore(self, slot: int, filename: str | None) -> PrefixFile:
        """Restores a slot from a file.

        Raises:
            NotSupportedError: The server has no folder for slots.
            InvalidRequestError: The slot or file does not exist, or the file is damaged or does not match this model and cache.
        """
        path = await self._path(filename)
        async with self._lock(slot):
            try:
                return await self._engine.load_prefix(path, slot=slot)
            except PrefixFileError as error:
                raise InvalidRequestError("filename", f"cannot restore {path.name}: {error.reason}") from None
            except OSError as error:
                raise InvalidRequestError("filename", f"cannot restore {path.name}: {error.strerror or error}") from None

    async def erase(self, slot: int) -> int:
        """Erases a slot and returns how many tokens it had.

        Raises:
            InvalidRequestError: The slot does not exist.
        """
        async with self._lock(slot):
            return await self._engine.erase_slot(slot)

    def _lock(self, slot: int) -> AbstractAsyncContextManager[None]:
        # The modulo maps invalid slot numbers to some lock; the engine refuses them later.
        return self._locks.acquire(slot % self._engine.limits.n_slots)

    async def _path(self, filename: str | None) -> Path:
        """Returns the path for a file name, once the name is validated."""
        if self._folder is None:
            raise NotSupportedError("This server does not support slots action. Start it with `--slot-save-path`")
        if filename is None:
            raise InvalidRequestError("filename", "filename must be given")
        if not _is_name(filename):
            raise InvalidRequestError("filename", f"{excerpt(filename)} is not a valid file name")
        # Resolving the path may block on a slow file system.
        return await self._executor.run_in_thread(Purpose.SLOT_FILE, 0, _inside, Path(self._folder), filename)


def _is_name(text: str) -> bool:
    """Returns whether a text can name a file directly in a folder, on any operating system."""
    if not text or len(text.encode(errors="replace")) > MAX_NAME_BYTES:
        return False
    if any(character in FORBIDDEN or unicodedata.category(character) in ("Cc", "Cs") for character in text):
        return False
    if ".." in text or text == "." or text[0] == " " or text[-1] in " .":
        return False
    return text.partition(".")[0].rstrip(" ").upper() not in RESERVED


def _inside(folder: Path, name: str) -> Path:
    """Returns the resolved path of a file directly in the folder, following symbolic links.

    An existing path must be a regular file.
    """
    folder = folder.resolve()
    path = (folder / name).resolve()
    if path.parent != folder:
        raise InvalidRequestError("filename", f"{excerpt(name)} is outside the folder of --slot-save-path")
    if path.exists() and not path.is_file():
        raise InvalidRequestError("filename", f"{excerpt(name)} is not a regular file")
    return path
