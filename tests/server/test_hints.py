"""`cache_control`: what clients mark stays pinned for a while, and pushes nobody else's out."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from tests.server.scripted import FullEngine
from weft.chat.conversation import ChatRequest
from weft.chat.pipeline import ChatPrompt
from weft.server import create_app
from weft.server.anthropic import translate
from weft.server.errors import TextsWaitingError
from weft.server.gateway import Gateway
from weft.server.model import auto_pinner
from weft.server.model.pins import Pinned, Pins
from weft.settings import Settings
from weft.settings.volatile import PRESETS

MARK: Json = {"type": "ephemeral"}
TOOL: Json = {"name": "weather", "input_schema": {"type": "object"}}


def system(text: str, **more: Json) -> Json:
    return [{"type": "text", "text": text, "cache_control": {**MARK, **more}}]


class Marking:
    """A server, and what is pinned there."""

    def __init__(self, client: httpx.AsyncClient, app: Gateway) -> None:
        self.client = client
        self.app = app

    @property
    def has_ended(self) -> bool:
        ending = self.app.service.auto_pinner._expiring
        return ending is not None and ending.done()

    async def ask(self, **fields: Json) -> Json:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **fields}
        answer = await self.client.post("/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
        await wait_until(lambda: not self.app.service.auto_pinner._pending)
        return answer.json()

    async def pinned(self) -> list[str]:
        return [prefix["text"] for prefix in (await self.client.get("/prefixes")).json()["prefixes"]]


@asynccontextmanager
async def marking(**settings: Json) -> AsyncIterator[Marking]:
    app = create_app(weft.Engine(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1), Settings(**settings))
    transport = httpx.ASGITransport(cast("Any", app))
    async with app.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        await wait_until(lambda: app.service.lifecycle.refusal() is None)
        yield Marking(client, app)


async def test_what_is_marked_is_pinned_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(translate.TTLS_S, None, 0.3)
    async with marking() as server:
        await server.ask(system=system("You are a kind storyteller."))
        [text] = await server.pinned()
        assert "You are a kind storyteller." in text
        assert "Hi" not in text
        await wait_until(lambda: not server.app.service.auto_pinner._pins_by_key)
        await wait_until(lambda: server.has_ended)
        assert await server.pinned() == []


async def test_whoever_asks_again_has_it_for_longer_and_pins_nothing_more() -> None:
    async with marking() as server:
        await server.ask(system=system("You are kind."))
        [hint] = server.app.service.auto_pinner._pins_by_key.values()
        until_s, number = hint.until_s, hint.number
        answer = await server.ask(system=system("You are kind.", ttl="1h"))
        assert answer["usage"]["cache_read_input_tokens"] >= hint.n_tokens
        [same] = server.app.service.auto_pinner._pins_by_key.values()
        assert same.until_s >= until_s + 3000
        assert same.number == number
        assert len(await server.pinned()) == 1


async def test_tools_are_part_of_it() -> None:
    async with marking() as server:
        await server.ask(system="You are kind.", tools=[TOOL | {"cache_control": MARK}])
        assert len(await server.pinned()) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "You are kind."},
        {"system": [{"type": "text", "text": "You are kind."}], "tools": [TOOL]},
        {"cache_control": MARK},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": MARK}]}]},
        {"system": system("word " * 400)},
    ],
    ids=["no mark", "none on blocks", "the body", "a message", "more than its share"],
)
async def test_nothing_else_is_pinned(fields: Json) -> None:
    async with marking() as server:
        await server.ask(**fields)
        assert await server.pinned() == []


async def test_of_too_many_the_one_that_was_asked_for_least_recently_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_pinner, "MAX_AUTO_PINS", 2)
    async with marking() as server:
        for name in ("ant", "bee", "ant", "cat"):
            await server.ask(system=system(f"You are a {name}."))
        texts = await server.pinned()
    assert sorted(name for name in ("ant", "bee", "cat") if any(name in text for text in texts)) == ["ant", "cat"]


async def test_all_together_take_no_more_than_their_share() -> None:
    async with marking() as server:
        await server.client.post("/prefixes", json={"prompt": "Mine."})
        for name in ("ant", "bee", "cat"):
            await server.ask(system=system(f"You are a {name}. " + "word " * 60))
        texts = await server.pinned()
        kept = [hint.n_tokens for hint in server.app.service.auto_pinner._pins_by_key.values()]
    assert 0 < sum(kept) <= 2048 // auto_pinner.SHARE
    assert len(texts) == len(kept) + 1 < 4
    assert "Mine." in texts[0], "what was pinned by hand stays"
    assert "cat" in texts[-1]


@pytest.mark.parametrize("line", ["x-anthropic-billing-header: cch={}", "Today's date: {}"])
async def test_lines_that_change_are_no_part_of_it(line: str) -> None:
    async with marking(volatile_prompt_lines=PRESETS["claude-code"]) as server:
        for nth in range(3):
            await server.ask(system=[{"type": "text", "text": line.format(nth)}, *system("You are kind.")])
        [text] = await server.pinned()
    assert "You are kind." in text
    assert line.format("") not in text


async def test_fields_that_become_the_same_tokens_pin_them_once() -> None:
    async with marking() as server:
        for effort in ("low", "high", "low"):
            await server.ask(system=system("You are kind."), output_config={"effort": effort})
            assert len(server.app.service.auto_pinner._pins_by_key) == 1
        assert len(await server.pinned()) == 1


async def test_a_beginning_that_is_too_long_is_rendered_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with marking() as server:
        chat = server.app.service.chat
        prompt, rendered = chat.prompt, []

        def counted(data: ChatRequest, *args: Any, **more: Any) -> ChatPrompt:  # noqa: ANN401 (those of the real one)
            rendered.append(data)
            return prompt(data, *args, **more)

        monkeypatch.setattr(chat, "prompt", counted)
        for _ in range(3):
            await server.ask(system=system("word " * 400))
        assert len(rendered) == 4, "each prompt, and the first beginning"
        assert await server.pinned() == []


async def test_who_wants_it_for_longer_is_heard_while_it_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    async with marking() as server:
        pinned, pin = asyncio.Event(), Pins.pin

        async def slow(pins: Pins, tokens: Sequence[int], adapters: None, readers: Sequence[str]) -> Pinned:
            await pinned.wait()
            return await pin(pins, tokens, adapters, readers)

        monkeypatch.setattr(Pins, "pin", slow)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        for more in ({}, {"ttl": "1h"}):
            answer = await server.client.post("/v1/messages", json={**body, "system": system("You are kind.", **more)})
            assert answer.status_code == 200
        pinned.set()
        await wait_until(lambda: not server.app.service.auto_pinner._pending)
        [hint] = server.app.service.auto_pinner._pins_by_key.values()
        assert hint.until_s > asyncio.get_running_loop().time() + 3000


async def test_other_keys_do_not_read_a_pinned_text_until_they_have_it_too() -> None:
    async with marking(api_keys=("first", "second")) as server:

        async def pinned_texts(key: str) -> list[str | None]:
            server.client.headers["x-api-key"] = key
            return [prefix.get("text") for prefix in (await server.client.get("/prefixes")).json()["prefixes"]]

        server.client.headers["x-api-key"] = "first"
        pinned = (await server.client.post("/prefixes", json={"prompt": "Mine."})).json()
        await server.ask(system=system("You are kind."))
        assert await pinned_texts("second") == [None, None]
        texts = [node["text"] for node in (await server.client.get("/cache")).json()["nodes"]]
        assert texts == [None] * len(texts)
        mine, marked = await pinned_texts("first")
        assert mine == "<s>Mine."
        assert "You are kind." in (marked or "")
        server.client.headers["x-api-key"] = "second"
        await server.ask(system=system("You are kind."))
        mine, marked = await pinned_texts("second")
        assert mine is None
        assert "You are kind." in (marked or "")
        assert (await server.client.delete(f"/prefixes/{pinned['id']}")).status_code == 204, "all keys have the same rights"


async def test_one_that_was_unpinned_by_hand_is_pinned_when_it_is_asked_for_again_and_counts_no_more_until_then() -> None:
    async with marking() as server:
        await server.ask(system=system("You are kind."))
        [prefix] = (await server.client.get("/prefixes")).json()["prefixes"]
        assert (await server.client.delete(f"/prefixes/{prefix['id']}")).status_code == 204
        await server.ask(system=system("You are a bee."))
        assert len(server.app.service.auto_pinner._pins_by_key) == 1
        await server.ask(system=system("You are kind."))
        first, second = await server.pinned()
        assert "bee" in first
        assert "kind" in second


async def test_one_that_cannot_be_let_go_yet_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(translate.TTLS_S, None, 0.2)
    monkeypatch.setattr(auto_pinner, "RETRY_S", 0.05)
    fails = [TextsWaitingError("1024 requests like this one are waiting")]
    unpin = Pins.unpin

    async def failing(pins: Pins, number: int) -> bool:
        if fails:
            raise fails.pop()
        return await unpin(pins, number)

    monkeypatch.setattr(Pins, "unpin", failing)
    async with marking() as server:
        await server.ask(system=system("You are kind."))
        await wait_until(lambda: not server.app.service.auto_pinner._pins_by_key)
        assert fails == []
        assert await server.pinned() == []


async def test_nobody_hears_of_what_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object, **__: object) -> None:
        raise weft.PinBudgetError(1, 2, 3)

    monkeypatch.setattr(weft.Engine, "pin", full)
    async with marking() as server:
        await server.ask(system=system("You are kind."))
        assert await server.pinned() == []
        assert server.app.service.auto_pinner._pins_by_key == {}


async def test_a_model_that_is_unloaded_is_not_loaded_to_let_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(translate.TTLS_S, None, 0.2)
    monkeypatch.setattr(auto_pinner, "RETRY_S", 0.05)
    async with marking(sleep_idle_s=1) as server:
        server.app.service.sleep.after_s = 0.05
        await server.ask(system=system("You are kind."))
        await wait_until(lambda: server.app.service.engine.is_asleep)
        await asyncio.sleep(0.4)
        assert server.app.service.engine.is_asleep
        server.app.service.sleep.after_s = 60
        await server.pinned()
        await wait_until(lambda: not server.app.service.auto_pinner._pins_by_key)
        await wait_until(lambda: server.has_ended)
        assert await server.pinned() == []


async def test_what_is_marked_keeps_no_model_loaded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(translate.TTLS_S, None, 0.3)
    caplog.set_level(logging.INFO, "weft")
    async with marking(sleep_idle_s=60) as server:
        await server.ask(system=system("You are kind."))
        answer = await server.client.post(
            "/api/generate", json={"prompt": "Hi", "keep_alive": 0.6, "options": {"num_predict": 1}}
        )
        assert answer.status_code == 200, answer.text
        await wait_until(lambda: not server.app.service.auto_pinner._pins_by_key)
        assert not server.app.service.engine.is_asleep
        await wait_until(lambda: server.app.service.engine.is_asleep, deadline_s=3)
    assert "no request for 0.6 s" in caplog.text


async def test_a_server_that_ends_leaves_no_task() -> None:
    waiting = asyncio.Event()

    async def never() -> Sequence[int]:
        waiting.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    engine = FullEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine())
    async with app.lifespan():
        await wait_until(lambda: app.service.lifecycle.refusal() is None)
        app.service.auto_pinner.keep(b"a", 5, never, None)
        await waiting.wait()
        [task] = app.service.auto_pinner._pending.values()
    await wait_until(task.done)
    assert task.cancelled()
