"""What a server tells of itself at one moment, and what two moments tell of the time between them."""

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

__all__ = ["COUNTERS", "Cache", "Cells", "Look", "Node", "Properties", "Rates", "Slot", "Store", "metrics"]

COUNTERS = ("llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
"""Of `/metrics`, the tokens that were drawn, computed of prompts, and found computed."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class NextToken(msgspec.Struct):
    """Of a slot, what it has drawn."""

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
    def n_drawn(self) -> int:
        """Tokens of its completion so far."""
        return self.next_token[0].n_decoded if self.next_token else 0


class Cells(msgspec.Struct):
    """Of `/cache`, the cells."""

    total: Count
    used: Count
    idle: Count


class Store(msgspec.Struct):
    """Of `/cache`, the host memory."""

    n_bytes: Count
    max_bytes: Count | None


class Node(msgspec.Struct):
    """Of `/cache`, a stretch of tokens."""

    start: Count
    n_tokens: Count
    text: str | None
    tier: str
    slots: list[int]
    is_pinned: bool
    n_hits: Count

    @property
    def n_prefix(self) -> int:
        """Tokens from the beginning of the text to its end."""
        return self.start + self.n_tokens


class Cache(msgspec.Struct):
    """`/cache`."""

    cells: Cells
    store: Store
    n_nodes: Count
    nodes: list[Node]

    @property
    def busiest(self) -> list[Node]:
        """The nodes that were found most often, and of those that were found as often the longest prefix first."""
        return sorted((node for node in self.nodes if node.n_hits), key=lambda node: (-node.n_hits, -node.n_prefix))


class Properties(msgspec.Struct):
    """`/props`."""

    total_slots: int = 0
    model_alias: str = ""
    model_path: str = ""
    is_sleeping: bool = False


class Look(NamedTuple):
    """What was told at one moment. None is what the server does not tell."""

    when_s: float
    """On a clock of no meaning but that it goes on."""
    properties: Properties
    slots: list[Slot] | None
    metrics: Mapping[str, float] | None
    cache: Cache | None


_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


def metrics(text: str) -> dict[str, float]:
    """The values of `/metrics`, by their names; those with labels as `name{source="pool"}`, and their sums by the name alone."""
    found: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        number = float(value)
        found[name] = found.get(name, 0.0) + number
        if labels:
            found[f"{name}{{{labels}}}"] = number
    return found


class Rates(NamedTuple):
    """Tokens per second between two looks, and which part of the prompts was found computed. None is not known."""

    drawn: float | None = None
    computed: float | None = None
    found: float | None = None
    hit_rate: float | None = None
    hit_rate_in_all: float | None = None
    """Since the server's start."""

    @classmethod
    def between(cls, before: Look | None, now: Look) -> "Rates":
        """What there was; nothing where the server was started anew between them."""
        if now.metrics is None:
            return cls()
        counts = [now.metrics.get(name, 0.0) for name in COUNTERS]
        in_all = _part(counts[2], counts[1])
        if before is None or before.metrics is None or now.when_s <= before.when_s:
            return cls(hit_rate_in_all=in_all)
        differences = [count - before.metrics.get(name, 0.0) for name, count in zip(COUNTERS, counts, strict=True)]
        if min(differences) < 0:
            return cls(hit_rate_in_all=in_all)
        drawn, computed, found = (difference / (now.when_s - before.when_s) for difference in differences)
        return cls(drawn, computed, found, _part(found, computed), in_all)


def _part(found: float, computed: float) -> float | None:
    return found / (found + computed) if found + computed > 0 else None
