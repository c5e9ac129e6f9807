"""What the supervisor and its worker tell each other."""

from weft.errors import InvalidConfig
from weft.settings import table

__all__ = ["KILL_AFTER_S", "LOADING", "READY", "STOP", "reason_of"]

LOADING = "loading"
READY = "ready"
"""What a worker tells its supervisor; anything else is the reason why the model cannot be loaded."""

STOP = "stop"
"""What the supervisor tells a worker."""

KILL_AFTER_S = 1
"""A worker that has not ended this long after it was told to is killed: SIGTERM is to end the server within two seconds."""


def reason_of(error: Exception) -> str:
    """What keeps the engine from starting; a setting is named as a user spells it."""
    if not isinstance(error, InvalidConfig):
        return str(error)
    if (flag := table().get(error.param)) is None:
        return str(error)
    spelt = "/".join(flag.spellings)
    if error.param in error.message:
        return error.message.replace(error.param, spelt)
    return f"{spelt}: {error.message}"
