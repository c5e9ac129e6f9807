"""OpenAI's lists of logprobs, encoded incrementally, since encoding them at the end would take long."""

import codecs
from typing import Any, Self, cast

from weft.server.openai.schemas import Logprobs
from weft.server.streaming.json_chunks import GAP, entries, json_list

_NAMES = Logprobs.__struct_fields__


class LogprobLists:
    """The five lists of [`Logprobs`], each as encoded parts."""

    gaps = Logprobs(*cast("Any", [GAP] * len(_NAMES)))
    """Placeholders for the lists."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {name: [] for name in _NAMES}

    def add(self, lists: Logprobs) -> int:
        """Appends lists and returns their encoded size in bytes."""
        n_bytes = 0
        for name, parts in self._parts.items():
            if values := getattr(lists, name):
                parts.append(entries(values))
                n_bytes += len(parts[-1])
        return n_bytes

    def followed_by(self, other: Self) -> "LogprobLists":
        """Returns the concatenation of both."""
        both = LogprobLists()
        both._parts = {name: parts + other._parts[name] for name, parts in self._parts.items()}
        return both

    def fillings(self) -> list[list[bytes]]:
        """Returns the contents of the gaps, in order."""
        return [json_list(self._parts[name]) for name in _NAMES]


class Offsets:
    """Character offsets of a branch's tokens in its text.

    Computed from the tokens' own bytes, because an event's text may include withheld text of earlier tokens. A token that begins
    within a character has that character's offset.
    """

    def __init__(self, start: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = start

    def next(self, spelling: bytes) -> int:
        """Returns the offset of the next token, given its bytes."""
        offset = self._n
        self._n += len(self._decoder.decode(spelling))
        return offset
