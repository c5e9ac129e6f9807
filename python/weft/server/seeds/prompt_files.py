"""Files that keep what was computed of a prompt, by the number that a client gives it."""

from pathlib import Path

from weft import InvalidRequest, PrefixFileError
from weft.server.errors import NotSupportedError, SlotFileError
from weft.server.run.service import Service

__all__ = ["recall"]


async def recall(service: Service, number: int, prompt: str) -> None:
    """Brings back what was computed of a prompt, where a file of this number is there; else computes and saves it.

    Raises:
        NotSupportedError: the server has no folder for it.
        InvalidRequest: the file does not belong to this model and cache, or is damaged.
        SlotFileError: the file cannot be read or written.
        ContextOverflow: the prompt does not fit.
    """
    if (folder := service.settings.slot_save_path) is None:
        raise NotSupportedError("This server does not keep prompts in files. Start it with `--slot-save-path`")
    path = Path(folder) / f"prompt-{number}.bin"
    try:
        try:
            await service.engine.load_prefix(path)
        except FileNotFoundError:
            await service.engine.save_prefix(await service.prompt_tokens([prompt]), path)
    except PrefixFileError as error:
        raise InvalidRequest("cache", f"cannot restore {path.name}: {error.reason}") from None
    except OSError as error:
        raise SlotFileError(path.name, error) from error
