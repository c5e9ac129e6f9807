"""What the supervisor and its worker tell each other."""

import re

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


SETTING = re.compile(r"""(?<![\w./'"`-])[a-z]+(?:_[a-z]+)+(?![\w./'"`-])""")
"""A word that may be a setting's name. A part of a path and what is quoted are none, and a name without `_` is a word like any
other."""


def reason_of(error: Exception) -> str:
    """What keeps the engine from starting; settings are named as a user spells them."""
    if not isinstance(error, InvalidConfig):
        return str(error)
    spelt = {name: "/".join(flag.spellings) for name, flag in table().items() if flag.spellings}
    if (flag := spelt.get(error.param)) is None:
        return str(error)
    subject, *rest = error.message.split(" ", 1)
    message = " ".join([flag if subject == error.param else subject, *rest])
    message = SETTING.sub(lambda word: spelt.get(word[0], word[0]), message)
    return message if flag in message else f"{flag}: {message}"
