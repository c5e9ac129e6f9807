"""The official client against a live server."""

from collections.abc import AsyncIterator

import openai
import pytest

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


async def test_several_prompts(official: openai.AsyncOpenAI) -> None:
    completion = await official.completions.create(model="any", prompt=[PROMPT, "A cow says"], n=2, max_tokens=2)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


async def test_models(official: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in official.models.list()] == ["storyteller-q8_0.gguf"]


async def test_an_error_is_the_clients_own_exception(official: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await official.completions.create(model="any", prompt=PROMPT, echo=True)
    assert (refused.value.status_code, refused.value.type, refused.value.param) == (400, "invalid_request_error", "echo")


async def test_closing_a_stream_frees_its_slots(official: openai.AsyncOpenAI, live: LiveServer) -> None:
    stream = await official.completions.create(model="any", prompt=PROMPT, n=100, stream=True, extra_body={"ignore_eos": True})
    await anext(stream)
    await stream.close()
    await wait_until(lambda: live.busy_slots() == [])
