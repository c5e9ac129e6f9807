"""Streams of chats: text becomes typed deltas, wherever tokens split it, choice by choice."""

import asyncio
import gc
import json
from collections.abc import Iterable, Sequence
from typing import Any, get_type_hints

import msgspec
import pytest

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from tests.server.scripted import PlainStream, finished, token
from weft.chat.answer.call_format import ReasoningMarks
from weft.chat.answer.form import ChatForm
from weft.chat.answer.formats import HERMES
from weft.chat.answer.tools import Tool, ToolUse
from weft.chat.conversation import ChatRequest

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: list[Json] = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
FORM = ChatForm(HERMES, ReasoningMarks("<think>", "</think>"), ToolUse((Tool("weather", CITY),)))
TEXT = (
    "<think>It may rain.</think>Let me look. "
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
)
CALLS = [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})]


def stream_of(*texts: Sequence[str], reason: str = "end", stop: str | None = None) -> weft.ChatStream:
    """A stream whose choices generate these tokens, one of each per step."""
    steps: list[list[Any]] = [
        [token(index, tokens[nth], nth + 1) for index, tokens in enumerate(texts) if nth < len(tokens)]
        for nth in range(max(map(len, texts)))
    ]
    ends = [finished(index, reason=reason) for index in range(len(texts))]
    if stop is not None:
        ends = [msgspec.structs.replace(end, stop_reason=stop) for end in ends]
    stream: Any = PlainStream([*steps, ends])
    return weft.ChatStream(stream, len(texts), FORM, lambda _: "")


def parsed_calls(message: weft.AssistantMessage) -> list[tuple[str, Json]]:
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def assembled(deltas: Iterable[weft.ChatDelta], index: int) -> Json:
    """The message of a choice, put together from its deltas as a client would."""
    message: Json = {"content": "", "reasoning_content": "", "calls": []}
    for delta in deltas:
        match delta:
            case weft.ContentDelta(of, text) if of == index:
                message["content"] += text
            case weft.ReasoningDelta(of, text) if of == index:
                message["reasoning_content"] += text
            case weft.ToolCallStart(of, call, call_id, name) if of == index:
                assert call == len(message["calls"])
                message["calls"].append([call_id, name, ""])
            case weft.ToolCallDelta(of, call, arguments) if of == index:
                message["calls"][call][2] += arguments
    return message


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(TEXT)])
async def test_a_text_split_anywhere_becomes_the_same_message(size: int) -> None:
    stream = stream_of([TEXT[at : at + size] for at in range(0, len(TEXT), size)])
    deltas = [delta async for delta in stream]
    message = (await stream.collect()).message
    assert (message.content.strip(), message.reasoning_content) == ("Let me look.", "It may rain.")
    assert parsed_calls(message) == CALLS
    calls = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    told = {"content": message.content, "reasoning_content": message.reasoning_content, "calls": calls}
    assert assembled(deltas, 0) == told
    assert isinstance(deltas[-1], weft.ChoiceFinished)
    assert deltas[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("at", range(len(TEXT)))
async def test_a_text_split_in_two_becomes_the_same_message(at: int) -> None:
    message = (await stream_of([TEXT[:at], TEXT[at:]]).collect()).message
    assert (message.content.strip(), message.reasoning_content) == ("Let me look.", "It may rain.")
    assert parsed_calls(message) == CALLS


async def test_choices_are_parsed_independently() -> None:
    stream = stream_of(list(TEXT), list("Dry."), list("<think>So</think>Wet."))
    deltas = [delta async for delta in stream]
    assert [assembled(deltas, index)["content"].strip() for index in range(3)] == ["Let me look.", "Dry.", "Wet."]
    completion = await stream.collect()
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.finish_reason for choice in completion.choices] == ["tool_calls", "stop", "stop"]


async def test_a_batch_has_the_deltas_of_one_step() -> None:
    stream = stream_of(list("ab"), list("cd"))
    assert await stream.next_batch() == [weft.ContentDelta(0, "a"), weft.ContentDelta(1, "c")]
    assert await anext(stream) == weft.ContentDelta(0, "b")
    assert await stream.next_batch() == [weft.ContentDelta(1, "d")], "iteration leaves the rest of its step"
    assert [type(delta) for delta in await stream.next_batch()] == [weft.ChoiceFinished] * 2
    assert await stream.next_batch() == []


async def test_steps_that_add_no_text_are_skipped() -> None:
    stream = stream_of(["<think", ">", "", "It"])
    assert await stream.next_batch() == [weft.ReasoningDelta(0, "It")]


async def test_a_stop_string_inside_a_call_is_no_finished_call() -> None:
    cut = TEXT[: TEXT.index('"Os')]
    [choice] = (await stream_of(list(cut), reason="stop", stop='"Os').collect()).choices
    assert (choice.finish_reason, choice.stop_reason) == ("stop", '"Os')
    assert json.loads(choice.message.tool_calls[0].arguments) == {"city": "Rome"}


@pytest.mark.parametrize(
    ("reason", "finish_reason", "is_context_full"),
    [("length", "length", False), ("context_full", "length", True), ("cancelled", "cancelled", False)],
)
async def test_a_truncated_answer_says_why(reason: str, finish_reason: str, is_context_full: bool) -> None:
    [choice] = (await stream_of(list(TEXT), reason=reason).collect()).choices
    assert (choice.finish_reason, choice.is_context_full) == (finish_reason, is_context_full)


async def test_an_answer_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(weft.AnswerTooLargeError):
        await stream_of(list(TEXT)).collect(max_bytes=1_000)


async def test_four_answers_are_generated_from_one_prompt(engine: weft.Engine) -> None:
    messages = [{"role": "user", "content": "Tell me of the fox that went to sea in a sieve, and of its friends."}]
    completion = await engine.chat(messages, n=4, max_tokens=6, seed=3, use_cache=False, ignore_eos=True)
    assert len(completion.choices) == 4
    assert completion.n_computed == completion.n_prompt
    assert [len(choice.token_ids) for choice in completion.choices] == [6] * 4
    assert len({choice.message.content for choice in completion.choices}) > 1


async def test_parallel_calls_of_a_model_are_parsed(engine: weft.Engine) -> None:
    few = {"type": "object", "properties": {"dice": {"enum": [1, 2]}}, "required": ["dice"], "additionalProperties": False}
    names: list[Json] = [{"type": "function", "function": {"name": name, "parameters": few}} for name in "ab"]
    stream = await engine.stream_chat(HELLO, tools=names, tool_choice="required", max_tokens=200, n=4, seed=2, ignore_eos=True)
    deltas = [delta async for delta in stream]
    for choice in (await stream.collect()).choices:
        calls = [[call.id, call.name, call.arguments] for call in choice.message.tool_calls]
        assert assembled(deltas, choice.index)["calls"] == calls
        assert {call.name for call in choice.message.tool_calls} <= {"a", "b"}
    starts = {(delta.index, delta.call) for delta in deltas if isinstance(delta, weft.ToolCallStart)}
    assert any(call > 0 for _, call in starts), "a choice has several calls"


async def test_one_choice_can_be_cancelled(engine: weft.Engine) -> None:
    stream = await engine.stream_chat(HELLO, n=3, max_tokens=200, seed=1, ignore_eos=True)
    await stream.next_batch()
    stream.cancel(1)
    completion = await stream.collect()
    assert [choice.finish_reason for choice in completion.choices] == ["length", "cancelled", "length"]


async def test_a_fork_continues_the_text_of_its_choice(engine: weft.Engine) -> None:
    # As long as it may be, so that it runs when it is forked however slow the machine is.
    stream = await engine.stream_chat(HELLO, seed=1, ignore_eos=True)
    await stream.next_batch()
    assert await stream.fork(0, n=2, at=1, temperature=1.5, max_tokens=40) == [1, 2]
    stream.cancel(0)
    completion = await stream.collect()
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert all(choice.message.content for choice in completion.choices)


@pytest.mark.parametrize(("at", "reasoning", "n_calls"), [("It may", " rain.", 2), ("Let me", "", 2), ('"Os', "", 1)])
async def test_a_fork_is_parsed_on_from_where_its_choice_was(at: str, reasoning: str, n_calls: int) -> None:
    position = TEXT.index(at) + len(at)

    class Forking(PlainStream):
        async def fork(self, index: int, **_: Json) -> list[int]:
            return [1]

        def forked_at(self, index: int) -> tuple[int, int] | None:
            return (0, position) if index == 1 else None

        def fork_boundary(self, index: int) -> tuple[str, int]:
            return "", 0

    tokens = [token(0, piece, nth) for nth, piece in enumerate(TEXT[:position], 1)]
    rest = [token(1, piece, nth) for nth, piece in enumerate(TEXT[position:], 1)]
    steps: list[Any] = [tokens, [*rest, finished(1)], [finished(0, reason="cancelled")]]
    stream = weft.ChatStream(Forking(steps), 1, FORM, lambda _: "")  # type: ignore[arg-type]
    await stream.next_batch()
    [fork] = await stream.fork(0)
    _, choice = (await stream.collect()).choices
    assert (fork, choice.finish_reason) == (1, "tool_calls")
    assert choice.message.reasoning_content == reasoning
    assert parsed_calls(choice.message) == CALLS[-n_calls:]


async def test_a_stream_that_is_dropped_frees_its_slots(engine: weft.Engine) -> None:
    stream: weft.ChatStream | None = await engine.stream_chat(HELLO, n=2, max_tokens=10_000, ignore_eos=True)
    assert stream is not None
    await stream.next_batch()
    gc.disable()
    try:
        stream = None
        await wait_until(lambda: not any(slot.is_processing for slot in engine.stats().slots))
    finally:
        gc.enable()


async def test_a_consumer_that_is_cancelled_frees_the_slots(engine: weft.Engine) -> None:
    async def read() -> None:
        async for _ in await engine.stream_chat(HELLO, max_tokens=10_000, ignore_eos=True):
            pass

    reading = asyncio.create_task(read())
    await wait_until(lambda: any(slot.is_processing for slot in engine.stats().slots))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    del reading
    await wait_until(lambda: not any(slot.is_processing for slot in engine.stats().slots))


async def test_a_closed_stream_ends(engine: weft.Engine) -> None:
    stream = await engine.stream_chat(HELLO, max_tokens=10_000, ignore_eos=True)
    await stream.next_batch()
    await stream.aclose()
    assert [delta async for delta in stream] == []


async def test_progress_and_prompt_logprobs_are_deltas(engine: weft.Engine) -> None:
    stream = await engine.stream_chat(HELLO, max_tokens=2, report_progress=True, prompt_logprobs=0, logprobs=1)
    kinds = {type(delta) for delta in [delta async for delta in stream]}
    assert {weft.Progress, weft.PromptLogprobs, weft.ContentDelta, weft.ChoiceFinished} >= kinds
    assert {weft.Progress, weft.PromptLogprobs} <= kinds
    completion = await stream.collect()
    assert len(completion.prompt_logprobs) == completion.n_prompt
    assert len(completion.choices[0].logprobs) == len(completion.choices[0].token_ids)


async def test_invalid_options_raise_when_the_stream_is_created(engine: weft.Engine) -> None:
    with pytest.raises(weft.InvalidRequestError, match="n is 0"):
        await engine.stream_chat(HELLO, n=0)
    with pytest.raises(weft.InvalidRequestError, match="grammar cannot be combined with tools"):
        await engine.stream_chat(HELLO, tools=WEATHER, grammar='root ::= "a"')
    unknown: Any = {"max_token": 2}
    with pytest.raises(TypeError, match="max_token"):
        await engine.stream_chat(HELLO, **unknown)


def test_options_of_a_chat_are_the_fields_of_its_request() -> None:
    aliases = {"thinking", "thinking_budget_tokens", "functions", "function_call"}
    fields = {field.name for field in msgspec.structs.fields(ChatRequest)} - aliases - {"messages"}
    assert get_type_hints(weft.TemplateOptions).keys() == fields | {"chat_template"}
    assert get_type_hints(weft.ChatOptions) == get_type_hints(weft.TemplateOptions) | get_type_hints(weft.RequestOptions)
