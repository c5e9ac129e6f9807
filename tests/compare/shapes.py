"""What llama-server's answers look like, kept so that Weft's can be held against them without a llama-server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.compare.differences import kind_of
from tests.compare.exchange import Answer

__all__ = ["SHAPES", "shape_of", "shapes"]

Json = Any

SHAPES = Path(__file__).parent / "shapes.json"


def shape_of(answer: Answer) -> Json:
    """Status, type, and the names and types of all that is told; events that look alike and follow each other are one."""
    told: dict[str, Json] = {"status": answer.status, "content-type": answer.headers.get("content-type")}
    if answer.events is None:
        told["body"] = _shape(answer.body)
        return told
    events: list[Json] = []
    for event in answer.events:
        shape = event if event == "[DONE]" else _shape(event)
        if not events or events[-1] != shape:
            events.append(shape)
    told["events"] = events
    return told


def _shape(value: Json) -> Json:
    """A list's items by their kinds, each kind once."""
    if isinstance(value, dict):
        return {name: _shape(held) for name, held in value.items()}
    if isinstance(value, list):
        items: list[Json] = []
        for item in value:
            if (shape := _shape(item)) not in items:
                items.append(shape)
        return items
    return kind_of(value)


def shapes(answers: Mapping[str, Answer]) -> str:
    """The file, of answers by the names of their cases."""
    lines = (f"{json.dumps(name)}: {json.dumps(shape_of(answer))}" for name, answer in sorted(answers.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"
