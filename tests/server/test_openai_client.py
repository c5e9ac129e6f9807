"""The official client against a live server."""

from collections.abc import AsyncIterator
from typing import Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from tests.helpers import wait_until
from tests.server.conftest import PROMPT
from tests.server.live import LiveServer


@pytest.fixture
async def official(live: LiveServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_four_completions_whole(official: openai.AsyncOpenAI) -> None:
    completion = await official.completions.create(model="any", prompt=PROMPT, n=4, max_tokens=16, seed=1, stop=["zebra"])
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert all(choice.text and choice.finish_reason in {"stop", "length"} for choice in completion.choices)
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 6
    assert 4 < completion.usage.completion_tokens <= 64
    assert completion.usage.prompt_tokens_details is not None


async def test_four_completions_streamed(official: openai.AsyncOpenAI) -> None:
    texts = dict.fromkeys(range(4), "")
    reasons: dict[int, str] = {}
    usage = None
    stream = await official.completions.create(
        model="any", prompt=PROMPT, n=4, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in reasons, "nothing follows the end of a branch"
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert all(texts.values())
    assert set(reasons) == {0, 1, 2, 3}
    assert usage is not None
    assert usage.prompt_tokens == 6


async def test_log_probabilities(official: openai.AsyncOpenAI) -> None:
    completion = await official.completions.create(model="any", prompt=PROMPT, max_tokens=3, logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == completion.choices[0].text


async def test_an_echoed_prompt_with_its_log_probabilities(official: openai.AsyncOpenAI) -> None:
    completion = await official.completions.create(model="any", prompt=PROMPT, max_tokens=2, echo=True, logprobs=2)
    [choice] = completion.choices
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert [logprob is None for logprob in choice.logprobs.token_logprobs] == [True, *[False] * 7]


MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": [{"type": "text", "text": "Tell me one about a dog."}]},
]


async def test_four_answers_of_a_chat_whole(official: openai.AsyncOpenAI) -> None:
    completion = await official.chat.completions.create(
        model="any", messages=MESSAGES, n=4, max_completion_tokens=16, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert all(choice.message.content for choice in completion.choices)
    for choice in completion.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert completion.usage is not None
    assert 4 < completion.usage.completion_tokens <= 64


async def test_four_answers_of_a_chat_streamed(official: openai.AsyncOpenAI) -> None:
    texts = dict.fromkeys(range(4), "")
    roles: dict[int, str | None] = {}
    reasons: dict[int, str] = {}
    usage = None
    stream = await official.chat.completions.create(
        model="any", messages=MESSAGES, n=4, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in reasons, "nothing follows the end of a branch"
            roles.setdefault(choice.index, choice.delta.role)
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
        usage = chunk.usage
    assert all(texts.values())
    assert roles == dict.fromkeys(range(4), "assistant")
    assert set(reasons) == {0, 1, 2, 3}
    assert usage is not None


class Pet(BaseModel):
    """What a chat is to answer with."""

    kind: Literal["dog", "cat"]
    age: Literal[1, 2, 3]


async def test_a_chat_answers_with_what_a_schema_describes(official: openai.AsyncOpenAI) -> None:
    completion = await official.chat.completions.parse(model="any", messages=MESSAGES, response_format=Pet, max_tokens=100)
    pet = completion.choices[0].message.parsed
    assert pet is not None
    assert pet.kind in {"dog", "cat"}
    assert pet.age in {1, 2, 3}


class Count(BaseModel):
    """Counts something."""

    n: Literal[1, 2, 3]


async def test_a_function_of_the_clients_own_is_called(official: openai.AsyncOpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count."}]
    answer = await official.chat.completions.parse(
        model="any",
        messages=messages,
        tools=[openai.pydantic_function_tool(Count)],
        tool_choice={"type": "function", "function": {"name": "Count"}},
        parallel_tool_calls=False,
        max_completion_tokens=128,
    )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Count)


async def test_a_call_is_streamed_to_the_client(official: openai.AsyncOpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Count."}]
    async with official.chat.completions.stream(
        model="any",
        messages=messages,
        tools=[openai.pydantic_function_tool(Count)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_completion_tokens=128,
    ) as stream:
        deltas = [event.arguments_delta async for event in stream if event.type == "tool_calls.function.arguments.delta"]
        [choice] = (await stream.get_final_completion()).choices
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert "".join(deltas) == call.function.arguments
    assert isinstance(call.function.parsed_arguments, Count)


async def test_a_chat_that_is_refused_is_the_clients_own_exception(official: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await official.chat.completions.create(model="any", messages=[])
    assert (refused.value.type, refused.value.param) == ("invalid_request_error", "messages")


async def test_several_prompts(official: openai.AsyncOpenAI) -> None:
    completion = await official.completions.create(model="any", prompt=[PROMPT, "A cow says"], n=2, max_tokens=2)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


async def test_models(official: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in official.models.list()] == ["storyteller-q8_0.gguf"]


async def test_an_error_is_the_clients_own_exception(official: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await official.completions.create(model="any", prompt=PROMPT, best_of=2, n=3)
    assert (refused.value.status_code, refused.value.type, refused.value.param) == (400, "invalid_request_error", "best_of")


async def test_closing_a_stream_frees_its_slots(official: openai.AsyncOpenAI, live: LiveServer) -> None:
    stream = await official.completions.create(model="any", prompt=PROMPT, n=100, stream=True, extra_body={"ignore_eos": True})
    await anext(stream)
    await stream.close()
    await wait_until(lambda: live.busy_slots() == [])
