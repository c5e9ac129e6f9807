"""What llama-server's answers look like, kept so that Weft's can be held against them without a llama-server."""

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.compare.differences import Difference, differences, in_order
from tests.compare.exchange import Answer, Case

__all__ = ["SHAPES", "differences_of_shape", "kept", "written"]

Json = Any

SHAPES = Path(__file__).parent / "shapes.json"

_EMPTY: Mapping[type, Json] = {bool: False, int: 0, float: 0.0, str: "", type(None): None}
_PART = "part"
"""Stands with a number for one of the file's parts."""
_LARGE = 6
"""An object of so many fields is a part: many answers hold it."""


def written(answers: Mapping[str, Answer]) -> str:
    """The file, of llama-server's answers by the names of their cases: of each value only its type is kept."""
    parts: dict[str, int] = {}
    lines = [f"{json.dumps(name)}: {_compact(_folded(answer, parts))}" for name, answer in sorted(answers.items())]
    return '{"parts": [\n' + ",\n".join(parts) + '\n],\n"answers": {\n' + ",\n".join(lines) + "\n}}\n"


def kept() -> dict[str, Answer]:
    """The answers of the file."""
    file = json.loads(SHAPES.read_text(encoding="utf-8"))
    parts: list[Json] = []
    for part in file["parts"]:
        parts.append(_unfolded(part, parts))  # Those that it holds stand before it.
    answers = {name: _unfolded(shape, parts) for name, shape in file["answers"].items()}
    return {name: Answer(shape["status"], {}, shape.get("body"), _events(shape.get("events"))) for name, shape in answers.items()}


def differences_of_shape(case: Case, theirs: Answer, ours: Answer) -> list[Difference]:
    """Where Weft's answer has another status than a kept one, or others fields or types; headers are not kept."""
    found = differences(case, theirs, Answer(ours.status, {}, ours.body, ours.events))
    return [difference for difference in found if difference.kind != "value" or difference.place in ("status", "events")]


def _folded(answer: Answer, parts: dict[str, int]) -> Json:
    """Events that look alike and follow each other are told once, with how many they are; those of each completion together."""
    if answer.events is None:
        return {"status": answer.status, "body": _emptied(answer.body, parts)}
    runs = groupby(_emptied(event, parts) for event in in_order(answer.events))
    return {"status": answer.status, "events": [[len(list(run)), shape] for shape, run in runs]}


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _events(runs: Json) -> list[Json] | None:
    return None if runs is None else [event for n, event in runs for _ in range(n)]


def _emptied(value: Json, parts: dict[str, int]) -> Json:
    if isinstance(value, list):
        return [_emptied(item, parts) for item in value]
    if not isinstance(value, dict):
        return value if value == "[DONE]" else _EMPTY[type(value)]
    emptied = {name: _emptied(held, parts) for name, held in value.items()}
    return emptied if len(emptied) < _LARGE else {_PART: parts.setdefault(_compact(emptied), len(parts))}


def _unfolded(value: Json, parts: list[Json]) -> Json:
    if isinstance(value, list):
        return [_unfolded(item, parts) for item in value]
    if not isinstance(value, dict):
        return value
    return parts[value[_PART]] if [*value] == [_PART] else {name: _unfolded(held, parts) for name, held in value.items()}
