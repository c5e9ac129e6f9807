"""Reading API keys from settings and their file."""

from pathlib import Path

from weft.errors import InvalidConfigError
from weft.settings import Settings


def keys_of(settings: Settings) -> tuple[str, ...]:
    """Returns all API keys, including the key file's: one per line, and lines that begin with `#` are comments.

    Raises:
        InvalidConfigError: The file cannot be read, or has no keys.
    """
    path = settings.api_key_file
    if path is None:
        return settings.api_keys
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfigError("api_key_file", f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError("api_key_file", f"cannot read {path}: it is not UTF-8") from error
    keys = [line.strip() for line in text.splitlines()]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        # An empty file must not open a server that is meant to be protected.
        raise InvalidConfigError("api_key_file", f"{path} has no key; write one on each line")
    return (*settings.api_keys, *keys)
