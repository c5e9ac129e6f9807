"""What is refused is counted by its reason and logged, and no attack fills the log."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.server.scripted import Step, token
from tests.server.serving import serving
from weft import ContextOverflow, EngineStopped, PinsFull, QueueFull, SlowReader
from weft.server.refusals import LINES_PER_S, Reason, Refusals
from weft.serving.logs import FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "connections.md").read_text(encoding="utf-8")

Asking = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


def posting(path: str, **about: object) -> Asking:
    return lambda client: client.post(path, **about)  # type: ignore[arg-type]


ASKED: dict[Reason, tuple[Asking, Step | Exception | None]] = {
    Reason.NO_ROUTE: (lambda client: client.get("/no/such/route"), None),
    Reason.NOT_SUPPORTED: (lambda client: client.post("/props"), None),
    Reason.BODY_TOO_LARGE: (posting("/completion", content=b" " * (64 * 1024 * 1024 + 1)), None),
    Reason.INVALID_BODY: (posting("/completion", content=b"{"), None),
    Reason.INVALID_FIELD: (posting("/completion", json={"prompt": "a", "n": "many"}), None),
    Reason.CONTEXT_TOO_LONG: (posting("/completion", json={"prompt": "a"}), ContextOverflow(70, 64)),
    Reason.QUEUE_FULL: (posting("/completion", json={"prompt": "a"}), QueueFull(9)),
    Reason.NOT_READY: (posting("/completion", json={"prompt": "a"}), EngineStopped()),
    Reason.PINS_FULL: (posting("/completion", json={"prompt": "a"}), PinsFull(3, 2, 4)),
    Reason.SLOW_READER: (posting("/completion", json={"prompt": "a", "stream": True}), SlowReader(11, 10)),
    Reason.NO_KEY: (lambda client: client.get("/props", headers={"authorization": "Bearer wrong"}), None),
}


@pytest.mark.parametrize("reason", ASKED)
async def test_every_refusal_is_counted_and_its_line_says_why(reason: Reason, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asking, script = ASKED[reason]
    scripts = [] if script is None else [[[token(0, "a")], script] if reason == Reason.SLOW_READER else script]
    keys = {"api_keys": ("k",)} if reason == Reason.NO_KEY else {}
    async with serving(*scripts, **keys) as client:
        await asking(client)
        [line] = [record for record in caplog.records if record.name == "weft.server.request_line"]
        counts = cast("Any", client).app.service.refusals.counts
    assert {counted: n for counted, n in counts.items() if n} == {reason: 1}
    assert getattr(line, FIELDS)["refused"] == reason
    assert f"refused: {reason}" in line.message


def test_every_reason_is_on_the_page_and_none_besides() -> None:
    told = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert told == [str(reason) for reason in Reason]


def test_the_log_has_a_few_lines_a_second_of_each_reason_and_says_how_many_are_missing() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    assert [refusals.add(Reason.NO_KEY) for _ in range(LINES_PER_S + 5)] == [0] * LINES_PER_S + [None] * 5
    assert refusals.add(Reason.NO_ROUTE) == 0
    now[0] = 1.0
    assert [refusals.add(Reason.NO_KEY) for _ in range(2)] == [5, 0]
    assert refusals.counts[Reason.NO_KEY] == LINES_PER_S + 7


async def test_an_attack_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as client:
        await asyncio.gather(*(client.get("/nothing") for _ in range(200)))
    lines = [record for record in caplog.records if record.name == "weft.server.request_line"]
    assert len(lines) < 200
