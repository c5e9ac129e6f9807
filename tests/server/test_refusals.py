"""What is refused is counted by its reason and logged, and no attack fills the log."""

import asyncio
import importlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import httpx
import pytest
from litestar.exceptions import (
    ClientException,
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)

import weft
from tests.server.matchers import Json
from tests.server.scripted import ScriptedLogprobs, Step, busy_slot, connect, finished, token
from tests.server.serving import APPLICATIONS, serving
from weft import ContextOverflowError, EngineStoppedError, PinBudgetError, QueueFullError, SlowConsumerError
from weft.server import keyed_lock, memory_budget
from weft.server.errors import _TABLE, ServerError, describe
from weft.server.json_request import LARGE_BODY
from weft.server.refusals import LINES_PER_S, Reason, Refusals
from weft.server.request_line import RequestLine
from weft.serving.logs import FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "security.md").read_text(encoding="utf-8")

Asking = Callable[[httpx.AsyncClient], Awaitable[object]]


def getting(path: str, **about: object) -> Asking:
    return lambda client: client.get(path, **about)  # type: ignore[arg-type]


def posting(path: str, **about: object) -> Asking:
    return lambda client: client.post(path, **about)  # type: ignore[arg-type]


async def stop_sending(client: httpx.AsyncClient) -> None:
    """Asks with a body that ends in its middle, and waits."""
    messages = [{"type": "http.request", "body": b'{"prompt"', "more_body": True}]
    sent: list[Json] = []

    async def receive() -> Json:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    async def send(message: Json) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/completion", "query_string": b"", "headers": [], "http_version": "1.1"}
    await APPLICATIONS[client](cast("Any", scope), receive, send)


async def leave(client: httpx.AsyncClient) -> None:
    """Asks for work that another thread does, and is gone."""
    await connect(cast("Any", APPLICATIONS[client]), "/tokenize", {"content": "a" * 1_000_000}, lambda _: True)


async def find_all_busy(client: httpx.AsyncClient) -> None:
    engine = cast("Any", APPLICATIONS[client].service.engine)
    engine.slots = [busy_slot(id_slot, 0, 0) for id_slot in range(4)]
    await client.get("/slots?fail_on_no_slot=1")


async def find_no_room(client: httpx.AsyncClient) -> None:
    """Sends a large body while those of others take all the room that there is."""
    bodies = APPLICATIONS[client].litestar.state.bodies
    bodies.n_bytes = bodies.max_bytes
    await client.post("/completion", content=b" " * (LARGE_BODY + 1))


async def merge_alone(client: httpx.AsyncClient) -> None:
    """Merges a node that has no child."""
    document = (await client.post("/documents", json={})).json()["id"]
    node = (await client.post(f"/documents/{document}/nodes", json={"text": "a"})).json()["id"]
    await client.post(f"/documents/{document}/nodes/{node}/merge", json={})


class Refused(NamedTuple):
    """Something that is refused, over HTTP."""

    asking: Asking
    script: Sequence[Step] | Exception = ()
    """What the engine makes of it."""
    settings: Mapping[str, Json] = MappingProxyType({})
    bound: tuple[object, str, object] | None = None
    """A module's bound that is lowered, so that little is too much."""


ASK = posting("/completion", json={"prompt": "a"})
LIKELY = weft.Token(0, 7, "word", slot=0, n_predicted=1, logprobs=cast("weft.Logprobs", ScriptedLogprobs(9)))

ASKED: dict[Reason, Refused] = {
    Reason.WRONG_HOST: Refused(
        getting("/props", headers={"host": "evil.example"}), settings={"allowed_hosts": ("chat.example",)}
    ),
    Reason.CROSS_ORIGIN: Refused(getting("/slots", headers={"sec-fetch-site": "cross-site"})),
    Reason.NO_KEY: Refused(getting("/props", headers={"authorization": "Bearer wrong"}), settings={"api_keys": ("k",)}),
    Reason.NO_ROUTE: Refused(getting("/no/such/route")),
    Reason.NOT_SUPPORTED: Refused(posting("/props")),
    Reason.SLOW_BODY: Refused(stop_sending, settings={"timeout_s": 1}),
    Reason.BODY_TOO_LARGE: Refused(posting("/completion", content=b" " * (64 * 1024 * 1024 + 1))),
    Reason.TOO_MANY_BODIES: Refused(find_no_room),
    Reason.INVALID_BODY: Refused(posting("/completion", content=b"{")),
    Reason.INVALID_FIELD: Refused(posting("/completion", json={"prompt": "a", "n": "many"})),
    Reason.CONTEXT_TOO_LONG: Refused(ASK, ContextOverflowError(70, 64)),
    Reason.QUEUE_FULL: Refused(ASK, QueueFullError(9)),
    Reason.TEXTS_WAITING: Refused(getting("/cache"), bound=(keyed_lock, "MAX_LOCK_REQUESTS", 0)),
    Reason.ANSWER_TOO_LARGE: Refused(
        posting("/completion", json={"prompt": "a", "n_probs": 9}),
        [[LIKELY], [finished(0)], []],
        bound=(memory_budget, "MAX_ANSWER_BYTES", 256),
    ),
    Reason.PINS_FULL: Refused(ASK, PinBudgetError(3, 2, 4)),
    Reason.CONFLICT: Refused(merge_alone),
    Reason.DOCUMENTS_FULL: Refused(posting("/documents", json={"title": "x" * 900}), settings={"documents_max_bytes": 800}),
    Reason.SLOTS_BUSY: Refused(find_all_busy),
    Reason.NOT_READY: Refused(ASK, EngineStoppedError()),
    Reason.CLIENT_LEFT: Refused(leave),
    Reason.SLOW_READER: Refused(
        posting("/completion", json={"prompt": "a", "stream": True}), [[token(0, "a")], SlowConsumerError(11, 10)]
    ),
}

CUT: dict[Reason, tuple[Callable[[Refusals, str], None], str, str]] = {
    Reason.NO_REQUEST: (
        Refusals.no_request,
        "it sent no request",
        "test_connections::test_a_connection_without_a_request_is_given_up_whatever_it_has_said",
    ),
    Reason.TOO_MANY_CONNECTIONS: (
        Refusals.too_many,
        "there are too many",
        "test_connections::test_one_address_may_have_half_of_the_connections_and_its_youngest_go_first",
    ),
    Reason.SLOW_READER: (
        Refusals.unread,
        "the end of its answer stayed unread",
        "test_connections::test_a_connection_whose_answers_end_is_not_read_is_counted_as_that_of_a_slow_reader",
    ),
}
"""What has connections shut, where there is no request that could be answered: how that is counted, what the log says, and the
test that has it happen on real sockets."""


def test_every_reason_is_provoked() -> None:
    assert ASKED.keys() | CUT.keys() == set(Reason)


@pytest.mark.parametrize("reason", ASKED)
async def test_every_refusal_is_counted_and_its_line_says_why(
    reason: Reason, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    asking, script, settings, bound = ASKED[reason]
    if bound is not None:
        monkeypatch.setattr(*bound)
    async with serving(script, **settings) as client:
        await asking(client)
        lines = [record for record in caplog.records if record.name == "weft.server.request_line"]
        # Requests before it, if any, are not refused.
        [line] = [record for record in lines if "refused" in getattr(record, FIELDS)]
        counts = APPLICATIONS[client].service.refusals.counts
    assert {counted: n for counted, n in counts.items() if n} == {reason: 1}
    assert getattr(line, FIELDS)["refused"] == reason
    assert f"refused: {reason}" in line.message


@pytest.mark.parametrize("reason", CUT)
def test_every_cut_is_counted_and_has_a_line_of_its_own(reason: Reason, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cut, why, test = CUT[reason]
    refusals = Refusals()
    cut(refusals, "10.0.0.1")
    assert {counted: n for counted, n in refusals.counts.items() if n} == {reason: 1}
    assert [record.message for record in caplog.records] == [f"a connection of 10.0.0.1 was closed: {why}"]
    module, _, name = test.partition("::")
    assert callable(getattr(importlib.import_module(f"tests.server.{module}"), name))


def rows() -> dict[str, str]:
    """The answer to each reason, as the page has it."""
    return dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE))


def test_every_reason_is_on_the_page_and_none_besides() -> None:
    assert list(rows()) == [str(reason) for reason in Reason]


OF_THE_FRAMEWORK: list[HTTPException] = [
    NotFoundException(),
    MethodNotAllowedException(),
    ClientException(status_code=413),
    ClientException(),
    ValidationException(extra=[{"key": "", "message": "Expected `object`"}]),
    ValidationException(extra=[{"key": "n", "message": "Expected `int`"}]),
]
"""What Litestar refuses itself."""


def reason_for(error: HTTPException) -> Reason:
    refusals = Refusals()
    scope: Any = {"method": "GET", "path": "/"}
    with RequestLine(scope, refusals):
        assert describe(error).code == error.status_code
    [reason] = [reason for reason, n in refusals.counts.items() if n]
    return reason


def test_the_page_tells_every_status_that_a_reason_is_answered_with() -> None:
    answered: dict[str, set[int]] = {str(reason): set() for reason in Reason}
    rows_of_errors = [(row.reason, row.status) for row in _TABLE.values()]
    rows_of_errors += [(error.reason, error.status) for error in ServerError.__subclasses__()]
    for reason, status in rows_of_errors:
        if reason is not None:
            answered[reason].add(status)
    for error in OF_THE_FRAMEWORK:
        answered[reason_for(error)].add(error.status_code)
    assert {reason: set(map(int, re.findall(r"\b[45]\d\d\b", answer))) for reason, answer in rows().items()} == answered


@pytest.mark.parametrize("reason", CUT)
def test_the_page_says_what_is_closed(reason: Reason) -> None:
    assert "closed" in rows()[reason]


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
