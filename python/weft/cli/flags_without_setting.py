"""llama-server's flags that have no setting here: their effect is permanent, meaningless or unsupported.

Command lines for llama-server either work or are rejected with a reason. No flag that would change a response is ignored
silently: meaningless flags cause a warning at the start, unsupported ones an error.
"""

from enum import Enum
from pathlib import Path

import msgspec

from weft.settings.values import boolean


class Meaning(Enum):
    """Effect of a flag without a setting; the values are used in messages."""

    ALWAYS = "is always on"
    IDLE = "has no meaning here"
    MISSING = "is not supported"


class AcceptedFlag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A flag without a setting."""

    names: tuple[str, ...]
    meaning: Meaning
    why: str = ""
    """Reason for the meaning, for messages."""
    n_values: int = 0
    neutral: tuple[str, ...] = ()
    """Values that have no effect; include llama-server's default if it has one."""
    env: str | None = None
    env_sets: bool = True
    """Value of a switch's variable that corresponds to the flag: False for a flag that turns something off."""

    def verdict(self, value: str | None) -> Meaning:
        """Returns the effect of the flag with this value; None is the flag without a value."""
        return Meaning.ALWAYS if any(_is_same(value, neutral) for neutral in self.neutral) else self.meaning

    def is_set_by(self, variable: str) -> bool:
        """Returns True if the value of its variable enables it; raises ValueError if it is invalid for a switch."""
        return self.n_values > 0 or boolean(variable) == self.env_sets


def _is_same(value: str | None, neutral: str) -> bool:
    """Returns True if two texts are equal, as strings or as numbers."""
    if value is None or value == neutral:
        return value == neutral
    try:
        return float(value) == float(neutral)
    except ValueError:
        return False


class _Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of `flags_without_setting.json`: flags with the same reason."""

    why: str
    flags: list[AcceptedFlag]


_REASONS = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=list[_Reason])

ACCEPTED = tuple(msgspec.structs.replace(flag, why=reason.why) for reason in _REASONS for flag in reason.flags)
"""All flags of llama-server without a setting here, including flags that only older versions have."""
