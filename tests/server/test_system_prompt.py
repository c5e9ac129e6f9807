"""What all prompts of `/completion` follow: given once, computed once, and told."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import prompt_of
from tests.server.conftest import answers
from weft.server import create_app
from weft.server.inference.generation import Generation
from weft.server.inference.submission import Submission
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt, read_system_prompt

SYSTEM = "A story of a fox and an owl.\nUser: Tell it.\nTeller:"
GREEDY = {"n_predict": 4, "temperature": 0, "ignore_eos": True}
OBJECT = {"prompt": SYSTEM, "anti_prompt": "User:", "assistant_name": "Teller:"}


@asynccontextmanager
async def serving(
    settings: Settings | None = None, cache_ram: int | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, weft.Engine]]:
    engine = weft.Engine(n_slots=4, n_ctx=1024, kv_unified=True, n_threads=1, cache_ram=cache_ram)
    async with AsyncTestClient(create_app(engine, settings)) as client:
        await answers(client, 200)
        yield client, engine


async def complete(client: httpx.AsyncClient, **body: Any) -> Any:  # noqa: ANN401 (any JSON)
    answer = await client.post("/completion", json=GREEDY | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def names(client: httpx.AsyncClient) -> tuple[str, str]:
    props = (await client.get("/props")).json()
    return props["user_name"], props["assistant_name"]


async def test_a_system_prompt_is_computed_once_and_followed_by_every_prompt() -> None:
    async with serving() as (client, engine):
        plain = await complete(client, prompt=SYSTEM + " Once upon a time")
        await client.post("/prefixes", json={"prompt": "nothing of it"})
        n_system = len(engine.tokenize(SYSTEM))
        await complete(client, system_prompt=OBJECT, n_predict=0)
        before = engine.stats().n_computed
        told = [await complete(client, prompt=prompt) for prompt in (" Once upon a time", " One day", " The owl")]
        n_own = sum(len(engine.tokenize(prompt, add_special=False)) for prompt in (" Once upon a time", " One day", " The owl"))
        assert engine.stats().n_computed - before <= n_own
        assert all(one["timings"]["cache_n"] >= n_system for one in told)
        assert told[0]["content"] == plain["content"]
        assert told[0]["prompt"] == "<s>" + SYSTEM + " Once upon a time"
        # It is of `/completion` alone.
        other = (await client.post("/v1/completions", json=GREEDY | {"prompt": "a", "max_tokens": 1})).json()
        assert other["usage"]["prompt_tokens"] == len(engine.tokenize("a"))


@pytest.mark.parametrize(
    "body",
    [
        {"system_prompt": OBJECT},
        {"system_prompt": SYSTEM, "anti_prompt": "User:", "assistant_name": "Teller:"},
    ],
    ids=["an object", "a text, with the names beside it"],
)
async def test_both_generations_of_it_are_understood(body: dict[str, Any]) -> None:
    async with serving() as (client, _):
        assert await names(client) == ("", "")
        first = await complete(client, **body, prompt=" Once")
        assert await names(client) == ("User:", "Teller:")
        assert (await complete(client, prompt=" Once"))["content"] == first["content"]
        assert "User:" in first["generation_settings"]["stop"]


async def test_another_one_lets_go_of_the_one_before_and_an_empty_one_of_all() -> None:
    async with serving() as (client, engine):
        await complete(client, system_prompt="One", n_predict=0)
        await complete(client, system_prompt="Another", n_predict=0)
        [pinned] = await engine.prefixes()
        assert engine.detokenize(pinned.tokens) == "<s>Another"
        await complete(client, system_prompt=OBJECT | {"prompt": "Another"}, n_predict=0)
        assert [one.id for one in await engine.prefixes()] == [pinned.id], "new names compute nothing"
        told = await complete(client, system_prompt="", prompt="Once upon")
        assert told["prompt"] == "<s>Once upon"
        assert await engine.prefixes() == []
        assert await names(client) == ("", "")


async def test_one_that_cannot_be_computed_leaves_the_one_before() -> None:
    # Half of a store of 1 MiB holds 341 tokens.
    async with serving(cache_ram=1) as (client, engine):
        await complete(client, system_prompt=SYSTEM, n_predict=0)
        for text, status in ((prompt_of(500, "half of the cache"), 409), ("much " * 2_000, 400)):
            given = engine.detokenize(text[1:]) if isinstance(text, list) else text
            answer = await client.post("/completion", json=GREEDY | {"system_prompt": given, "prompt": "a"})
            assert answer.status_code == status, answer.text
            assert (await complete(client, prompt=" Once"))["prompt"] == "<s>" + SYSTEM + " Once"
        [pinned] = await engine.prefixes()
        assert engine.detokenize(pinned.tokens) == "<s>" + SYSTEM


async def test_a_long_one_takes_the_place_of_another_long_one() -> None:
    async with serving(cache_ram=1) as (client, engine):
        texts = [engine.detokenize(prompt_of(250, name)[1:]) for name in ("one", "two")]
        for text in texts:
            await complete(client, system_prompt=text, n_predict=0)
        [pinned] = await engine.prefixes()
        assert engine.detokenize(pinned.tokens) == "<s>" + texts[1]


@pytest.mark.parametrize("before", [SYSTEM, ""], ids=["another", "none"])
@pytest.mark.parametrize("new", ["Another one.", SYSTEM, ""], ids=["new", "the same", "empty"])
async def test_a_request_that_is_refused_leaves_the_one_before(before: str, new: str) -> None:
    async with serving() as (client, engine):
        await complete(client, system_prompt=OBJECT | {"prompt": before}, n_predict=0)
        told = (await complete(client, prompt=" Once"))["prompt"]
        pinned = [one.id for one in await engine.prefixes()]
        for wrong in ({"lora": [{"id": 7, "scale": 1}]}, {"prompt": "much " * 1_100}, {"repeat_penalty": 0}):
            answer = await client.post("/completion", json={"system_prompt": new, "prompt": "a"} | wrong)
            assert answer.status_code == 400, answer.text
            assert await names(client) == ("User:", "Teller:")
            assert [one.id for one in await engine.prefixes()] == pinned
            assert (await complete(client, prompt=" Once"))["prompt"] == told


async def test_where_there_is_no_room_for_both_a_request_that_is_refused_leaves_the_one_before_too() -> None:
    async with serving(cache_ram=1) as (client, engine):
        one, two = (engine.detokenize(prompt_of(250, name)[1:]) for name in ("one", "two"))
        await complete(client, system_prompt=one, n_predict=0)
        wrong = {"system_prompt": two, "prompt": "a", "lora": [{"id": 7, "scale": 1}]}
        assert (await client.post("/completion", json=wrong)).status_code == 400
        [pinned] = await engine.prefixes()
        assert engine.detokenize(pinned.tokens) == "<s>" + one
        assert (await client.get("/props")).json()["system_prompt"] == one


@pytest.mark.parametrize("wrong", [{}, {"lora": [{"id": 7, "scale": 1}]}], ids=["that begins", "that is refused"])
@pytest.mark.parametrize("new", [OBJECT | {"prompt": "Another one."}, OBJECT | {"anti_prompt": "Reader:"}], ids=["text", "name"])
async def test_all_others_follow_the_one_before_until_a_request_has_begun(
    monkeypatch: pytest.MonkeyPatch, new: dict[str, Any], wrong: dict[str, Any]
) -> None:
    app = create_app(weft.Engine(n_slots=4, n_ctx=1024, kv_unified=True, n_threads=1))
    await app.service.lifecycle.start()
    # On this event loop, so that one can be held up.
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        await complete(client, system_prompt=OBJECT, n_predict=0)
        submit, is_there, may_go_on = app.service.submit, asyncio.Event(), asyncio.Event()

        async def held(asked: Submission) -> Generation:
            if asked.prompts == [["held"]]:
                is_there.set()
                await may_go_on.wait()
            return await submit(asked)

        async def system_prompt_state() -> tuple[str, list[str], str]:
            one = await complete(client, prompt=" Once")
            return one["prompt"], one["generation_settings"]["stop"], (await client.get("/props")).json()["system_prompt"]

        before = await system_prompt_state()
        monkeypatch.setattr(app.service, "submit", held)
        body = GREEDY | {"system_prompt": new, "prompt": "held"} | wrong
        slow = asyncio.create_task(client.post("/completion", json=body))
        await is_there.wait()
        assert await system_prompt_state() == before
        assert await names(client) == ("User:", "Teller:")
        may_go_on.set()
        answer = await slow
        if wrong:
            assert answer.status_code == 400
            assert await system_prompt_state() == before
        else:
            assert answer.json()["prompt"].endswith(new["prompt"] + "held")
            assert (await system_prompt_state())[1:] == ([new["anti_prompt"]], new["prompt"])
    await app.service.stop()


async def test_where_the_one_before_cannot_be_computed_again_it_is_followed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(cache_ram=1) as (client, engine):
        one, two = (engine.detokenize(prompt_of(250, name)[1:]) for name in ("one", "two"))
        await complete(client, system_prompt=one, n_predict=0)
        pin, failures = engine.pin, iter((None, None, weft.QueueFullError(1)))

        async def pin_until_many_wait(tokens: Sequence[int], **_: object) -> weft.Prefix:
            if (failure := next(failures)) is not None:
                raise failure
            return await pin(tokens)

        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
            patched.setattr(engine, "pin", pin_until_many_wait)
            wrong = {"system_prompt": two, "prompt": "a", "lora": [{"id": 7, "scale": 1}]}
            assert (await client.post("/completion", json=wrong)).status_code == 400
        assert "the system prompt is still used, but could not be pinned again: the queue is full (1 request)" in caplog.text
        assert await engine.prefixes() == []
        assert (await client.get("/props")).json()["system_prompt"] == one
        assert (await complete(client, prompt=" Once"))["prompt"] == "<s>" + one + " Once"
        await complete(client, system_prompt=one, n_predict=0)
        [pinned] = await engine.prefixes()
        assert engine.detokenize(pinned.tokens) == "<s>" + one, "it is kept again once it is given again"


async def test_a_server_that_stops_meanwhile_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as (client, engine):
        await complete(client, system_prompt=SYSTEM, n_predict=0)
        pin = engine.pin

        async def pin_and_stop(tokens: Sequence[int], **_: object) -> weft.Prefix:
            pinned = await pin(tokens)
            await engine.close()
            return pinned

        monkeypatch.setattr(engine, "pin", pin_and_stop)
        with caplog.at_level(logging.WARNING):
            answer = await client.post("/completion", json=GREEDY | {"system_prompt": "Another one.", "prompt": "a"})
        assert answer.status_code == 503
        assert "system prompt" not in caplog.text


async def test_what_is_wrong_is_refused_before_anything_changes(client: httpx.AsyncClient) -> None:
    for body, param in (
        ({"assistant_name": "A:", "prompt": "a"}, "assistant_name"),
        ({"system_prompt": 3}, "system_prompt"),
        ({"system_prompt": {"prompt": 3}}, "system_prompt"),
        ({"system_prompt": "a", "temperature": "warm"}, "temperature"),
    ):
        answer = await client.post("/completion", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await client.get("/prefixes")).json() == {"prefixes": []}


async def test_an_anti_prompt_alone_ends_a_completion(client: httpx.AsyncClient) -> None:
    free = await complete(client, prompt="Once upon a time,", n_predict=16)
    word = free["content"].split()[3]
    told = await complete(client, prompt="Once upon a time,", n_predict=16, anti_prompt=word)
    assert told["content"] == free["content"][: free["content"].index(word)]
    assert told["stopping_word"] == word


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "Be kind.", "anti_prompt": "User:", "assistant_name": "Bot:"}',
        ' {"system_prompt": {"prompt": "Be kind.", "anti_prompt": "User:", "assistant_name": "Bot:"}}',
    ],
)
async def test_a_file_gives_it_from_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "system.json"
    file.write_text(text)
    async with serving(Settings(system_prompt=read_system_prompt(file.read_text()))) as (client, _):
        assert await names(client) == ("User:", "Bot:")
        assert (await complete(client, prompt=" Hello"))["prompt"] == "<s>Be kind. Hello"


def test_a_file_may_be_plain_text_and_what_is_neither_is_refused() -> None:
    assert read_system_prompt("Be kind.\n") == SystemPrompt(prompt="Be kind.\n")
    for text in ('{"prompt": 3}', '{"promt": "a"}', '{"prompt": "a"', '{"system_prompt": "a"}'):
        with pytest.raises(ValueError, match=r"prompt|JSON"):
            read_system_prompt(text)
