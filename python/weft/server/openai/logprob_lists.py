"""OpenAI's lists of log-probabilities while they grow, written as they come: to write all of them at once would take long."""

from typing import Any, Self, cast

from weft.server.openai.schemas import Logprobs
from weft.server.run.pieces import GAP, entries, json_list

__all__ = ["LogprobLists"]

_NAMES = Logprobs.__struct_fields__


class LogprobLists:
    """The five lists of [`Logprobs`], each as the JSON of its entries in parts."""

    gaps = Logprobs(*cast("Any", [GAP] * len(_NAMES)))
    """Stands where they belong."""

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {name: [] for name in _NAMES}

    def add(self, lists: Logprobs) -> int:
        """Takes what follows; returns how many bytes it comes to."""
        n_bytes = 0
        for name, parts in self._parts.items():
            if values := getattr(lists, name):
                parts.append(entries(values))
                n_bytes += len(parts[-1])
        return n_bytes

    def followed_by(self, other: Self) -> "LogprobLists":
        """Both, one after the other."""
        both = LogprobLists()
        both._parts = {name: parts + other._parts[name] for name, parts in self._parts.items()}
        return both

    def fillings(self) -> list[list[bytes]]:
        """What fills the gaps, in their order."""
        return [json_list(self._parts[name]) for name in _NAMES]
