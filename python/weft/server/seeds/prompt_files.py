"""Files that keep what was computed of a prompt, by the number that a client gives it."""

import logging
from collections.abc import Iterator
from pathlib import Path

from weft import InvalidRequest, PrefixFileError
from weft.server.errors import NotSupportedError, SlotFileError
from weft.server.run.aside import Purpose
from weft.server.run.service import Service
from weft.settings import Settings

__all__ = ["MAX_BYTES", "MAX_FILES", "own_folder", "recall"]

logger = logging.getLogger(__name__)

MAX_FILES = 64
"""Files that the server keeps in its own folder."""

MAX_BYTES = 4 * 1024 * 1024 * 1024
"""Bytes of them together; but the file that was used last stays, however large."""


def own_folder() -> Path:
    """Where the files are with `--compat stream`, whose server needed no folder: a part of the user's cache."""
    import platformdirs  # noqa: PLC0415

    return platformdirs.user_cache_path("weft", appauthor=False) / "prompts"


async def recall(service: Service, number: int, prompt: str) -> None:
    """Brings back what was computed of a prompt, where a file of this number is there; else computes and saves it.

    In the server's own folder, a file that does not belong to this model and cache, or is damaged, is written anew, and where
    there are more files than may be, those that were used least recently are deleted.

    Raises:
        NotSupportedError: the server has no folder for it.
        InvalidRequest: the file does not belong to this model and cache, or is damaged.
        SlotFileError: the file cannot be read or written.
        ContextOverflow: the prompt does not fit.
    """
    folder, is_own = _folder(service.settings)
    path = folder / f"prompt-{number}.bin"
    try:
        if is_own:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            await service.engine.load_prefix(path)
            is_there = True
        except FileNotFoundError:
            is_there = False
        except PrefixFileError:
            if not is_own:
                raise
            is_there = False
        if not is_there:
            await service.engine.save_prefix(await service.prompt_tokens([prompt]), path)
            logger.info("the prompt %d is kept in %s", number, path)
        if is_own:
            await service.aside.elsewhere(Purpose.SLOT_FILE, 0, _used, path)
    except PrefixFileError as error:
        raise InvalidRequest("cache", f"cannot restore {path.name}: {error.reason}") from None
    except OSError as error:
        raise SlotFileError(path.name, error) from error


def _folder(settings: Settings) -> tuple[Path, bool]:
    """Where the files are, and whether that is the server's own folder."""
    if settings.slot_save_path is not None:
        return Path(settings.slot_save_path), False
    if settings.compat == "stream":
        return own_folder(), True
    raise NotSupportedError("This server does not keep prompts in files. Start it with `--slot-save-path`")


def _used(path: Path) -> None:
    """Remembers that a file of the server's own folder was used now, and deletes those that are too many beside it."""
    try:
        path.touch()
    except OSError as error:
        logger.warning("when %s was used cannot be kept: %s", path, error.strerror or error)
    n_bytes = 0
    for nth, (_, file, size) in enumerate(sorted(_files(path.parent), reverse=True)):
        n_bytes += size
        if (nth >= MAX_FILES or n_bytes > MAX_BYTES) and file != path:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s cannot be deleted: %s", file, error.strerror or error)


def _files(folder: Path) -> Iterator[tuple[int, Path, int]]:
    """When each file was used last, the file, and its bytes. What another process deletes meanwhile is left out."""
    for file in folder.glob("prompt-*.bin"):
        try:
            about = file.stat()
        except OSError:
            continue
        yield about.st_mtime_ns, file, about.st_size
