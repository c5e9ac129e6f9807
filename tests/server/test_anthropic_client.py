"""Anthropic's official client: against a live server, and against answers whose parts a test writes down."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import anthropic
import httpx2
import pytest

from tests.helpers import wait_until
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.said import answers_are_read
from tests.server.scripted import ScriptedEngine, finished, token
from tests.server.test_anthropic import BLOCKS, SAID, SCRIPT, TOOL
from weft.server import create_app

SAY: Json = [{"role": "user", "content": "Tell me a story about a dog."}]
KWARGS: Json = {"model": "any", "messages": SAY, "max_tokens": 12, "extra_body": {"temperature": 0}}


@pytest.fixture
def official(live: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def asynchronous(live: LiveServer) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=live.url, auth_token="none", api_key=None, max_retries=0) as client:
        yield client


def test_a_message_whole_and_streamed(official: anthropic.Anthropic) -> None:
    whole = official.messages.create(**KWARGS)
    with official.messages.stream(**KWARGS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.type for block in whole.content] == ["text"]
    assert text == whole.content[0].text == final.content[0].text  # type: ignore[union-attr]
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12
    assert final.usage.cache_read_input_tokens


async def test_a_message_by_the_other_client(asynchronous: anthropic.AsyncAnthropic) -> None:
    whole = await asynchronous.messages.create(**KWARGS)
    text = ""
    async for event in await asynchronous.messages.create(**KWARGS, stream=True):
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
    assert text == whole.content[0].text  # type: ignore[union-attr]


def test_tokens_are_counted(official: anthropic.Anthropic) -> None:
    counted = official.messages.count_tokens(model="any", messages=SAY)
    usage = official.messages.create(**KWARGS).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_are_the_clients_own(official: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        official.messages.create(**KWARGS, service_tier=cast("Any", "other"))
    assert cast("Any", caught.value.body)["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        official.messages.create(**(KWARGS | {"messages": [{"role": "user", "content": "word " * 5000}]}))


async def test_a_stream_that_is_left_frees_its_slot(asynchronous: anthropic.AsyncAnthropic, live: LiveServer) -> None:
    stream = await asynchronous.messages.create(**(KWARGS | {"max_tokens": 900}), stream=True)
    async for event in stream:
        if event.type == "content_block_delta":
            break
    await stream.close()
    await wait_until(lambda: live.busy_slots() == [])


async def test_tools_and_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, SAID)
    engine = ScriptedEngine([*SCRIPT, [finished(0)], []], [*SCRIPT, [finished(0)], []])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    await app.service.lifecycle.start()
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(cast("Any", app)))
    async with anthropic.AsyncAnthropic(base_url="http://a", api_key="none", http_client=transport) as client:
        whole = await client.messages.create(**KWARGS, tools=[TOOL])
        async with client.messages.stream(**KWARGS, tools=[TOOL]) as stream:
            final = await stream.get_final_message()
    assert [block.model_dump(exclude_none=True) for block in whole.content] == BLOCKS
    assert [block.model_dump(exclude_none=True) for block in final.content] == BLOCKS
    assert whole.stop_reason == final.stop_reason == "tool_use"
    await app.service.stop()


async def test_an_error_in_mid_stream_is_raised() -> None:
    engine = ScriptedEngine([[token(0, "a")], RuntimeError("boom")])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    await app.service.lifecycle.start()
    transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(cast("Any", app)))
    async with anthropic.AsyncAnthropic(base_url="http://a", api_key="none", http_client=transport) as client:
        with pytest.raises(anthropic.APIStatusError, match="internal error"):
            async for _ in await client.messages.create(**KWARGS, stream=True):
                pass
    await app.service.stop()
