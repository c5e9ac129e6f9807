"""Chats from Python: messages, and what else Python users have in hand."""

import dataclasses
import json
import threading
from typing import Any

import msgspec
import pydantic
import pytest

import weft
from tests.server.matchers import Json
from weft.chat.conversation import ChatMessage
from weft.chat.pipeline import ChatPipeline
from weft.chat.request import Templates
from weft.work.threads import Threads

HELLO: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello <|im_end|>"}]
CHATML = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello <|im_end|><|im_end|>\n<|im_start|>assistant\n"


async def test_messages_become_a_prompt_by_a_template(engine: weft.Engine) -> None:
    assert await engine.apply_template(HELLO, chat_template="chatml") == CHATML
    without = await engine.apply_template(HELLO, chat_template="chatml", add_generation_prompt=False)
    assert without == CHATML.removesuffix("<|im_start|>assistant\n")


async def test_messages_may_be_what_the_server_reads_them_as(engine: weft.Engine) -> None:
    messages = [ChatMessage(role=one["role"], content=one["content"]) for one in HELLO]
    assert await engine.apply_template(messages, chat_template="chatml") == CHATML


async def test_a_template_sees_its_variables(engine: weft.Engine) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}{{ mood }}"
    assert (
        await engine.apply_template(HELLO[1:], chat_template=template, chat_template_kwargs={"mood": "!"}) == "Hello <|im_end|>!"
    )


async def test_a_chat_is_what_its_request_completes(engine: weft.Engine) -> None:
    completion = await engine.chat(HELLO, max_tokens=8, temperature=0, n=2)
    request, _ = await Templates(engine, Threads()).request(HELLO, {"max_tokens": 8, "temperature": 0, "n": 2})
    generated = await weft.Completion.collect(engine.stream(request))
    assert [choice.message.content for choice in completion.choices] == list(generated.texts)
    assert [choice.token_ids for choice in completion.choices] == [choice.token_ids for choice in generated.choices]
    assert len(completion.choices) == 2
    assert completion.n_prompt == len(request.prompt)


async def test_a_long_chat_is_read_beside_the_event_loop(engine: weft.Engine) -> None:
    said = "word " * 2_000
    assert said in await engine.apply_template([{"role": "user", "content": said}], chat_template="chatml")


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": ""}] * 1_000}], {}),
        (HELLO * 65, {}),
        (HELLO, {"chat_template_kwargs": {"numbers": list(range(1_000))}}),
        ([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}] * 10}, *HELLO], {}),
    ],
    ids=["parts", "messages", "variables", "calls"],
)
async def test_whatever_may_take_long_is_read_beside_the_event_loop(
    engine: weft.Engine, messages: Json, options: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    read = ChatPipeline.text

    def noted(self: ChatPipeline, chat: Json) -> str:
        threads.add(threading.get_ident())
        return read(self, chat)

    monkeypatch.setattr(ChatPipeline, "text", noted)
    await engine.apply_template(messages, chat_template="chatml", **options)
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


@pytest.mark.parametrize(
    ("messages", "options", "param", "said"),
    [
        ([], {}, "messages", "the list of messages is empty"),
        ([{"content": "Hello"}], {}, "messages", "missing required field `role`"),
        ("Hello", {}, "messages", "Expected `array`"),
        ([{"role": "user", "content": 5}], {}, "messages", "content"),
        (HELLO, {"chat_template": "{% for %}"}, "chat_template", "the chat template has a syntax error in line 1"),
        (HELLO, {"chat_template": "no-such-name"}, "chat_template", "is neither a Jinja template nor one of"),
        (HELLO, {"continue_final_message": True}, "continue_final_message", "only an assistant's message"),
    ],
)
async def test_what_is_wrong_with_a_chat_is_said(
    engine: weft.Engine, messages: Json, options: Json, param: str, said: str
) -> None:
    with pytest.raises(weft.InvalidRequestError) as raised:
        await engine.apply_template(messages, **options)
    assert raised.value.param == param
    assert said in raised.value.message


async def test_an_unknown_option_of_a_chat_is_a_type_error(engine: weft.Engine) -> None:
    options: Any = {"tempalte": "chatml"}
    with pytest.raises(TypeError, match="unknown option 'tempalte'; the options are chat_template, "):
        await engine.apply_template(HELLO, **options)


class Interrupted(str):
    """A template at whose comparison another thread asks for another one."""

    __slots__ = ("other", "templates")
    __hash__ = str.__hash__
    other: tuple[str | None, ChatPipeline] | None
    templates: Templates

    def __ne__(self, other: object) -> bool:
        self.templates._last = self.other
        return str.__ne__(self, other)


async def test_a_template_that_another_thread_asks_for_is_not_taken_for_this_one(engine: weft.Engine) -> None:
    templates = Templates(engine, Threads())
    template = Interrupted("{{ 1 }}")
    template.templates = templates
    templates._pipeline("chatml")
    template.other = templates._last
    for _ in range(2):
        assert templates._pipeline(template).source == template


class Answer(msgspec.Struct):
    yes: bool


@dataclasses.dataclass
class AnswerToo:
    yes: bool


class Model(pydantic.BaseModel):
    yes: bool


@pytest.mark.parametrize("schema", [Answer, AnswerToo, Model, Model.model_json_schema(), json.dumps(Model.model_json_schema())])
async def test_a_schema_may_be_a_type_or_an_object_or_text(engine: weft.Engine, schema: Json) -> None:
    answer = await engine.complete("Is it so?", json_schema=schema, max_tokens=64, seed=1)
    assert set(json.loads(answer.text)) == {"yes"}


async def test_what_is_shorter_to_write_means_the_same(engine: weft.Engine) -> None:
    token = engine.tokenize(" the", add_special=False)[0]
    short: Any = {"stop": ".", "logit_bias": {token: -1.5}, "json_schema": None}
    assert weft.Request(prompt="a", **short) == weft.Request(prompt="a", stop=(".",), logit_bias=((token, -1.5),))
    answer = await engine.complete("Once upon a time,", stop=".", max_tokens=64, temperature=0)
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", ".")


async def test_a_tool_that_must_be_called_is_called(engine: weft.Engine) -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "count", "parameters": parameters}}]
    completion = await engine.chat(
        HELLO, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=128, n=2, seed=1
    )
    for choice in completion.choices:
        [call] = choice.message.tool_calls
        assert (call.name, choice.message.content, choice.message.reasoning_content) == ("count", "", "")
        assert choice.finish_reason == "tool_calls"
        assert isinstance(json.loads(call.arguments)["n"], int)
        message = choice.message.to_dict()
        result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        assert call.arguments in await engine.apply_template([*HELLO, message, result], tools=tools)
    assert completion.message == completion.choices[0].message


async def test_a_message_without_tools_is_the_text(engine: weft.Engine) -> None:
    [choice] = (await engine.chat(HELLO, max_tokens=16, seed=1)).choices
    assert choice.message.content
    assert choice.message.to_dict() == {"role": "assistant", "content": choice.message.content}
