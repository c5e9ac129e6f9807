"""Stands between a client and a server, and writes down the shape of all that is sent: a trace, which `benches.turns` plays.

    python -m tests.clients.run --traces codex

What a client says to a model is its maker's, so that nothing of it is kept. Of each line its length is written, and a number,
which is the same where the line comes again; [`Shape.told`] makes texts of this that are as long and change in the same places.
What is kept as it is: the structure, the names of tools and of fields, what [the actor](actor.py) said and was asked to, and of
lines that change from one request to the next what tells them.
"""

import json
import random
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients.between import Answered, Hearing, Sent, between

__all__ = ["Shape", "Shaper", "bodies", "recorded"]

LEFT_OUT = frozenset({"metadata", "client_metadata", "prompt_cache_key", "user", "safety_identifier"})
"""Fields of a request that say who asks."""

LISTS = ("system", "messages", "input", "tools")
"""Fields whose parts come again in the next request."""

NAMES = frozenset(
    {"role", "type", "name", "id", "call_id", "tool_call_id", "tool_use_id", "model", "arguments", "status", "phase"}
)
"""Fields that hold no text."""

MARK = "cache_control"

SHORT = 80
"""Most characters of a word that is a value, and no text."""

OURS = re.compile(r"Step \d+: \w+\(\{|All \d+ steps are done")
"""Lines that a script of ours asked, or that the actor said."""

CHANGING = re.compile(r"(?P<told>x-anthropic-billing-header:|\s*Today's date:? (?:is )?)(?P<value>.*)")
"""Lines that change from one request to the next, of which the beginning is kept, for it is what tells them."""

SPARE = 90
"""Characters of a schema that stands in for another, without its text."""

WORDS = ("the", "dog", "cat", "bird", "saw", "a", "red", "ball", "and", "ran", "to", "big", "house", "old", "friend", "happy")

Json = Any


def bodies(trace: Json, scale: float) -> list[tuple[str, Json]]:
    """The paths and bodies of a trace's requests, with texts of `scale` times the lengths that were sent."""
    shape = Shape(trace["lines"], scale)
    parts = [shape.told(part) for part in trace["parts"]]
    told = []
    for request in trace["requests"]:
        body = shape.told(request["body"])
        body |= {
            name: [parts[one] if isinstance(one, int) else one for one in body[name]]
            for name in LISTS
            if isinstance(body.get(name), list)
        }
        told.append((request["path"], body))
    return told


class Shape:
    """Makes texts of what a [`Shaper`] has written."""

    def __init__(self, lengths: Sequence[int], scale: float) -> None:
        self._lengths = lengths
        self._scale = scale

    def told(self, shaped: Json) -> Json:
        """The same JSON with texts."""
        match shaped:
            case {"$text": list(lines), **rest} if not rest:
                return "\n".join(self._line(line) for line in self._each(lines))
            case dict():
                return {name: self.told(one) for name, one in shaped.items()}
            case list():
                return [self.told(one) for one in shaped]
        return shaped

    @staticmethod
    def _each(lines: Sequence[Json]) -> list[int | str]:
        told: list[int | str] = []
        for line in lines:
            told += range(line[0], line[1] + 1) if isinstance(line, list) else [line]
        return told

    def _line(self, line: int | str) -> str:
        if isinstance(line, str):
            return line
        return words(line, round(self._lengths[line] * self._scale))


def words(seed: int, length: int) -> str:
    """A text of so many characters, the same for the same seed."""
    draw = random.Random(seed)
    text = ""
    while len(text) < length:
        text += f"{draw.choice(WORDS)} "
    return text[:length]


def _unmarked(value: Json) -> Json:
    """The same JSON without the marks of what is to be kept in a cache, which move from request to request."""
    if isinstance(value, dict):
        return {name: _unmarked(one) for name, one in value.items() if name != MARK}
    return [_unmarked(one) for one in value] if isinstance(value, list) else value


class Shaper:
    """Leaves of requests what a trace keeps."""

    def __init__(self, client: str) -> None:
        self.trace: dict[str, Any] = {"client": client, "lines": [], "parts": [], "requests": [], "order": []}
        self._lines: dict[str, int] = {}
        self._parts: dict[str, int] = {}

    def starts(self, path: str, body: Json) -> int:
        """Takes a request; gives its number."""
        shaped: dict[str, Json] = {}
        for name, value in body.items():
            if name in LEFT_OUT:
                continue
            if name in LISTS and isinstance(value, list):
                shaped[name] = [self._part(self._tool(one) if name == "tools" else self._shaped(one)) for one in value]
            else:
                shaped[name] = self._shaped(value, name)
        number = len(self.trace["requests"])
        self.trace["requests"].append({"path": path.partition("?")[0], "body": shaped})
        self.trace["order"].append(number)
        return number

    def ends(self, number: int) -> None:
        """Takes note that this request is answered."""
        self.trace["order"].append(-1 - number)

    def _part(self, shaped: Json) -> int:
        key = json.dumps(shaped)
        if key not in self._parts:
            self._parts[key] = len(self._parts)
            self.trace["parts"].append(shaped)
        return self._parts[key]

    def _shaped(self, value: Json, name: str = "") -> Json:
        match value:
            case {"role": "assistant"} | {"type": "function_call"}:
                return _unmarked(value)
            case dict():
                return {key: self._shaped(one, key) for key, one in value.items() if key != MARK}
            case list():
                return [self._shaped(one, name) for one in value]
            case str() if name not in NAMES and (re.search(r"\s", value) or len(value) > SHORT):
                return self._text(value)
        return value

    def _tool(self, tool: Json) -> Json:
        """A tool whose schema is none of its own, but as long."""
        if not isinstance(tool, dict):
            return tool
        shaped: dict[str, Json] = {}
        for name, value in tool.items():
            if name in ("parameters", "input_schema") and isinstance(value, dict):
                filler = self._text(json.dumps(value)[SPARE:])
                shaped[name] = {"type": "object", "properties": {"given": {"type": "string", "description": filler}}}
            elif name in ("function", "tools"):
                shaped[name] = [self._tool(one) for one in value] if isinstance(value, list) else self._tool(value)
            elif name != MARK:
                shaped[name] = self._shaped(value, name)
        return shaped

    def _text(self, text: str) -> Json:
        lines: list[Json] = []
        for line in text.split("\n"):
            if OURS.search(line):
                lines.append(line)
            elif changing := CHANGING.fullmatch(line):
                draw = random.Random(line)
                lines.append(changing["told"] + "".join(_digit(character, draw) for character in changing["value"]))
            elif not line:
                lines.append("")
            else:
                self._add(lines, line)
        return {"$text": lines}

    def _add(self, lines: list[Json], line: str) -> None:
        """Adds a line's number, to the end of a run of numbers where it is the next one."""
        if line not in self._lines:
            self._lines[line] = len(self._lines)
            self.trace["lines"].append(len(line))
        number = self._lines[line]
        match lines[-1] if lines else None:
            case int(last) if last + 1 == number:
                lines[-1] = [last, number]
            case [first, int(last)] if last + 1 == number:
                lines[-1] = [first, number]
            case _:
                lines.append(number)


def _tracing(file: Path, shaper: Shaper) -> Hearing:
    """Writes down the shape of all that it hears of, in `file`."""

    def hears(sent: Sent) -> Answered | None:
        if not sent.body or "count_tokens" in sent.path:
            return None
        number = shaper.starts(sent.path, json.loads(sent.body))

        def answered(status: int) -> None:
            shaper.trace["requests"][number]["status"] = status
            shaper.ends(number)
            file.write_text(written(shaper.trace), encoding="utf-8")

        return answered

    return hears


def _digit(character: str, draw: random.Random) -> str:
    return str(draw.randrange(10)) if character.isdigit() else character


@contextmanager
def recorded(client: str, server: str, file: Path, port: int = 0) -> Iterator[str]:
    """Where a client is to send what `server` is to answer, for a trace of it in `file`."""
    with between(server, _tracing(file, Shaper(client)), port) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()


def written(trace: Json) -> str:
    """The text of a trace: a part and a request in a line each, without the requests that were refused."""
    refused = {number for number, request in enumerate(trace["requests"]) if request.get("status") != 200}
    kept = [number for number in range(len(trace["requests"])) if number not in refused]
    place = {number: nth for nth, number in enumerate(kept)}
    order = [
        place[event] if event >= 0 else -1 - place[-1 - event] for event in trace["order"] if max(event, -1 - event) in place
    ]
    requests = [{"path": request["path"], "body": request["body"]} for request in (trace["requests"][number] for number in kept)]

    def lines(values: Sequence[Json]) -> str:
        return "[\n" + ",\n".join(json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values) + "\n]"

    told = [f'"client": {json.dumps(trace["client"])}', f'"lines": {json.dumps(trace["lines"], separators=(",", ":"))}']
    told += [f'"parts": {lines(trace["parts"])}', f'"requests": {lines(requests)}', f'"order": {json.dumps(order)}']
    return "{" + ",\n".join(told) + "}\n"
