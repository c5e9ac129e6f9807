"""State of a server at one time, and rates between two times."""

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

COUNTERS = ("llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
"""Counters of `/metrics`: generated tokens, computed prompt tokens, and cached prompt tokens."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class NextToken(msgspec.Struct):
    """Generated tokens of a slot."""

    n_decoded: Count = 0


class Slot(msgspec.Struct):
    """An entry of `/slots`."""

    id: int
    is_processing: bool
    id_task: int | None = None
    n_prompt_tokens: Count = 0
    n_prompt_tokens_processed: Count = 0
    n_prompt_tokens_cache: Count = 0
    next_token: list[NextToken] = []

    @property
    def n_generated(self) -> int:
        """Generated tokens of its completion."""
        return self.next_token[0].n_decoded if self.next_token else 0


class Cells(msgspec.Struct):
    """Device cache in `/cache`."""

    total: Count
    used: Count
    idle: Count


class HostCache(msgspec.Struct):
    """Host cache in `/cache`."""

    n_bytes: Count
    max_bytes: Count | None


class Node(msgspec.Struct):
    """Node of the prefix tree in `/cache`."""

    start: Count
    n_tokens: Count
    text: str | None
    tier: str
    slots: list[int]
    is_pinned: bool
    n_hits: Count

    @property
    def n_prefix(self) -> int:
        """Tokens from the root to its end."""
        return self.start + self.n_tokens


class Cache(msgspec.Struct):
    """Response of `/cache`."""

    cells: Cells
    host_cache: HostCache
    n_nodes: Count
    nodes: list[Node]

    @property
    def busiest(self) -> list[Node]:
        """Nodes with hits, by descending number of hits, then by descending prefix length."""
        return sorted((node for node in self.nodes if node.n_hits), key=lambda node: (-node.n_hits, -node.n_prefix))


class Properties(msgspec.Struct):
    """Response of `/props`."""

    total_slots: int = 0
    model_alias: str = ""
    model_path: str = ""
    is_sleeping: bool = False


class ServerState(NamedTuple):
    """State of a server at one time. None marks what the server does not provide."""

    when_s: float
    """Time of the state, on a monotonic clock."""
    properties: Properties
    slots: list[Slot] | None
    metrics: Mapping[str, float] | None
    cache: Cache | None


_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


def metrics(text: str) -> dict[str, float]:
    """Returns the values of `/metrics` by name; those with labels as `name{source="text"}`, and their sum by the plain name."""
    found: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        number = float(value)
        found[name] = found.get(name, 0.0) + number
        if labels:
            found[f"{name}{{{labels}}}"] = number
    return found


class Rates(NamedTuple):
    """Tokens per second between two states, and prompt cache hit rates. None is unknown."""

    generated: float | None = None
    computed: float | None = None
    cached: float | None = None
    hit_rate: float | None = None
    total_hit_rate: float | None = None
    """Hit rate since the start of the server."""

    @classmethod
    def between(cls, before: ServerState | None, now: ServerState) -> "Rates":
        """Returns the rates between two states; only the overall hit rate if the server was restarted between them."""
        if now.metrics is None:
            return cls()
        counts = [now.metrics.get(name, 0.0) for name in COUNTERS]
        total = _ratio(counts[2], counts[1])
        if before is None or before.metrics is None or now.when_s <= before.when_s:
            return cls(total_hit_rate=total)
        differences = [count - before.metrics.get(name, 0.0) for name, count in zip(COUNTERS, counts, strict=True)]
        if min(differences) < 0:
            return cls(total_hit_rate=total)
        generated, computed, cached = (difference / (now.when_s - before.when_s) for difference in differences)
        return cls(generated, computed, cached, _ratio(cached, computed), total)


def _ratio(cached: float, computed: float) -> float | None:
    return cached / (cached + computed) if cached + computed > 0 else None
