"""Messages between the supervisor and its worker."""

import re

from weft.errors import InvalidConfigError
from weft.settings import table

LOADING = "loading"
READY = "ready"
"""Messages of a worker to its supervisor. Any other message is the reason why the model could not be loaded."""

STOP = "stop"
"""Message of the supervisor to a worker."""

KILL_AFTER_S = 1
"""Seconds from the request to stop until a worker is killed: the server must end within two seconds after SIGTERM."""


SETTING = re.compile(r"""(?<![\w./'"`-])[a-z]+(?:_[a-z]+)+(?![\w./'"`-])""")
"""A word that may be the name of a setting: it has an underscore, is not quoted, and is not part of a path."""


def reason_of(error: Exception) -> str:
    """Returns the reason why the engine did not start, with settings in their command-line spelling."""
    if not isinstance(error, InvalidConfigError):
        return str(error)
    spelt = {name: "/".join(flag.spellings) for name, flag in table().items() if flag.spellings}
    if (flag := spelt.get(error.param)) is None:
        return str(error)
    subject, *rest = error.message.split(" ", 1)
    message = " ".join([flag if subject == error.param else subject, *rest])
    message = SETTING.sub(lambda word: spelt.get(word[0], word[0]), message)
    return message if flag in message else f"{flag}: {message}"
