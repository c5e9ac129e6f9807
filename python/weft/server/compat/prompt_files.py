"""Files with the computed state of prompts, numbered by the client."""

import logging
from collections.abc import Iterator
from pathlib import Path

from weft import InvalidRequestError, PrefixFileError
from weft.errors import NotSupportedError
from weft.server.errors import SlotFileError
from weft.server.executor import Purpose
from weft.server.service import Service
from weft.settings import Settings

logger = logging.getLogger(__name__)

MAX_FILES = 64
"""Maximum files in the server's own folder."""

MAX_BYTES = 4 * 1024 * 1024 * 1024
"""Maximum total size of these files, in bytes. The last used file is kept regardless of its size."""


def own_folder() -> Path:
    """Returns the folder for files with `--compat stream`, which takes no folder: part of the user's cache directory."""
    import platformdirs  # noqa: PLC0415

    return platformdirs.user_cache_path("weft", appauthor=False) / "prompts"


async def restore_or_save(service: Service, number: int, prompt: str) -> None:
    """Restores the computed prompt from the file of this number if it exists; otherwise computes and saves it.

    In the server's own folder, a damaged or mismatched file is overwritten, and the least recently used files above the limits
    are deleted.

    Raises:
        NotSupportedError: The server has no folder for these files.
        InvalidRequestError: The file is damaged or does not match this model and cache.
        SlotFileError: The file cannot be read or written.
        ContextOverflowError: The prompt does not fit.
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
            logger.info("saved prompt %d to %s", number, path)
        if is_own:
            await service.executor.run_in_thread(Purpose.SLOT_FILE, 0, _mark_used, path)
    except PrefixFileError as error:
        raise InvalidRequestError("cache", f"cannot restore {path.name}: {error.reason}") from None
    except OSError as error:
        raise SlotFileError(path.name, error) from error


def _folder(settings: Settings) -> tuple[Path, bool]:
    """Returns the folder of the files, and whether it is the server's own."""
    if settings.slot_save_path is not None:
        return Path(settings.slot_save_path), False
    if settings.compat == "stream":
        return own_folder(), True
    raise NotSupportedError("This server does not save prompts to files. Start it with `--slot-save-path`")


def _mark_used(path: Path) -> None:
    """Marks a file of the server's own folder as used, and deletes files above the limits."""
    try:
        path.touch()
    except OSError as error:
        logger.warning("cannot update the modification time of %s: %s", path, error.strerror or error)
    n_bytes = 0
    for nth, (_, file, size) in enumerate(sorted(_files(path.parent), reverse=True)):
        n_bytes += size
        if (nth >= MAX_FILES or n_bytes > MAX_BYTES) and file != path:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("cannot delete %s: %s", file, error.strerror or error)


def _files(folder: Path) -> Iterator[tuple[int, Path, int]]:
    """Yields the time of use, path and size of each file. Ignores files deleted meanwhile."""
    for file in folder.glob("prompt-*.bin"):
        try:
            about = file.stat()
        except OSError:
            continue
        yield about.st_mtime_ns, file, about.st_size
