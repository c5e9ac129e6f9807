"""Where API keys come from."""

from pathlib import Path

from weft.errors import InvalidConfig
from weft.settings import Settings

__all__ = ["keys_of"]


def keys_of(settings: Settings) -> tuple[str, ...]:
    """The keys of the settings, those in the file of keys among them: one a line, lines that begin with `#` are comments.

    Raises:
        InvalidConfig: the file cannot be read, or holds no key.
    """
    path = settings.api_key_file
    if path is None:
        return settings.api_keys
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfig("api_key_file", f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfig("api_key_file", f"cannot read {path}: it is no text in UTF-8") from error
    keys = [line.strip() for line in text.splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        # A server that was to be locked must not be open because a file came out empty.
        raise InvalidConfig("api_key_file", f"{path} holds no key; write one on each line")
    return (*settings.api_keys, *keys)
