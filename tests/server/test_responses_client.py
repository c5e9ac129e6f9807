"""OpenAI's official clients, asking a live server for responses and conversations."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, cast

import openai
import pytest
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter

from tests.helpers import wait_until
from tests.server.live import LiveServer

STORY = "Tell me a story about a fox who lived in a deep forest with many friends and a very old and clever owl."

DEMO: dict[str, Any] = {"model": "any", "max_output_tokens": 12, "extra_body": {"ignore_eos": True}}

ENDLESS: dict[str, Any] = {"model": "any", "input": STORY, "extra_body": {"ignore_eos": True}}
"""More than a test waits for."""

SHORT: dict[str, Any] = {"model": "any", "input": STORY, "extra_body": {"stop": [" "], "ignore_eos": True}}
"""What ends by itself, after its first word."""

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
async def official(live: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def checked(events: Sequence[Any], first: int = 0) -> Response:
    """The response that a stream ends with, once every event is what OpenAI's classes say, in the order of its number."""
    for number, event in enumerate(events, first):
        EVENT.validate_python(event.to_dict(), strict=True)
        assert event.sequence_number == number
    response = events[-1].response
    assert events[-1].type in {"response.completed", "response.incomplete"}
    assert isinstance(response, Response)
    return response


async def test_a_whole_response(official: openai.AsyncOpenAI) -> None:
    response = await official.responses.create(input=STORY, instructions="Be short.", metadata={"a": "b"}, **DEMO)
    Response.model_validate(response.to_dict(), strict=True)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text
    assert response.metadata == {"a": "b"}
    assert response.usage is not None
    assert response.usage.output_tokens == 12
    assert await official.responses.retrieve(response.id) == response


def test_the_client_without_asyncio(live: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        response = client.responses.create(input=STORY, **DEMO)
        assert response.output_text
        assert checked(list(client.responses.create(input=STORY, stream=True, **DEMO))).output_text
        client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{response.id}' not found"):
            client.responses.retrieve(response.id)


async def test_its_events(official: openai.AsyncOpenAI) -> None:
    events = [event async for event in await official.responses.create(input=STORY, stream=True, **DEMO)]
    response = checked(events)
    assert response.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == response.output_text
    assert await official.responses.retrieve(response.id) == response


async def test_the_helper_of_streams(official: openai.AsyncOpenAI) -> None:
    async with official.responses.stream(**SHORT) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert (await stream.get_final_response()).output_text == "".join(texts)


class Animal(BaseModel):
    """What is asked for."""

    kind: Literal["fox", "owl"]


async def test_an_answer_of_a_schema(official: openai.AsyncOpenAI) -> None:
    response = await official.responses.parse(model="any", input=STORY, text_format=Animal)
    assert response.output_parsed is not None
    assert response.output_parsed.kind in {"fox", "owl"}


async def test_log_probabilities(official: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = DEMO | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = [event async for event in await official.responses.create(input=STORY, stream=True, **asked)]
    [message] = checked(events).output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    deltas = [entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert deltas == [entry.token for entry in part.logprobs]


async def test_what_goes_on_from_a_response_computes_only_what_is_new(official: openai.AsyncOpenAI) -> None:
    first = await official.responses.create(input=STORY, **DEMO)
    second = await official.responses.create(input="And then?", previous_response_id=first.id, **DEMO)
    assert first.usage is not None
    assert second.usage is not None
    told: list[Any] = [
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And then?"},
    ]
    as_told = await official.responses.input_tokens.count(model="any", input=told)
    assert second.usage.input_tokens == as_told.input_tokens
    # Nothing of the first prompt is computed again.
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    third = await official.responses.create(input="And then?", previous_response_id=second.id, **DEMO)
    assert third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens >= second.usage.input_tokens


async def test_where_all_is_too_much_the_oldest_turns_are_left_out(official: openai.AsyncOpenAI) -> None:
    told: list[Any] = [{"role": "user", "content": STORY}, {"role": "assistant", "content": "Once. " * 100}] * 20
    last: list[Any] = [{"role": "user", "content": "And then?"}]
    asked: dict[str, Any] = DEMO | {"input": told + last, "instructions": "Be short."}
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        await official.responses.create(**asked)
    response = await official.responses.create(truncation="auto", **asked)
    assert response.truncation == "auto"
    assert response.usage is not None
    fitting = 0
    for n_left_out in range(20, -1, -1):
        rest = told[2 * n_left_out :] + last
        with contextlib.suppress(openai.BadRequestError):
            counted = await official.responses.input_tokens.count(model="any", input=rest, instructions="Be short.")
            fitting = max(fitting, counted.input_tokens if counted.input_tokens <= 1024 - 12 else 0)
    assert response.usage.input_tokens == fitting
    assert fitting > 400, "some turns stay"


async def test_two_that_go_on_from_one_response_share_it(official: openai.AsyncOpenAI) -> None:
    first = await official.responses.create(input=STORY, **DEMO)
    ways = ["What did the owl say?", "What did the fox say?"]
    answers = [await official.responses.create(input=way, previous_response_id=first.id, **DEMO) for way in ways]
    assert first.usage is not None
    for answer in answers:
        assert answer.usage is not None
        assert answer.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


async def test_the_items_that_a_response_was_made_of(official: openai.AsyncOpenAI) -> None:
    first = await official.responses.create(input=STORY, **DEMO)
    second = await official.responses.create(input="And then?", previous_response_id=first.id, **DEMO)
    items = [item async for item in official.responses.input_items.list(second.id, order="asc", limit=2)]
    assert [item.role for item in items if item.type == "message"] == ["user", "assistant", "user"]
    page = await official.responses.input_items.list(second.id, limit=1)
    ResponseItemList.model_validate({**page.to_dict(), "object": "list"}, strict=True)
    assert page.data == items[:1:-1]


async def test_an_item_is_named_by_its_id(official: openai.AsyncOpenAI) -> None:
    first = await official.responses.create(input=STORY, **DEMO)
    named: list[Any] = [{"role": "user", "content": STORY}, {"type": "item_reference", "id": first.output[0].id}]
    counted = await official.responses.input_tokens.count(model="any", input=named)
    spelt: list[Any] = [{"role": "user", "content": STORY}, {"role": "assistant", "content": first.output_text}]
    assert counted == await official.responses.input_tokens.count(model="any", input=spelt)


async def test_a_response_in_the_background_is_read_again_from_any_event(official: openai.AsyncOpenAI) -> None:
    stream = await official.responses.create(input=STORY, background=True, stream=True, **DEMO)
    begun = await anext(stream)
    assert begun.type == "response.created"
    assert begun.response.status == "queued"
    await stream.close()
    whole = [event async for event in await official.responses.retrieve(begun.response.id, stream=True)]
    response = checked(whole)
    assert [event.type for event in whole[:3]] == ["response.created", "response.queued", "response.in_progress"]
    for number in range(len(whole)):
        again = await official.responses.retrieve(begun.response.id, stream=True, starting_after=number)
        assert [event async for event in again] == whole[number + 1 :]
    assert await official.responses.retrieve(begun.response.id) == response


async def test_a_response_in_the_background_ends_with_nobody_there(official: openai.AsyncOpenAI) -> None:
    response = await official.responses.create(background=True, **SHORT)
    assert response.status in {"queued", "in_progress"}
    async with asyncio.timeout(10):
        while response.status in {"queued", "in_progress"}:
            response = await official.responses.retrieve(response.id)
    assert response.status == "completed"
    assert response.output_text


async def test_a_response_in_the_background_is_cancelled(official: openai.AsyncOpenAI, live: LiveServer) -> None:
    response = await official.responses.create(background=True, **ENDLESS)
    await wait_until(lambda: live.busy_slots() != [])
    cancelled = await official.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    await wait_until(lambda: live.busy_slots() == [], 2)
    assert await official.responses.cancel(response.id) == cancelled
    assert await official.responses.retrieve(response.id) == cancelled


async def test_one_that_is_deleted_is_ended(official: openai.AsyncOpenAI, live: LiveServer) -> None:
    response = await official.responses.create(background=True, **ENDLESS)
    await wait_until(lambda: live.busy_slots() != [])
    await official.responses.delete(response.id)
    await wait_until(lambda: live.busy_slots() == [], 2)
    with pytest.raises(openai.NotFoundError):
        await official.responses.retrieve(response.id)


async def test_who_leaves_a_stream_frees_its_slot(official: openai.AsyncOpenAI, live: LiveServer) -> None:
    stream = await official.responses.create(stream=True, **ENDLESS)
    begun = await anext(stream)
    await wait_until(lambda: live.busy_slots() != [])
    await stream.close()
    await wait_until(lambda: live.busy_slots() == [], 2)
    assert begun.type == "response.created"
    assert (await official.responses.retrieve(begun.response.id)).status == "cancelled"


async def test_a_conversation_grows(official: openai.AsyncOpenAI) -> None:
    begun: list[Any] = [{"role": "user", "content": "My name is Kim."}]
    conversation = await official.conversations.create(items=begun, metadata={"topic": "foxes"})
    first = await official.responses.create(input=STORY, conversation=conversation.id, **DEMO)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    items = [item async for item in official.conversations.items.list(conversation.id, order="asc")]
    assert [item.role for item in items if item.type == "message"] == ["user", "user", "assistant"]
    second = await official.responses.create(input="And then?", conversation=conversation.id, **DEMO)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    await official.conversations.items.delete(str(items[0].id), conversation_id=conversation.id)
    more: list[Any] = [{"role": "user", "content": "Bye."}]
    added = await official.conversations.items.create(conversation.id, items=more)
    assert len(added.data) == 1
    found = await official.conversations.items.retrieve(str(added.data[0].id), conversation_id=conversation.id)
    assert found == added.data[0]
    assert len([item async for item in official.conversations.items.list(conversation.id, limit=2)]) == 5
    changed = await official.conversations.update(conversation.id, metadata={"topic": "owls"})
    assert changed == await official.conversations.retrieve(conversation.id)
    assert changed.metadata == {"topic": "owls"}
    assert (await official.conversations.delete(conversation.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await official.conversations.retrieve(conversation.id)


async def test_a_conversation_takes_one_response_at_a_time(official: openai.AsyncOpenAI) -> None:
    conversation = (await official.conversations.create()).id
    stream = await official.responses.create(conversation=conversation, stream=True, **ENDLESS)
    await anext(stream)
    with pytest.raises(openai.ConflictError):
        await official.responses.create(input=STORY, conversation=conversation, **DEMO)
    await stream.close()
    async with asyncio.timeout(5):
        while True:
            try:
                answer = await official.responses.create(input=STORY, conversation=conversation, **DEMO)
                break
            except openai.ConflictError:
                continue
    assert answer.output_text


async def test_a_compacted_conversation_goes_on(official: openai.AsyncOpenAI) -> None:
    first = await official.responses.create(input=STORY, **DEMO)
    compacted = await official.responses.compact(model="any", previous_response_id=first.id, extra_body={"max_output_tokens": 12})
    # What the user said is told as it was said, which the class has no place for.
    told = compacted.to_dict(warnings=False)
    items: list[Any] = list(cast("list[Any]", told["output"]))
    CompactedResponse.model_validate(told | {"output": items[1:]}, strict=True)
    assert [(item["type"], item.get("role")) for item in items] == [("message", "user"), ("compaction", None)]
    assert first.usage is not None
    assert compacted.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    items.append({"role": "user", "content": "And then?"})
    assert (await official.responses.create(input=items, **DEMO)).output_text


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"truncation": "middle"}, "truncation"),
        ({"input": [{"type": "computer_call", "id": "a"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "a"}]}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": 5}}}}, "text"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_not_there_is_refused_by_name(official: openai.AsyncOpenAI, asked: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await official.responses.create(**({"input": STORY} | DEMO | asked))
    assert refused.value.param == param
