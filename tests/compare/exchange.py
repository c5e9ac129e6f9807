"""A request that two servers are asked, and what one of them answers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

__all__ = ["Answer", "Case", "ask"]

Json = Any

HEADERS = (
    "content-type",
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-allow-methods",
    "access-control-allow-headers",
)
"""What clients read of an answer's head."""


@dataclass(frozen=True)
class Case:
    """One request."""

    server: str
    """Which pair of servers is asked."""
    method: str
    path: str
    about: str
    """What is told of it beside its route."""
    body: Json = None
    """Sent as JSON; bytes are sent as they are."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"{self.method} {self.path}, {self.about}"


@dataclass(frozen=True)
class Answer:
    """What a server says to a case."""

    status: int
    headers: Mapping[str, str]
    body: Json = None
    """What its JSON holds, or its text."""
    events: list[Json] | None = None
    """Of a stream: what each event holds, in order; comments are left out."""


async def ask(client: httpx.AsyncClient, case: Case) -> Answer:
    """Sends a case."""
    headers = dict(case.headers)
    content: bytes | None = None
    if case.body is not None:
        headers.setdefault("content-type", "application/json")
        content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    answer = await client.request(case.method, case.path, content=content, headers=headers)
    told = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
    kind = told.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return Answer(answer.status_code, told, events=list(_events(answer.text)))
    if kind.startswith("application/json"):
        return Answer(answer.status_code, told, answer.json())
    return Answer(answer.status_code, told, _metrics(answer.text) if case.path == "/metrics" else answer.text)


def _events(text: str) -> Iterator[Json]:
    """What is told that is not JSON stands as it is; so does a frame that is broken."""
    for frame in text.split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        match lines:
            case []:
                pass
            case [line] if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield data if data == "[DONE]" else json.loads(data)
            case [name, line] if name.startswith("event: ") and line.startswith("data: "):
                yield {"event": name.removeprefix("event: "), "data": json.loads(line.removeprefix("data: "))}
            case _:
                yield "\n".join(lines)


def _metrics(text: str) -> Json:
    """The names and types of what is measured."""
    lines = (line.split() for line in text.splitlines() if line.startswith("# TYPE "))
    return {name: kind for _, _, name, kind in lines}
