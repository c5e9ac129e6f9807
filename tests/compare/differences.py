"""Where two answers differ."""

import base64
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tests.compare.exchange import Answer, Case

__all__ = ["Difference", "differences", "in_order", "matches"]

Json = Any

_NO_BRANCH = 1000

VARYING = (
    "*.created",
    "*.id",
    "*.completion_id",
    "*.created_at",
    "*timings.*_ms",
    "*timings.*_per_second",
    "*.time_ms",
    "*.prompt_progress.time_ms",
    "*.generation_settings.seed",
    "*.params.seed",
    "*.build_info",
    "*.system_fingerprint",
    "*.media_marker",
    "*.id_task",
    "*.id_slot",
)
"""What no two answers have in common: only its type is compared."""

NEARLY = {
    "*.logprob": 0.05,
    "*.prob": 0.02,
    "*.token_logprobs[]": 0.05,
    "*embedding[]": 0.02,
    "*embedding[][]": 0.02,
    "*.relevance_score": 0.02,
    "*.score": 0.02,
}
"""Numbers that hang on the last bits of the model's, and how far apart they may be."""

ROUNDING = 1e-6
"""How far apart, by their size, numbers may be that are written in more digits or in fewer."""


@dataclass(frozen=True)
class Difference:
    """One place where two answers to a case differ."""

    case: str
    place: str
    """As `body.choices[].text`; places in lists have no numbers."""
    kind: str
    """`added` where only Weft has it, `missing` where only llama-server has it, `type` or `value` where both do."""
    theirs: Json
    ours: Json


def differences(case: Case, theirs: Answer, ours: Answer) -> list[Difference]:
    """All differences between llama-server's answer and Weft's."""
    found = list(_of_values("headers", dict(theirs.headers), dict(ours.headers)))
    if theirs.status != ours.status:
        # What else they tell has nothing in common.
        found.append(("status", "value", _summary(theirs), _summary(ours)))
    elif theirs.events is not None and ours.events is not None:
        found += _of_streams(theirs.events, ours.events)
    elif theirs.events is not None or ours.events is not None:
        found.append(("events", "value", _summary(theirs), _summary(ours)))
    else:
        found += _of_values("body", theirs.body, ours.body)
    return [Difference(case.name, place, kind, theirs, ours) for place, kind, theirs, ours in found]


Found = tuple[str, str, Json, Json]


def _summary(answer: Answer) -> Json:
    """The status with what is told beside it, which is short of an error."""
    return {"status": answer.status, "told": answer.body if answer.events is None else answer.events}


def in_order(events: list[Json]) -> list[Json]:
    """The events of each completion of a stream together, those of none at the end: which of them comes when is chance."""
    return sorted((event for event in events if event is not None), key=_branch)


def _of_streams(theirs: list[Json], ours: list[Json]) -> Iterator[Found]:
    """Event by event; of streams of two lengths the first event, and the others from the last on."""
    if None in theirs:
        yield "events[].null", "missing", None, None
    theirs, ours = in_order(theirs), in_order(ours)
    if len(theirs) != len(ours):
        yield "events.count", "value", len(theirs), len(ours)
    n_last = min(len(theirs), len(ours)) - 1
    pairs = list(zip(theirs[:1], ours[:1], strict=False))
    if n_last > 0:
        pairs += zip(theirs[-n_last:], ours[-n_last:], strict=True)
    for their_event, our_event in pairs:
        yield from _of_values("events[]", their_event, our_event)


def _branch(event: Json) -> int:
    """Which completion an event is of; what is of none comes last."""
    if not isinstance(event, dict):
        return _NO_BRANCH
    if "event" in event:
        return 0  # Of one completion.
    choices = event.get("choices", [event])
    return int(choices[0].get("index", 0)) if choices else _NO_BRANCH


def _of_values(place: str, theirs: Json, ours: Json) -> Iterator[Found]:
    if place.endswith(".embedding") and isinstance(theirs, str) and isinstance(ours, str):
        yield from _of_values(place, _vector(theirs), _vector(ours))
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        if _is_near_tie(place, theirs, ours):
            return
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            inner = f"{place}.{name}"
            if name not in ours:
                yield inner, "missing", theirs[name], None
            elif name not in theirs:
                yield inner, "added", None, ours[name]
            else:
                yield from _of_values(inner, theirs[name], ours[name])
    elif isinstance(theirs, list) and isinstance(ours, list) and not _are_words(theirs, ours):
        if len(theirs) != len(ours):
            yield f"{place}.length", "value", len(theirs), len(ours)
        for their_item, our_item in zip(theirs, ours, strict=False):
            yield from _of_values(f"{place}[]", their_item, our_item)
    elif kind_of(theirs) != kind_of(ours):
        yield place, "type", theirs, ours
    elif not _are_equal(place, theirs, ours):
        yield place, "value", theirs, ours


def _vector(text: str) -> list[float]:
    """Numbers of 32 bits, little-endian, in base64."""
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _is_near_tie(place: str, theirs: dict[str, Json], ours: dict[str, Json]) -> bool:
    """Returns true for two likely tokens at the same rank of a list that have the same fields and nearly equal probabilities."""
    if not matches(place, "*.top_*[]") or theirs.keys() != ours.keys():
        return False
    name = "prob" if "prob" in theirs else "logprob"
    return name in theirs and _are_equal(f"{place}.{name}", theirs[name], ours[name])


def _are_words(*lists: list[Json]) -> bool:
    """Whether lists are compared as a whole."""
    return all(isinstance(item, str) for items in lists for item in items)


def kind_of(value: Json) -> str:
    """The name of a value's type in JSON; whole numbers are told from others."""
    names = {
        bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"
    }  # fmt: skip
    return names[type(value)]


def _are_equal(place: str, theirs: Json, ours: Json) -> bool:
    if any(matches(place, pattern) for pattern in VARYING):
        return True
    if isinstance(theirs, float):
        far = next((far for pattern, far in NEARLY.items() if matches(place, pattern)), 0.0)
        return bool(abs(theirs - ours) <= max(far, ROUNDING * abs(theirs)))
    return bool(theirs == ours)


def matches(text: str, pattern: str) -> bool:
    """Whether a text is what a pattern tells, in which `*` stands for anything and brackets for themselves."""
    return fnmatchcase(text, re.sub(r"\[", "[[]", pattern))
