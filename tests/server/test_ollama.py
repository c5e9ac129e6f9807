"""`/api/generate`, `/api/chat` and their like: what a body becomes, and what is told of the answer."""

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import msgspec
import ollama
import pytest
from litestar.testing import AsyncTestClient
from pydantic import BaseModel

import weft
from tests.server.conftest import answers
from tests.server.matchers import COUNT, LOGPROB, SOME_TEXT, Json, matching
from tests.server.said import answers_are_read
from tests.server.scripted import FullEngine, ScriptedEngine, finished, token
from tests.server.serving import serving
from weft import InvalidRequestError
from weft.chat.answer.parts import CallArguments, CallStart, Content, Part, Reasoning
from weft.chat.conversation import ChatMessage, ContentPart, ImageUrl
from weft.server import create_app
from weft.server.ollama import translate
from weft.server.ollama.schemas import ChatBody, Options
from weft.server.request_fields.unsupported import unsupported_fields
from weft.settings import Settings

NOW = matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
ABOUT: Json = {"model": "storyteller", "created_at": NOW}
ENDED: Json = {
    **ABOUT,
    "done": True,
    "done_reason": "length",
    "total_duration": COUNT,
    "load_duration": COUNT,
    "prompt_eval_count": COUNT,
    "prompt_eval_duration": COUNT,
    "eval_count": 6,
    "eval_duration": COUNT,
}
GREEDY: Json = {"options": {"num_predict": 6, "temperature": 0}}
PROMPT = "Tell me a story about a dog."
GENERATE: Json = {"prompt": PROMPT, **GREEDY}
CHAT: Json = {"messages": [{"role": "user", "content": PROMPT}], **GREEDY}


async def whole(client: httpx.AsyncClient, path: str, body: Json) -> Json:
    answer = await client.post(path, json=body | {"stream": False})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def lines(client: httpx.AsyncClient, path: str, body: Json) -> list[Json]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    kind: type[BaseModel] = ollama.ChatResponse if path == "/api/chat" else ollama.GenerateResponse
    for line in answer.text.splitlines():
        kind.model_validate_json(line)
    return [json.loads(line) for line in answer.text.splitlines()]


@asynccontextmanager
async def scripted(*steps: Sequence[Any]) -> AsyncIterator[httpx.AsyncClient]:
    """A server whose next answer has these steps."""
    async with serving([*steps, []], alias="scripted") as client:
        yield client


async def test_generate_whole(client: httpx.AsyncClient) -> None:
    answer = await whole(client, "/api/generate", GENERATE)
    assert answer == {**ENDED, "response": SOME_TEXT, "context": answer["context"]}
    assert len(answer["context"]) == answer["prompt_eval_count"] + 6


async def test_generate_streams_where_nothing_is_said(client: httpx.AsyncClient) -> None:
    *told, last = await lines(client, "/api/generate", GENERATE)
    assert told == [{**ABOUT, "done": False, "response": SOME_TEXT}] * 6
    one = await whole(client, "/api/generate", GENERATE)
    assert last == {**ENDED, "response": "", "context": one["context"]}
    assert "".join(line["response"] for line in told) == one["response"]


async def test_chat_whole_and_streamed(client: httpx.AsyncClient) -> None:
    answer = await whole(client, "/api/chat", CHAT)
    assert answer == {**ENDED, "message": {"role": "assistant", "content": SOME_TEXT}}
    *told, last = await lines(client, "/api/chat", CHAT)
    assert told == [{**ABOUT, "done": False, "message": {"role": "assistant", "content": SOME_TEXT}}] * 6
    assert "".join(line["message"]["content"] for line in told) == answer["message"]["content"]
    assert last == {**ENDED, "message": {"role": "assistant", "content": ""}}
    generated = await whole(client, "/api/generate", GENERATE)
    assert generated["response"] == answer["message"]["content"], "a prompt is the one message of a chat"


async def test_a_raw_prompt_is_all_that_the_model_sees(client: httpx.AsyncClient) -> None:
    answer = await whole(client, "/api/generate", GENERATE | {"raw": True})
    same = await client.post("/completion", json={"prompt": PROMPT, "n_predict": 6, "temperature": 0})
    assert answer["response"] == same.json()["content"]
    assert "context" not in answer


async def test_a_gap_is_filled(client: httpx.AsyncClient) -> None:
    answer = await whole(client, "/api/generate", {"prompt": "Once ", "suffix": " time.", **GREEDY})
    same = await client.post(
        "/infill", json={"input_prefix": "Once ", "input_suffix": " time.", "n_predict": 6, "temperature": 0}
    )
    assert answer["response"] == same.json()["content"]


async def test_a_context_goes_on_from_an_earlier_answer(client: httpx.AsyncClient) -> None:
    first = await whole(client, "/api/generate", GENERATE)
    second = await whole(client, "/api/generate", {"prompt": "And then?", "context": first["context"], **GREEDY})
    alone = await whole(client, "/api/generate", {"prompt": "And then?", **GREEDY})
    assert second["context"][: len(first["context"])] == first["context"]
    bos = 1
    assert second["prompt_eval_count"] == len(first["context"]) + alone["prompt_eval_count"] - bos
    again = {"prompt": "And then?", "context": first["context"], **GREEDY}
    assert (await lines(client, "/api/generate", again))[-1]["context"] == second["context"]


async def test_a_context_that_is_long_is_read_as_tokens_and_refused_where_it_does_not_fit(client: httpx.AsyncClient) -> None:
    context = [300] * 900
    body = {"context": context, "prompt": "a", "unknown": "x" * 70_000, **GREEDY}
    assert (await whole(client, "/api/generate", body))["context"][:900] == context
    refused = await client.post("/api/generate", json={"context": [300] * 40_000, "prompt": "a"})
    assert (refused.status_code, refused.json()) == (400, {"error": matching("request .* exceeds the available context size .*")})


async def test_what_the_system_says(client: httpx.AsyncClient) -> None:
    answer = await whole(client, "/api/generate", GENERATE | {"system": "You are a pirate."})
    system = [{"role": "system", "content": "You are a pirate."}]
    same = await whole(client, "/api/chat", CHAT | {"messages": [*system, *CHAT["messages"]]})
    assert answer["prompt_eval_count"] == same["prompt_eval_count"]
    assert answer["response"] == same["message"]["content"]


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_log_probabilities(client: httpx.AsyncClient, path: str) -> None:
    body = (GENERATE if path == "/api/generate" else CHAT) | {"logprobs": True}
    told = (await whole(client, path, body))["logprobs"]
    assert told == [
        {"id": COUNT, "token": SOME_TEXT, "bytes": list(one["token"].encode()), "logprob": LOGPROB, "top_logprobs": []}
        for one in told
    ]
    assert len(told) == 6
    streamed = await lines(client, path, body)
    assert [one for line in streamed for one in line.get("logprobs", [])] == told
    likely = (await whole(client, path, body | {"top_logprobs": 2}))["logprobs"]
    assert [len(one["top_logprobs"]) for one in likely] == [2] * 6
    assert "logprobs" not in await whole(client, path, body | {"logprobs": False, "top_logprobs": 2})


@pytest.mark.parametrize("given", ["json", {"type": "object"}, {"enum": ["a"]}], ids=str)
async def test_a_format_holds(client: httpx.AsyncClient, given: Json) -> None:
    options = {"num_predict": 200, "seed": 1}
    text = (await whole(client, "/api/chat", CHAT | {"format": given, "options": options}))["message"]["content"]
    assert text[0] == "{" if given != {"enum": ["a"]} else text == '"a"'


@pytest.mark.parametrize(
    ("reason", "told"), [("end", "stop"), ("stop", "stop"), ("length", "length"), ("context_full", "length")]
)
async def test_why_it_ended(reason: str, told: str) -> None:
    async with scripted([finished(0, "a", reason=reason)]) as client:
        assert (await whole(client, "/api/chat", CHAT))["done_reason"] == told


SCRIPT = [[token(0, text, nth)] for nth, text in enumerate("abcd", 1)]
SAID: dict[str | None, list[Part]] = {
    "a": [Reasoning("Hm. ")],
    "b": [Content("I'll look."), CallStart(0, "call_0", "weather"), CallArguments(0, '{"city":')],
    "c": [CallArguments(0, '"Oslo"}')],
    "d": [CallStart(1, "call_1", "time")],
}
CALLS: Json = [
    {"id": "call_0", "function": {"index": 0, "name": "weather", "arguments": {"city": "Oslo"}}},
    {"id": "call_1", "function": {"index": 1, "name": "time", "arguments": {}}},
]


async def test_thoughts_and_calls_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, SAID)
    async with scripted(*SCRIPT, [finished(0)]) as client:
        answer = await whole(client, "/api/chat", CHAT)
    assert answer["message"] == {"role": "assistant", "content": "I'll look.", "thinking": "Hm. ", "tool_calls": CALLS}
    async with scripted(*SCRIPT, [finished(0)]) as client:
        told = await lines(client, "/api/chat", CHAT)
    assert [line["message"] for line in told] == [
        {"role": "assistant", "content": "", "thinking": "Hm. "},
        {"role": "assistant", "content": "I'll look."},
        {"role": "assistant", "content": "", "tool_calls": [CALLS[0]]},
        {"role": "assistant", "content": "", "tool_calls": [CALLS[1]]},
        {"role": "assistant", "content": ""},
    ]


async def test_a_thought_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_are_read(monkeypatch, {"a": [Reasoning("Hm.")], "b": [Content("Yes.")]})
    async with scripted(*SCRIPT[:2], [finished(0)]) as client:
        answer = await whole(client, "/api/generate", GENERATE)
    assert (answer["thinking"], answer["response"]) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("reason", "content"), [("length", ""), ("context_full", ""), ("stop", '{"name":"weather","arguments":{"city":"Os')]
)
async def test_a_call_that_was_cut_off_has_no_object_of_arguments(
    monkeypatch: pytest.MonkeyPatch, reason: str, content: str
) -> None:
    answers_are_read(monkeypatch, {"a": [CallStart(0, "call_0", "weather"), CallArguments(0, '{"city":"Os')]})
    async with scripted([token(0, "a")], [finished(0, reason=reason)]) as client:
        answer = await whole(client, "/api/chat", CHAT)
    async with scripted([token(0, "a")], [finished(0, reason=reason)]) as client:
        *told, last = await lines(client, "/api/chat", CHAT)
    assert answer["message"] == {"role": "assistant", "content": content}
    assert "".join(line["message"]["content"] for line in told) == content
    assert not any("tool_calls" in line["message"] for line in (*told, last))
    assert answer["done_reason"] == last["done_reason"] == ("stop" if reason == "stop" else "length")


def said(role: str, content: Json, **more: Json) -> ChatMessage:
    return ChatMessage(role=role, content=content, **more)


def call(call_id: str, name: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([{"role": "User", "content": "a"}], [said("user", "a")]),
        (
            [{"role": "user", "content": "a", "images": ["QUJD"]}],
            [said("user", [ContentPart("image_url", image_url=ImageUrl("QUJD")), ContentPart("text", "a")])],
        ),
        (
            [
                {
                    "role": "assistant",
                    "thinking": "Hm.",
                    "tool_calls": [{"function": {"name": name, "arguments": {"a": 1}}} for name in "xyx"],
                },
                {"role": "tool", "content": "1", "tool_name": "y"},
                {"role": "tool", "content": "2"},
                {"role": "tool", "content": "3", "tool_name": "x"},
                {"role": "tool", "content": "4"},
            ],
            [
                said(
                    "assistant",
                    "",
                    reasoning_content="Hm.",
                    tool_calls=[call("call_0", "x"), call("call_1", "y"), call("call_2", "x")],
                ),
                said("tool", "1", name="y", tool_call_id="call_1"),
                said("tool", "2", name="x", tool_call_id="call_0"),
                said("tool", "3", name="x", tool_call_id="call_2"),
                said("tool", "4"),
            ],
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": "b",
                    "tool_calls": [{"id": "i", "function": {"name": "x", "arguments": {"a": 1}}}],
                },
                {"role": "tool", "content": "1", "tool_call_id": "i"},
            ],
            [said("assistant", "b", tool_calls=[call("i", "x")]), said("tool", "1", name="x", tool_call_id="i")],
        ),
    ],
    ids=["a text", "a picture", "results in any order", "results by id"],
)
def test_messages_become_those_of_every_chat(given: Json, messages: list[ChatMessage]) -> None:
    body = msgspec.convert({"messages": given}, ChatBody)
    assert translate.chat(body, 1024).fields.messages == messages


OPTIONS: Json = {
    "num_keep": 3,
    "seed": 5,
    "num_predict": 7,
    "top_k": 11,
    "top_p": 0.5,
    "min_p": 0.25,
    "tfs_z": 0.75,
    "typical_p": 0.125,
    "repeat_last_n": 13,
    "temperature": 0.375,
    "repeat_penalty": 1.5,
    "presence_penalty": 0.625,
    "frequency_penalty": 0.875,
    "mirostat": 2,
    "mirostat_tau": 3.5,
    "mirostat_eta": 0.0625,
    "penalize_newline": False,
    "stop": ["x"],
    "num_batch": 17,
    "draft_num_predict": 9,
}
RENAMED = {
    "num_keep": "n_keep",
    "num_predict": "max_tokens",
    "penalize_newline": "penalize_nl",
    "num_batch": "n_batch",
    "draft_num_predict": "max_draft",
}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/chat", CHAT), ("/api/generate", GENERATE), ("/api/generate", GENERATE | {"raw": True})],
    ids=["chat", "generate", "raw"],
)
async def test_each_option_reaches_the_engine(path: str, body: Json) -> None:
    engine = FullEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(n=3))
    await app.service.lifecycle.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        answer = await client.post(path, json=body | {"options": OPTIONS, "shift": True})
    assert (answer.status_code, answer.json()) == (429, {"error": SOME_TEXT})
    assert answer.headers["retry-after"] == "1"
    request = engine.requests[0]
    told = {name: getattr(request, RENAMED.get(name, name)) for name in OPTIONS}
    assert told == OPTIONS
    assert (request.n, request.context_shift) == (1, True)
    await app.service.stop()


def test_no_option_is_left_out() -> None:
    known = set(msgspec.json.schema(type(msgspec.convert({"options": {}}, ChatBody).options))["$defs"]["Options"]["properties"])
    refused = {name for _, name, _ in unsupported_fields(Options)} | {"num_ctx"}
    assert known == refused | set(OPTIONS)
    assert {name for name in ollama.Options.model_fields if name not in known} == set()


REFUSED = [
    ({"options": {"num_ctx": 10**6}}, "options.num_ctx"),
    ({"options": {"num_gpu": 3}}, "options.num_gpu"),
    ({"options": {"num_thread": 3}}, "options.num_thread"),
    ({"options": {"use_mmap": False}}, "options.use_mmap"),
    ({"options": {"num_batch": 0}}, "options.num_batch"),
    ({"options": {"num_predict": -3}}, "options.num_predict is -3; it must be -2 or more"),
    ({"options": {"num_keep": -3}}, "options.num_keep"),
    ({"options": {"top_k": "a"}}, "options.top_k"),
    ({"options": {"mirostat": 7}}, "options.mirostat"),
    ({"format": "xml"}, "format"),
    ({"format": 3}, "format"),
    ({"format": {"type": "nonsense"}}, "format"),
    ({"think": "much"}, "think"),
    ({"truncate": True}, "truncate"),
    ({"think": True}, '"storyteller" does not support thinking'),
    ({"think": "high"}, '"storyteller" does not support thinking'),
    ({"_debug_render_only": True}, "_debug_render_only"),
    ({"keep_alive": "5 minutes"}, "keep_alive"),
    ({"keep_alive": "5"}, "keep_alive"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
]


@pytest.mark.parametrize(("body", "named"), REFUSED, ids=str)
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_what_is_not_there_is_refused_by_name(client: httpx.AsyncClient, path: str, body: Json, named: str) -> None:
    answer = await client.post(path, json=(GENERATE if path == "/api/generate" else CHAT) | body)
    assert answer.status_code == 400, answer.text
    assert answer.json() == {"error": SOME_TEXT}
    assert named in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"width": 512}, "width"),
        ({"steps": 3}, "steps"),
        ({"raw": True, "system": "a"}, "system"),
        ({"raw": True, "context": [1]}, "context"),
        ({"raw": True, "think": True}, "think"),
        ({"suffix": "a", "images": ["QUJD"]}, "images"),
        ({"context": [1], "images": ["QUJD"]}, "images"),
        ({"context": [10**6]}, "context has token 1000000"),
        ({"raw": True, "images": ["QUJD"], "prompt": "[img-3]"}, "images: the prompt has no marker [img-0]"),
    ],
    ids=str,
)
async def test_what_generate_has_not_is_refused_by_name(client: httpx.AsyncClient, body: Json, named: str) -> None:
    answer = await client.post("/api/generate", json=GENERATE | body)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        {"options": {"num_ctx": 512, "num_gpu": -1, "num_thread": 0, "low_vram": False, "f16_kv": True, "use_mmap": True}},
        {"format": "", "think": None, "truncate": False, "keep_alive": "5m", "model": "any", "_debug_render_only": False},
        {"keep_alive": -1, "shift": False, "options": {"unknown": 1}},
    ],
    ids=str,
)
async def test_a_neutral_value_asks_for_nothing(client: httpx.AsyncClient, body: Json) -> None:
    options = GREEDY["options"] | body.get("options", {})
    answer = await whole(client, "/api/chat", CHAT | body | {"options": options})
    assert answer["message"] == (await whole(client, "/api/chat", CHAT))["message"]


def test_an_error_of_a_picture_names_where_it_is() -> None:
    error = translate.rename_parameter(InvalidRequestError("image_data", "image_data[2].data is no picture"), is_chat=False)
    assert (error.param, error.message) == ("images", "images[2] is no picture")
    error = translate.rename_parameter(InvalidRequestError("prompt", "prompt is too odd"))
    assert (error.param, error.message) == ("messages", "messages is too odd")


def test_an_error_names_the_field_of_the_body() -> None:
    told = [
        translate.rename_parameter(error).message
        for error in (
            InvalidRequestError("n_predict", "n_predict is -3"),
            InvalidRequestError("messages", "messages[1].content[0].image_url.url: no"),
            InvalidRequestError("json_schema", "json_schema is odd"),
        )
    ]
    assert told == ["options.num_predict is -3", "messages[1].images[0]: no", "format is odd"]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0),
        (2.5, 2.5),
        (-1, math.inf),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("-1m", math.inf),
        ("0", 0),
        ("250ms", 0.25),
    ],
    ids=str,
)
def test_a_duration_is_read_as_go_reads_it(given: Json, seconds: float | None) -> None:
    read = translate.keep_alive_s(given)
    assert read == (seconds if seconds is None else pytest.approx(seconds))


async def test_without_a_prompt_the_model_is_only_loaded(client: httpx.AsyncClient) -> None:
    for body in ({}, {"prompt": ""}, {"keep_alive": "5m"}):
        answer = await client.post("/api/generate", json=body)
        assert answer.json() == {**ABOUT, "done": True, "done_reason": "load", "response": ""}
    answer = await client.post("/api/chat", json={"messages": []})
    assert answer.json() == {**ABOUT, "done": True, "done_reason": "load", "message": {"role": "assistant", "content": ""}}


async def test_a_server_that_never_unloads_says_so(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/generate", json={"keep_alive": 0})
    assert answer.status_code == 501
    assert answer.headers["x-should-retry"] == "false", "the official clients of others try again what is 500 or more"
    assert "--sleep-idle-seconds" in answer.json()["error"]
    assert (await client.post("/api/chat", json=CHAT | {"keep_alive": 0})).status_code == 200, "what is written is written"


DETAILS: Json = {
    "parent_model": "",
    "format": "gguf",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "2.8M",
    "quantization_level": "Q8_0",
}
DIGEST = matching("[0-9a-f]{64}")


async def test_a_context_ends_before_what_stopped_the_answer(client: httpx.AsyncClient) -> None:
    free = await whole(client, "/api/generate", GENERATE | {"options": {**GREEDY["options"], "num_predict": 30}})
    stop = free["response"][40:47]
    at = free["response"].index(stop)
    options = {**GREEDY["options"], "num_predict": 30, "stop": [stop]}
    stopped = await whole(client, "/api/generate", GENERATE | {"options": options})
    assert stopped["response"] == free["response"][:at]
    told = {}
    for name, answer in (("free", free), ("stopped", stopped)):
        found = await client.post("/detokenize", json={"tokens": answer["context"]})
        told[name] = found.json()["content"]
    begun = told["free"][: told["free"].rindex(free["response"])]
    assert told["stopped"] == begun + stopped["response"]


@pytest.mark.parametrize(
    ("template", "capabilities"),
    [
        ("{% for message in messages %}{{ message.content }}{% endfor %}", ["completion", "insert"]),
        ("{% for message in messages %}{{ message.content }}{# tools <thinking> #}{% endfor %}", ["completion", "insert"]),
        (
            (
                "{{ tools if tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
            ),
            ["completion", "insert", "tools"],
        ),
        ("{% for m in messages %}[THINK][/THINK]{{ m.content }}{% endfor %}", ["completion", "insert", "thinking"]),
    ],
)
async def test_what_a_model_can_do_its_template_says(template: str, capabilities: list[str]) -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(chat_template=template))) as client:
        await answers(client, 200)
        assert (await client.get("/api/tags")).json()["models"][0]["capabilities"] == capabilities


async def test_the_model_is_listed_shown_and_loaded(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/api/tags")).json()
    assert listed == {
        "models": [
            {
                "name": "storyteller",
                "model": "storyteller",
                "modified_at": matching(r"\S+Z"),
                "size": COUNT,
                "digest": DIGEST,
                "details": DETAILS,
                "capabilities": ["completion", "insert"],
            }
        ]
    }
    loaded = (await client.get("/api/ps")).json()["models"]
    assert loaded == [
        {
            **{name: listed["models"][0][name] for name in ("name", "model", "size", "digest", "details")},
            "expires_at": matching(r"\S+Z"),
            "size_vram": 0,
            "context_length": 1024,
        }
    ]
    shown = (await client.post("/api/show", json={"model": "any"})).json()
    assert shown["details"] == DETAILS
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["general.parameter_count"] == 2755008
    assert shown["model_info"]["llama.context_length"] == 1024
    assert shown["model_info"]["tokenizer.ggml.add_bos_token"] is True
    assert "<|im_start|>" in shown["template"]
    assert "temperature 0.8" in shown["parameters"].splitlines()
    assert shown["modelfile"].startswith("FROM ")
    assert (await client.get("/api/version")).json() == {"version": matching(r"\d+\.\d+\.\d+")}


async def test_vectors(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/embed", json={"input": ["a fox", "a dog"]})
    same = (await client.post("/v1/embeddings", json={"input": ["a fox", "a dog"]})).json()
    assert answer.json() == {
        "model": "storyteller",
        "embeddings": [entry["embedding"] for entry in same["data"]],
        "total_duration": COUNT,
        "load_duration": COUNT,
        "prompt_eval_count": same["usage"]["prompt_tokens"],
    }
    first = pytest.approx(same["data"][0]["embedding"], abs=1e-3)
    [alone] = (await client.post("/api/embed", json={"input": "a fox"})).json()["embeddings"]
    assert alone == first
    assert (await client.post("/api/embeddings", json={"prompt": "a fox"})).json() == {"embedding": alone}
    assert len((await client.post("/api/embed", json={"input": "a fox", "dimensions": 3})).json()["embeddings"][0]) == 3
    assert (await client.post("/api/embed", json={"input": []})).json()["embeddings"] == []
    assert (await client.post("/api/embeddings", json={})).json() == {"embedding": []}


@pytest.mark.parametrize("truncate", [None, True])
async def test_a_text_that_is_too_long_is_cut_where_it_may_be(client: httpx.AsyncClient, truncate: bool | None) -> None:
    asked = {"input": ["a fox " * 5_000, "a dog"], "truncate": truncate}
    answer = await client.post("/api/embed", json=asked)
    assert answer.status_code == 200, answer.text
    long, short = answer.json()["embeddings"]
    n_tokens = answer.json()["prompt_eval_count"]
    alone = (await client.post("/api/embed", json={"input": "a dog"})).json()
    assert short == pytest.approx(alone["embeddings"][0], abs=1e-3)
    # It is as long as may be, and what is behind that is of no account.
    more = (await client.post("/api/embed", json={"input": ["a fox " * 6_000, "a dog"]})).json()
    assert (more["embeddings"][0], more["prompt_eval_count"]) == (pytest.approx(long, abs=1e-3), n_tokens)
    assert n_tokens > 1_000


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/api/embed", {"input": "word " * 5000, "truncate": False}, "shorten it"),
        ("/api/embed", {"input": "a", "dimensions": -1}, "dimensions"),
        ("/api/embed", {"input": "a", "dimensions": 10**6}, "dimensions"),
        ("/api/embed", {"input": [1]}, "input"),
        ("/api/embed", {"input": "a", "options": {"num_gpu": 1}}, "options.num_gpu"),
        ("/api/embeddings", {"prompt": 3}, "prompt"),
        ("/api/embeddings", {"prompt": "a", "keep_alive": "x"}, "keep_alive"),
    ],
    ids=lambda given: str(given)[:60],
)
async def test_what_has_no_vector_is_refused_by_name(client: httpx.AsyncClient, path: str, body: Json, named: str) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *[("POST", f"/api/{name}") for name in ("pull", "push", "create", "copy", "blobs/sha256:0")],
        ("DELETE", "/api/delete"),
    ],
)
async def test_models_cannot_be_changed(client: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await client.request(method, path, json={"model": "a"})
    assert answer.status_code == 501
    assert answer.json() == {"error": "this server serves one model; start it with -m or -hf for another"}


async def test_errors_have_the_dialects_shape_wherever_they_come_from() -> None:
    async with serving(api_keys=("k",)) as client:
        none = await client.post("/api/chat", json=CHAT)
        absent = await client.get("/api/none", headers={"authorization": "Bearer k"})
        wrong = await client.get("/api/chat", headers={"authorization": "Bearer k"})
        no_json = await client.post("/api/chat", content=b"{", headers={"authorization": "Bearer k"})
        blob = await client.head("/api/blobs/sha256:0", headers={"authorization": "Bearer k"})
    assert (none.status_code, none.json()) == (401, {"error": "Invalid API Key"})
    assert (absent.status_code, absent.json()) == (404, {"error": "Not Found"})
    assert (wrong.status_code, wrong.json()) == (405, {"error": "Method Not Allowed"})
    assert (no_json.status_code, no_json.json()) == (400, {"error": SOME_TEXT})
    assert blob.status_code in (404, 405)


async def test_an_error_before_the_model_is_loaded() -> None:
    app = create_app(ScriptedEngine().as_engine())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast("Any", app)), base_url="http://a") as client:
        answer = await client.post("/api/chat", json=CHAT)
    assert (answer.status_code, answer.json()["error"]) == (503, "Loading model")


async def test_a_stream_that_fails_ends_with_its_error() -> None:
    async with scripted([token(0, "a")], cast("Any", weft.DecodeError("boom"))) as client:
        answer = await client.post("/api/chat", json=CHAT)
    assert json.loads(answer.text.splitlines()[-1]) == {"error": SOME_TEXT}


async def test_the_page_at_the_root_is_a_sign_of_life_too() -> None:
    async with serving(api_keys=("k",)) as client:
        assert (await client.head("/")).status_code == 200
    async with serving(api_keys=("k",), ui=False) as client:
        assert (await client.head("/")).status_code == 200
