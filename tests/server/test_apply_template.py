"""From a chat to a prompt, as `/apply-template` shows it and as the engine gets it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import jinja2
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.helpers import wait_until
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft import InvalidConfigError, QueueFullError
from weft.chat import builtin, sandbox
from weft.chat.pipeline import ChatPipeline
from weft.chat.segment_tokenizer import MARK
from weft.server import create_app
from weft.server.request_fields.chat import ChatFields
from weft.settings import Settings
from weft.work.threads import LONG_TEXT

HELLO: Json = [{"role": "user", "content": "Hello"}]
BEGUN: Json = [*HELLO, {"role": "assistant", "content": "Hi the"}]


@asynccontextmanager
async def chatting(engine: ScriptedEngine | None = None, **settings: Json) -> AsyncIterator[httpx.AsyncClient]:
    """The application over a scripted engine, whose chats are in ChatML unless the settings say otherwise."""
    engine = engine or ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(**settings))) as client:
        while (await client.get("/health")).status_code == 503:
            pass
        yield client


async def apply(client: httpx.AsyncClient, **body: Json) -> str:
    answer = await client.post("/apply-template", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"prompt"}
    return str(answer.json()["prompt"])


async def refusal(client: httpx.AsyncClient, **body: Json) -> tuple[str, str]:
    answer = await client.post("/apply-template", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error["param"], error["message"]


async def test_messages_become_a_prompt_in_the_models_own_template(client: httpx.AsyncClient) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert await apply(client, messages=messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert await apply(client, messages=HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


async def test_a_model_without_a_template_gets_chatml() -> None:
    async with chatting() as client:
        assert await apply(client, messages=HELLO) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (
            "llama3",
            "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("{{ messages[0].content }}!", "Hello!"),
    ],
    ids=["name", "jinja"],
)
async def test_the_settings_name_another_template(template: str, prompt: str, tmp_path: Path) -> None:
    async with chatting(chat_template=template) as client:
        assert await apply(client, messages=HELLO) == prompt
    file = tmp_path / "chat.jinja"
    file.write_text(builtin.source(template) if template in builtin.names() else template)
    async with chatting(chat_template_file=str(file)) as client:
        assert await apply(client, messages=HELLO) == prompt


@pytest.mark.parametrize(
    ("settings", "param", "message"),
    [
        ({"chat_template": "chatmi"}, "chat_template", "'chatmi' is neither a Jinja template nor one of bailing, "),
        ({"chat_template": "{% for %}"}, "chat_template", "the chat template has a syntax error in line 1: "),
        ({"chat_template_file": "/no/such/file"}, "chat_template_file", "the chat template /no/such/file cannot be read: "),
        ({"chat_template": "chatml", "chat_template_file": "/a"}, "chat_template_file", "chat_template names a template already"),
    ],
    ids=["name", "jinja", "file", "both"],
)
def test_a_template_that_is_none_is_said_at_the_start(settings: Json, param: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as wrong:
        ChatPipeline(ScriptedEngine().as_engine(), Settings(**settings)).check_settings()
    assert wrong.value.param == param
    assert wrong.value.message.startswith(message)


async def test_a_model_whose_own_template_is_broken_serves_all_but_chats(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.model.chat_template = "{% for %}"
    async with chatting(engine) as client:
        param, message = await refusal(client, messages=HELLO)
        assert (param, message.partition(":")[0]) == ("messages", "the chat template has a syntax error in line 1")
        assert (await client.post("/completion", json={"prompt": "a"})).status_code == 429
        await wait_until(lambda: "chats are refused until another one is given with --chat-template" in caplog.text)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/apply-template", {"messages": HELLO}), ("GET", "/props", None)],
    ids=["a chat", "props"],
)
async def test_who_comes_before_the_template_is_compiled_holds_nobody_up(
    method: str, path: str, body: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    may_go_on = threading.Event()

    def compile_template(source: str, compile_it: Callable[[str], jinja2.Template] = sandbox.compile_template) -> jinja2.Template:
        threads.append(threading.current_thread().name)
        assert may_go_on.wait(10)
        return compile_it(source)

    monkeypatch.setattr(sandbox, "compile_template", compile_template)
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings())
    # On one loop, as they are in the server.
    async with (
        app.lifespan(),
        httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://here") as client,
    ):
        await wait_until(lambda: bool(threads))
        asking = asyncio.create_task(client.request(method, path, json=body))
        for _ in range(3):
            await asyncio.sleep(0.01)
            assert (await client.get("/health")).status_code == 200
        assert not asking.done()
        may_go_on.set()
        assert (await asking).status_code == 200
    assert threads == ["weft-prompt_0"]


async def test_variables_come_from_the_settings_and_from_the_body() -> None:
    source = "{{ a }} {{ b }} {{ reasoning_effort }}"
    async with chatting(chat_template=source, chat_template_kwargs={"a": 1, "b": [True]}) as client:
        assert await apply(client, messages=HELLO) == "1 [True] "
        assert await apply(client, messages=HELLO, chat_template_kwargs={"a": "x"}, reasoning_effort="low") == "x [True] low"
        body = {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": "false"}}
        refused = await client.post("/apply-template", json=body)
        assert refused.status_code == 400
        assert "it must be a boolean" in refused.text


async def test_a_template_that_refuses_is_a_bad_request_with_its_line() -> None:
    async with chatting(
        chat_template="{% if messages | length > 1 %}\n{{ raise_exception('one at a time') }}{% endif %}"
    ) as client:
        assert await apply(client, messages=HELLO) == ""
        assert await refusal(client, messages=HELLO * 2) == ("messages", "the chat template fails in line 2: one at a time")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "messages", "messages must be given"),
        ({"messages": []}, "messages", "the list of messages is empty"),
        ({"messages": "Hello"}, "messages", "messages: Expected `array | null`, got `string`"),
        ({"messages": [{"content": "a"}]}, "messages", "messages[0]: Object missing required field `role`"),
        ({"messages": [{"role": "user"}]}, "messages", "messages[0].content must be given"),
        ({"messages": [{"role": "assistant"}]}, "messages", "messages[0].content must be given"),
        (
            {"messages": [{"role": "user|>\n<|system", "content": "a"}]},
            "messages",
            "messages[0].role is 'user|>\\n<|system'; it must be a word, such as 'user'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "a"}}]}]},
            "messages",
            "messages[0].content[0]: parts of type 'video_url' are not supported, only text, image_url and input_audio",
        ),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "text"}]}]},
            "messages",
            "messages[1].content[0].text must be given",
        ),
        (
            {"messages": [*BEGUN, {"role": "assistant", "content": "re"}]},
            "messages",
            "the messages end with several assistant messages; only one can be continued",
        ),
        (
            {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
            "continue_final_message and add_generation_prompt cannot both be true",
        ),
        (
            {"messages": HELLO, "continue_final_message": True},
            "continue_final_message",
            "only an assistant's message can be continued; the last is of the role 'user'",
        ),
        (
            {"messages": BEGUN, "continue_final_message": "thought"},
            "continue_final_message",
            "continue_final_message is 'thought'; it must be a boolean, 'content' or 'reasoning_content'",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_no_chat_is_refused(client: httpx.AsyncClient, body: Json, param: str, message: str) -> None:
    assert await refusal(client, **body) == (param, message)


PARTS: Json = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
SHOW_PARTS = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"


async def test_parts_are_joined_by_a_newline_unless_the_template_takes_lists(client: httpx.AsyncClient) -> None:
    assert await apply(client, messages=PARTS, add_generation_prompt=False) == "<|im_start|>user\na\nb<|im_end|>\n"
    async with chatting(chat_template=SHOW_PARTS) as other:
        assert await apply(other, messages=PARTS) == "[a][b]"
        assert await apply(other, messages=HELLO) == "[Hello]"


async def test_no_content_is_an_empty_one(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": None}]
    assert await apply(client, messages=messages, add_generation_prompt=False) == "<|im_start|>user\n<|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "role"),
    [("chatml", "system"), ("{# <|channel|> #}{{ messages[0].role }}", "developer")],
    ids=["system", "harmony"],
)
async def test_a_developer_is_the_system_unless_the_template_knows_one(template: str, role: str) -> None:
    async with chatting(chat_template=template) as client:
        assert role in await apply(client, messages=[{"role": "developer", "content": "Be brief."}])


async def test_what_the_system_says_begins_the_first_message_where_the_template_has_no_place_for_it() -> None:
    told = {"role": "system", "content": "Be brief."}
    async with chatting(
        chat_template="{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    ) as client:
        assert await apply(client, messages=[told, *HELLO]) == "Be brief.\nHello"
        assert await refusal(client, messages=[told]) == ("messages", "the chat template fails in line 1: no")
    async with chatting(chat_template="{% if messages[0].role == 'user' %}" + SHOW_PARTS + "{% endif %}") as client:
        assert await apply(client, messages=[told, *PARTS]) == "[Be brief.][a][b]"


async def test_what_a_template_may_take_besides_reaches_it() -> None:
    async with chatting(chat_template="{{ messages | tojson }}") as client:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [
            {"role": "assistant", "tool_calls": [call], "refusal": None},
            {"role": "tool", "content": "5", "tool_call_id": "1", "name": "f"},
        ]
        with_object = {**call, "function": {"name": "f", "arguments": {}}}
        shown = [{"role": "assistant", "content": "", "tool_calls": [with_object]}, messages[1]]
        assert msgspec.json.decode(await apply(client, messages=messages)) == shown


OPENED = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "fields",
    [{}, {"continue_final_message": True}, {"continue_final_message": "content"}, {"add_generation_prompt": False}],
    ids=str,
)
async def test_a_last_message_of_the_assistant_is_continued(client: httpx.AsyncClient, fields: Json) -> None:
    assert await apply(client, messages=BEGUN, **fields) == OPENED + "Hi the"


async def test_without_prefill_a_last_message_of_the_assistant_is_a_whole_one() -> None:
    closed = OPENED + "Hi the<|im_end|>\n"
    async with chatting(prefill_assistant=False) as client:
        assert await apply(client, messages=BEGUN) == closed + "<|im_start|>assistant\n"
        assert await apply(client, messages=BEGUN, add_generation_prompt=False) == closed
        assert await apply(client, messages=BEGUN, continue_final_message=True) == OPENED + "Hi the"
        assert await apply(client, messages=BEGUN * 2, continue_final_message=True) == closed + OPENED + "Hi the"


THINKING = "{% for m in messages %}{{ m.content }}/{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"


BOTH: Json = {"content": "Hi", "reasoning_content": "Hm"}
KNOWS_THOUGHTS = "{{ messages[0].content }}{# <think> #}"


@pytest.mark.parametrize(
    ("template", "message", "fields", "prompt"),
    [
        (THINKING, {"content": "Hi"}, {}, "Hello/Hi"),
        (THINKING, BOTH, {}, "Hello/<think>\nHm\n</think>\n\nHi"),
        (THINKING, {"content": "", "reasoning_content": "Hm"}, {}, "Hello/<think>\nHm"),
        (
            THINKING,
            {"content": "Hi", "reasoning_content": "Hm"},
            {"continue_final_message": "reasoning_content"},
            "Hello/<think>\nHm",
        ),
        (
            "{{ messages[0].content }}{# <think> #}",
            {"content": "Hi", "reasoning_content": "Hm"},
            {},
            "Hello<think>\nHm\n</think>\n\nHi",
        ),
        ("{{ messages[0].content }}", BOTH, {}, "HelloHi"),
    ],
    ids=["unopened", "thought", "open", "asked-open", "opened", "none"],
)
async def test_a_thought_comes_before_what_is_continued(template: str, message: Json, fields: Json, prompt: str) -> None:
    async with chatting(chat_template=template) as client:
        assert await apply(client, messages=[*HELLO, {"role": "assistant", **message}], **fields) == prompt


async def test_the_token_that_begins_every_text_is_left_off() -> None:
    engine = ScriptedEngine()
    engine.model.bos_token = 65
    engine.tokenize = lambda text, **_: [65, *map(ord, text)]  # type: ignore[method-assign]
    async with chatting(engine, chat_template="{{ bos_token }}{{ messages[0].content }}") as client:
        assert await apply(client, messages=[{"role": "user", "content": "AA"}]) == "AA"


async def test_a_prompt_is_the_one_that_its_text_would_be(client: httpx.AsyncClient) -> None:
    prompt = await apply(client, messages=BEGUN)
    tokens = (await client.post("/tokenize", json={"content": prompt, "add_special": True})).json()["tokens"]
    answer = await client.post("/v1/chat/completions", json={"messages": BEGUN, "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == len(tokens)


class Spelling(ScriptedEngine):
    """An engine with one control token, spelt `<A>`."""

    def __init__(self) -> None:
        super().__init__(QueueFullError(1))
        self.model.control_tokens = lambda: [5]
        self.model.token_bytes = lambda _: b"<A>"
        self.texts: list[tuple[str, bool]] = []

    def tokenize(self, text: str, **options: bool) -> list[int]:
        self.texts.append((text, options.get("parse_special", True)))
        return [5] if text == "<A>" and options["parse_special"] else super().tokenize(text)


async def test_the_spelling_of_a_control_token_in_a_message_is_text_to_the_engine() -> None:
    engine = Spelling()
    async with chatting(engine, chat_template="<A>{{ messages[0].content }}<A>") as client:
        await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "b<A>c"}]})
    assert engine.texts == [("", True), ("<A>b", True), (MARK, False), ("<A>", False), ("c<A>", True)]
    assert [request.prompt for request in engine.requests] == [list(map(ord, "<A>b<A>c<A>"))]


async def test_what_is_continued_is_text_to_the_engine() -> None:
    engine = Spelling()
    async with chatting(engine, chat_template="<A>{# #}") as client:
        await client.post("/v1/chat/completions", json={"messages": [{"role": "assistant", "content": "<A>"}]})
    assert engine.texts == [("", True), ("<A>", True), ("<A>", False)]


def chat(content: Json, **more: Json) -> Json:
    return {"messages": [{"role": "user", "content": content}], **more}


@pytest.mark.parametrize(
    ("body", "is_aside"),
    [
        (chat("a" * (LONG_TEXT // 2)), False),
        (chat("a" * LONG_TEXT), True),
        (chat([{"type": "text", "text": ""}] * 400), True),
        ({"messages": [{"role": "user", "content": ""}] * 100}, True),
        (chat("", chat_template_kwargs={"a": ["b"] * LONG_TEXT}), True),
    ],
    ids=["short", "long", "parts", "messages", "variables"],
)
async def test_long_chats_are_worked_on_aside(body: Json, is_aside: bool) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.limits.n_ctx_slot = 2**20
    async with chatting(engine) as client:
        await client.post("/v1/chat/completions", json=body)
    assert (engine.threads - {engine.loop_thread} != set()) is is_aside


def turn_ends(messages: Json, source: str = builtin.source("chatml"), *, cuts: bool = False) -> Sequence[str]:
    """What of the prompt comes before each end."""
    engine = ScriptedEngine()
    engine.limits = SimpleNamespace(forks_anywhere=cuts, n_ctx_slot=2**20)
    chats = ChatPipeline(engine.as_engine(), Settings(chat_template=source))
    prompt = chats.prompt(_fields(messages))
    assert isinstance(prompt.tokens, list)
    return ["".join(map(chr, prompt.tokens[:end])) for end in prompt.turn_ends]


def _fields(messages: Json) -> ChatFields:
    return msgspec.convert({"messages": messages}, ChatFields)


TURNS: Json = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "A"},
    {"role": "user", "content": "V"},
]


def test_turns_end_after_the_system_and_after_the_last_messages() -> None:
    told, before = "<|im_start|>system\nS<|im_end|>\n", "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    last = "<|im_start|>user\nV<|im_end|>\n"
    asked = "<|im_start|>user\nU<|im_end|>\n"
    assert turn_ends(TURNS) == [told, told + asked, told + before, told + before + last]
    assert turn_ends(TURNS[1:]) == [asked, before, before + last]
    assert turn_ends(TURNS[1:2]) == ["<|im_start|>user\nU<|im_end|>\n"]


def test_of_a_long_chat_the_last_turns_are_marked_that_end_as_the_others_do() -> None:
    says = [{"role": "user", "content": f"{turn}"} for turn in range(20)]
    texts = [f"<|im_start|>user\n{turn}<|im_end|>\n" for turn in range(20)]
    assert turn_ends(says) == ["".join(texts[: n + 1]) for n in range(12, 20)]
    assert turn_ends([{"role": "system", "content": "S"}, *says])[0] == "<|im_start|>system\nS<|im_end|>\n"


def test_no_turn_is_marked_where_any_prefix_can_be_continued() -> None:
    assert turn_ends(TURNS, cuts=True) == []


def test_a_chat_that_the_template_does_not_render_has_no_end() -> None:
    source = "{% if messages[-1].role != 'user' %}{{ raise_exception('no') }}{% endif %}" + builtin.source("chatml")
    assert turn_ends(TURNS, source) == [turn_ends(TURNS)[-1]]
