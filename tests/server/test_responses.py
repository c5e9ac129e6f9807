"""Responses over a scripted engine: what they say, what is kept of them, and who is told."""

import gc
import json
import random
import re
from collections.abc import Sequence
from sys import getsizeof

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

import weft
from tests.helpers import wait_until
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine, finished, token
from tests.server.serving import serving
from weft.chat.answer.branches import BranchParsers
from weft.chat.answer.parts import AnswerForm, AnswerReader, CallArguments, CallStart, Content, Part, Reasoning
from weft.server import create_app, memory_budget
from weft.server.memory_budget import Reservation, responses_budget
from weft.server.responses import items, service, store
from weft.server.responses import writing as writing_module
from weft.server.responses.events import frame
from weft.server.responses.items import Message
from weft.server.responses.schemas import Conversation, CreateResponse
from weft.server.responses.store import Node, Store, StoredConversation, StoredItem, StoredResponse
from weft.server.responses.translate import chat, response
from weft.server.responses.writing import ResponseWriter
from weft.server.streaming import recording
from weft.settings import Settings

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)

SAID = [[token(0, "a")], [token(0, "b", 2)], [finished(0)], []]


class Scripted(AnswerForm, AnswerReader):
    """Reads `t:…` as a thought, `c:…` as a call, `a:…` as its arguments, and all else as what is said."""

    def reader(self) -> "Scripted":
        return self

    def read(self, text: str) -> list[Part]:
        kind, rest = (text[0], text[2:]) if text[1:2] == ":" else ("", text)
        parts: dict[str, Part] = {
            "t": Reasoning(rest),
            "c": CallStart(0, f"call_{rest}", rest),
            "a": CallArguments(0, rest),
            "": Content(rest),
        }
        return [parts[kind]]

    def end(self, *, is_truncated: bool = False) -> list[Part]:
        return []


class Generated:
    """A generation of which only the prompt is known."""

    def __init__(self) -> None:
        self.streams = [type("Stream", (), {"n_prompt": 3})()]
        self.parsers = BranchParsers(Scripted())

    def explanation(self, *_: object) -> msgspec.UnsetType:
        return msgspec.UNSET


def writing(ends: list[ResponseWriter] | None = None, **body: Json) -> ResponseWriter:
    asked = CreateResponse(input="a", include=["reasoning.encrypted_content"], **body)
    about = response(asked, Settings(), "a model", None, [])
    on_end = (lambda _: None) if ends is None else ends.append
    collected = Reservation(responses_budget())
    return ResponseWriter(about, Generated(), asked, collected=collected, on_end=on_end)  # type: ignore[arg-type]


def told_by(frames: bytes) -> list[Json]:
    """Events as a client reads them."""
    return [json.loads(one.split(b"\ndata: ")[1]) for one in frames.split(b"\n\n") if one]


def written(of: ResponseWriter, texts: Sequence[str], reason: str = "end") -> list[Json]:
    """The events of a response whose tokens have these texts, each as OpenAI's classes have it."""
    made = of.opening()
    for nth, text in enumerate(texts, 1):
        made += b"".join(of.frames(0, token(0, text, nth)))
    made += b"".join(of.frames(0, finished(0, reason=reason, n_predicted=len(texts))))
    told = told_by(made)
    for number, event in enumerate(told):
        EVENT.validate_python(event, strict=True)
        assert event["sequence_number"] == number
    return told


def test_a_thought_a_message_and_calls_are_items_of_their_own() -> None:
    ends: list[ResponseWriter] = []
    of = writing(ends)
    events = written(of, ["t:Hm", "t:m.", "Well", ".", "c:look", 'a:{"a"', "a::1}", "c:see", "a:{}"])
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    told = events[-1]["response"]
    Response.model_validate(told, strict=True)
    assert [item["type"] for item in told["output"]] == ["reasoning", "message", "function_call", "function_call"]
    thought, message, look, see = told["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert message["content"][0]["text"] == "Well."
    assert (look["name"], look["call_id"], look["arguments"]) == ("look", "call_look", '{"a":1}')
    assert (see["name"], see["arguments"]) == ("see", "{}")
    assert told["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == told["output"]
    assert ends == [of]
    # What came back as items is one message again, with the thought from either of its places.
    without = {**thought, "content": None}
    for back in (told["output"], [without, message, look, see]):
        [said], removed = items.messages([item for item in items.read(back) if not isinstance(item, items.Reference)])
        assert (said.role, said.reasoning_content, said.content) == ("assistant", "Hmm.", "Well.")
        assert [call["id"] for call in said.tool_calls or ()] == ["call_look", "call_see"]
        assert removed == []


def test_an_answer_of_no_text_is_a_message_of_none() -> None:
    told = written(writing(), [])[-1]["response"]
    assert [(item["type"], item["content"][0]["text"]) for item in told["output"]] == [("message", "")]


def test_what_is_cut_off_is_incomplete() -> None:
    told = written(writing(), ["Once"], reason="length")[-1]
    assert told["type"] == "response.incomplete"
    assert told["response"]["output"][0]["status"] == "incomplete"
    assert told["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_what_fails_tells_so_once_and_what_was_written() -> None:
    ends: list[ResponseWriter] = []
    of = writing(ends)
    of.opening()
    of.take(token(0, "Once"))
    [*_, told] = told_by(of.failure(weft.EngineStoppedError()))
    EVENT.validate_python(told, strict=True)
    assert told["type"] == "response.failed"
    assert told["response"]["error"]["code"] == "server_error"
    assert told["response"]["output"][0]["content"][0]["text"] == "Once"
    assert of.failure(weft.EngineStoppedError()) == b""
    of.cancel()
    assert (of.response.status, len(ends)) == ("failed", 1)


async def test_a_stream_that_fails_ends_with_its_event() -> None:
    async with serving([[token(0, "a")], weft.EngineStoppedError()]) as client:
        answer = await create_response(client, stream=True)
        last = json.loads(answer.text.split("\ndata: ")[-1])
        assert last["type"] == "response.failed"
        kept = (await client.get(f"/v1/responses/{last['response']['id']}")).json()
        assert kept == last["response"]


async def create_response(client: httpx.AsyncClient, **body: Json) -> httpx.Response:
    """The answer to a response's request."""
    return await client.post("/v1/responses", json={"input": "hi"} | body)


async def test_a_thought_that_another_server_wrote_is_left_out_and_told() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    async with serving(SAID) as client:
        answer = await create_response(
            client, input=[{"role": "user", "content": "a"}, thought, {"role": "user", "content": "b"}]
        )
    removed = {"id": "rs_1", "action": "removed", "reason": "model_mismatch", "type": "reasoning"}
    assert answer.json()["input_transformations"] == [removed]
    Response.model_validate(answer.json(), strict=True)


async def test_a_compaction_of_another_server_is_refused() -> None:
    async with serving() as client:
        answer = await create_response(client, input=[{"type": "compaction", "encrypted_content": "gAAAA"}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_instructions_and_what_else_the_system_says_first_are_one_message() -> None:
    said, _ = items.messages([Message(role="developer", content="B."), Message(role="user", content="C")])
    assert [(message.role, message.content) for message in items.system_first(said, "A.")] == [
        ("system", "A.\n\nB."),
        ("user", "C"),
    ]


def test_functions_and_choices_are_those_of_chats() -> None:
    tools: list[dict[str, Json]] = [
        {"type": "function", "name": name, "parameters": {}, "strict": True} for name in ("look", "see")
    ]
    nested = [{"type": "function", "function": {"name": name, "parameters": {}, "strict": True}} for name in ("look", "see")]
    one = {"type": "function", "name": "see"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    for choice, expected in [
        ("auto", ("auto", nested)),
        (one, ({"type": "function", "function": {"name": "see"}}, nested)),
        (allowed, ("required", nested[1:])),
    ]:
        made = chat(CreateResponse(input="a", tools=tools, tool_choice=choice), [])  # type: ignore[arg-type]
        assert (made.tool_choice, made.tools) == expected


def test_what_a_function_returned_is_told_by_its_call() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "much"}]}
    read = [item for item in items.read([call, output]) if not isinstance(item, items.Reference)]
    (own, tool), _ = items.messages(read)
    assert own.tool_calls == [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    assert (tool.role, tool.tool_call_id, tool.content) == ("tool", "1", "much")


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def test_one_key_never_sees_anothers() -> None:
    engine = ScriptedEngine(SAID, SAID)
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(api_keys=("one", "two")))) as client:
        made = (await client.post("/v1/responses", json={"input": "hi"}, headers=key("one"))).json()
        begun = (
            await client.post("/v1/conversations", json={"items": [{"role": "user", "content": "a"}]}, headers=key("one"))
        ).json()
        name, item, conversation = made["id"], made["output"][0]["id"], begun["id"]
        paths = [f"/v1/responses/{name}", f"/v1/responses/{name}/input_items", f"/v1/conversations/{conversation}"]
        paths += [f"/v1/conversations/{conversation}/items"]
        for path in paths:
            assert (await client.get(path, headers=key("one"))).status_code == 200
            assert (await client.get(path, headers=key("two"))).status_code == 404
        for path in (paths[0], paths[2]):
            assert (await client.delete(path, headers=key("two"))).status_code == 404
        for body, status in [
            ({"previous_response_id": name}, 400),
            ({"conversation": conversation}, 404),
            ({"input": [{"type": "item_reference", "id": item}]}, 404),
        ]:
            refused = await client.post("/v1/responses", json={"input": "hi"} | body, headers=key("two"))
            assert refused.status_code == status, refused.text
        assert len(engine.requests) == 1


async def test_what_is_not_to_be_kept_is_not() -> None:
    async with serving(SAID) as client:
        made = (await create_response(client, store=False)).json()
        assert made["store"] is False
        assert (await client.get(f"/v1/responses/{made['id']}")).status_code == 404


async def test_what_is_told_again() -> None:
    told = {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "max_tool_calls": 2}
    async with serving(SAID) as client:
        made = (await create_response(client, **told)).json()
        assert {name: made[name] for name in told} == told
        assert (await client.get(f"/v1/responses/{made['id']}")).json() == made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("truncation", "disabled"), ("service_tier", "auto"), ("prompt", None), ("context_management", [])],
        *[("background_options", {"completion_window": "soonest"}), ("moderation", None), ("access_programs", {})],
        *[("image", {"context_compression": "auto"}), ("personality", ""), ("prompt_cache_retention", "in_memory")],
        *[("prompt_cache_options", {"mode": "implicit", "prewarm": False}), ("stream_options", {"include_obfuscation": False})],
        *[("reasoning", {"summary": "auto", "effort": None}), ("text", {"verbosity": "medium"}), ("tools", [])],
        *[("include", ["file_search_call.results"]), ("tool_choice", "auto"), ("lora", []), ("conversation", None)],
    ],
)
async def test_what_asks_for_nothing_is_taken(field: str, value: Json) -> None:
    async with serving(SAID) as client:
        answer = await create_response(client, **{field: value})
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("truncation", "middle"), ("service_tier", "flex"), ("prompt", {"id": "a"}), ("prompt_cache_retention", "24h")],
        *[("context_management", [{"type": "compaction"}]), ("background_options", {"completion_window": "2h"})],
        *[("moderation", {"model": "a"}), ("access_programs", {"cyber": "standard"}), ("personality", "friendly")],
        *[("image", {"context_compression": "enabled"}), ("prompt_cache_options", {"mode": "explicit"})],
        *[("stream_options", {"include_obfuscation": True}), ("reasoning", {"summary": "detailed"})],
        *[("text", {"verbosity": "low"}), ("text", {"format": {"type": "grammar"}}), ("include", ["everything"])],
        *[("tools", [{"type": "custom", "name": "a"}]), ("tools", [{"type": "function"}]), ("tool_choice", {"type": "mcp"})],
        *[("metadata", {"a" * 65: "b"}), ("metadata", {"a": "b" * 513}), ("metadata", {str(nth): "" for nth in range(17)})],
        *[("max_tool_calls", 0), ("top_logprobs", 3), ("top_logprobs", 21), ("conversation", {"name": "a"})],
        *[("input", [{"role": "user", "content": [{"type": "video"}]}]), ("input", [{}]), ("input", [{"role": "user"}])],
        *[("input", [{"role": "user", "content": [{"type": "input_image", "file_id": "a"}]}]), ("input", []), ("input", 5)],
    ],
)
async def test_what_asks_for_more_than_there_is_is_refused_by_name(field: str, value: Json) -> None:
    async with serving() as client:
        answer = await create_response(client, **{field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text


async def test_fields_reach_the_engine() -> None:
    engine = ScriptedEngine(SAID)
    engine.loaded.set()
    engine.model.chat_template = "{{ messages[0].content }}|{{ reasoning_effort }}|{{ a }}"
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        body = {
            "reasoning": {"effort": "low"},
            "chat_template_kwargs": {"a": 5},
            "max_output_tokens": 9,
            "seed": 3,
            "temperature": 0.5,
            "stop": "x",
            "priority": 2,
            "text": {"format": {"type": "json_object"}},
            "top_k": 7,
        }
        assert (await create_response(client, **body)).status_code == 200
    [request] = engine.requests
    assert engine.detokenize(request.prompt) == "hi|low|5"  # type: ignore[arg-type]
    assert (request.max_tokens, request.seed, request.temperature, request.priority) == (9, 3, 0.5, 2)
    assert (list(request.stop), request.json_schema, request.top_k) == (["x"], '{"type":"object"}', 7)


async def test_more_items_than_the_context_has_tokens_are_refused_at_once() -> None:
    async with serving() as client:
        begun = (await client.post("/v1/conversations", json={"items": [{"role": "user", "content": "a"}] * 4_096})).json()
        refused = await create_response(client, conversation=begun["id"])
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "exceed_context_size_error")
        # It is free again.
        assert (await create_response(client, conversation=begun["id"])).status_code == 400


async def test_nothing_is_written_for_ever_in_the_background() -> None:
    engine = ScriptedEngine(SAID, SAID)
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await create_response(client, background=True)
        await create_response(client, background=True, max_output_tokens=7)
    assert [request.max_tokens for request in engine.requests] == [engine.limits.n_ctx, 7]


async def test_a_chats_tokens_are_counted() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with serving(SAID, SAID) as client:
        counted = (await client.post("/v1/chat/completions/input_tokens", json=body)).json()
        as_response = (await client.post("/v1/responses/input_tokens", json={"input": "hi"})).json()
    assert counted == as_response == {"object": "response.input_tokens", "input_tokens": counted["input_tokens"]}
    assert counted["input_tokens"] > 2


@pytest.mark.parametrize(("query", "param"), [("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order")])
async def test_what_is_wrong_with_a_list_is_named(query: str, param: str) -> None:
    async with serving(SAID) as client:
        made = (await create_response(client)).json()
        answer = await client.get(f"/v1/responses/{made['id']}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_events_that_are_not_kept_are_refused() -> None:
    async with serving(SAID) as client:
        made = (await create_response(client)).json()
        answer = await client.get(f"/v1/responses/{made['id']}?stream=true")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
        answer = await client.post(f"/v1/responses/{made['id']}/cancel")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "background")


async def test_the_events_of_a_named_stream_are_read_by_their_numbers_too() -> None:
    async with serving(SAID) as client:
        whole = await client.post("/v1/responses", json={"input": "hi", "stream": True}, headers={"X-Conversation-Id": "a"})
        name = json.loads(whole.text.partition("data: ")[2].partition("\n")[0])["response"]["id"]
        events = whole.text.removesuffix("\n\n").split("\n\n")
        for number in range(len(events)):
            rest = await client.get(f"/v1/responses/{name}", params={"stream": True, "starting_after": number})
            assert [event for event in rest.text.split("\n\n") if event] == events[number + 1 :]


async def test_what_goes_on_from_a_response_in_a_conversation_has_what_the_conversation_had() -> None:
    engine = ScriptedEngine(SAID, SAID, SAID)
    engine.loaded.set()
    engine.limits.n_ctx_slot = 4096
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        begun = (await client.post("/v1/conversations", json={"items": [{"role": "user", "content": "first"}]})).json()["id"]
        one = (await create_response(client, input="second", conversation=begun)).json()["id"]
        two = (await create_response(client, input="third", conversation=begun)).json()["id"]
        # What is added by hand later is no part of them.
        await client.post(f"/v1/conversations/{begun}/items", json={"items": [{"role": "user", "content": "later"}]})
        for name, said in ((one, ["first", "second"]), (two, ["first", "second", "ab", "third"])):
            made_of = (await client.get(f"/v1/responses/{name}/input_items?order=asc")).json()["data"]
            assert [item["content"][0]["text"] for item in made_of] == said
        assert (await create_response(client, input="fourth", previous_response_id=two)).status_code == 200
    prompt = engine.detokenize(engine.requests[-1].prompt)  # type: ignore[arg-type]
    assert re.findall("first|second|third|fourth|later", prompt) == ["first", "second", "third", "fourth"]


def test_the_metadata_of_conversations_counts() -> None:
    within = Store()
    told = {f"{nth:064d}": "\U0001f600" * 512 for nth in range(16)}
    conversation = StoredConversation(None, Conversation("conv", "conversation", 0, dict(told)), [])
    within.keep_conversation(conversation)
    assert within.n_bytes > 16 * (64 + 4 * 512)
    within.change(conversation, {})
    assert within.n_bytes == store.ENTRY_BYTES
    within.change(conversation, told)
    within.remove(conversation)
    assert within.n_bytes == 0


async def test_what_was_written_before_an_answer_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "MAX_ANSWER_BYTES", 500)
    many = [token(0, "abc", nth) for nth in range(1, 20)]
    async with serving([many, [finished(0)], []]) as client:
        answer = await create_response(client, stream=True)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    told = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    last = events[-1]
    assert told == last["response"]["output"][0]["content"][0]["text"] != ""
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")


async def test_a_whole_response_that_fails_is_kept_as_failed() -> None:
    engine = ScriptedEngine([[token(0, "a")], weft.EngineStoppedError()])
    engine.loaded.set()
    app = create_app(engine.as_engine())
    ended: list[Json] = []
    monkeyed = Store.finish

    def finish(within: Store, made: StoredResponse, encoded: bytes, written: Sequence[StoredItem]) -> None:
        monkeyed(within, made, encoded, written)
        ended.append(json.loads(b"".join(made.json())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "finish", finish)
        async with AsyncTestClient(app) as client:
            assert (await create_response(client)).status_code == 503
            [kept] = ended
            assert (await client.get(f"/v1/responses/{kept['id']}")).json() == kept
    assert (kept["status"], kept["error"]) == ("failed", {"code": "server_error", "message": "the engine has stopped"})


@pytest.mark.parametrize("more", [{}, {"store": False}])
async def test_an_input_that_is_too_large_to_be_kept_is_not_added_to_a_conversation(
    more: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_ONE_BYTES", 2_000)
    async with serving() as client:
        begun = (await client.post("/v1/conversations", json={})).json()["id"]
        refused = await create_response(client, input="x" * 2_000, conversation=begun, **more)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_an_id_is_once_in_a_conversation() -> None:
    one = {"role": "user", "content": "a", "id": "msg_1"}
    async with serving(SAID) as client:
        refused = await client.post("/v1/conversations", json={"items": [one, one]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items")
        begun = (await client.post("/v1/conversations", json={"items": [one]})).json()["id"]
        again = [one, {"type": "item_reference", "id": "msg_1"}]
        for item in again:
            refused = await client.post(f"/v1/conversations/{begun}/items", json={"items": [item]})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "items")
            refused = await create_response(client, conversation=begun, input=[item])
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        assert (await create_response(client, conversation=begun)).status_code == 200


async def test_an_id_is_once_in_what_is_kept_of_a_response() -> None:
    one = {"role": "user", "content": "a", "id": "msg_1"}
    async with serving(SAID, SAID, SAID) as client:
        refused = await create_response(client, input=[one, {**one, "content": "b"}])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
        assert "would occur twice" in refused.json()["error"]["message"]
        first = (await create_response(client, input=[one])).json()["id"]
        assert (await create_response(client, input=[one], previous_response_id=first)).status_code == 400
        assert (await create_response(client, input=[one, one], store=False)).status_code == 200
        assert (await create_response(client, input=[{**one, "content": "b"}])).status_code == 200


def test_of_items_of_one_id_the_last_that_is_kept_is_found() -> None:
    within = Store()
    for name in "ab":
        given = StoredItem("msg_1", json.dumps({"type": "message", "role": "user", "content": name}).encode())
        made = StoredResponse(None, name, Node(None, [given]), in_background=False)
        within.keep(made)
        within.finish(made, b"{}", [])
    for name in "ba":
        found = within.item(None, "msg_1")
        assert isinstance(found, Message)
        assert found.content == name
        within.remove(within.response(None, name))
    assert within.item(None, "msg_1") is None


@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_in_the_background_that_is_refused_is_not_kept(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_STREAMS", 0)
    kept: list[StoredResponse] = []
    keeps = Store.keep

    def keep(within: Store, made: StoredResponse) -> None:
        kept.append(made)
        keeps(within, made)

    monkeypatch.setattr(Store, "keep", keep)
    async with serving(SAID) as client:
        assert (await create_response(client, background=True, stream=stream)).status_code == 429
        [refused] = kept
        assert (await client.get(f"/v1/responses/{refused.id}")).status_code == 404


def test_the_end_of_a_long_response_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_module, "CHUNK_BYTES", 1_000)
    of = writing()
    of.opening()
    told = msgspec.Raw(b'{"token":"a","logprob":-1.5,"bytes":[97],"top_logprobs":[]}')
    monkeypatch.setattr(ResponseWriter, "_take_logprobs", lambda self, _: self._pending_logprobs.append(told) or len(told))
    for nth in range(1, 101):
        of.take(token(0, "a", nth))
    made, _ = of.take(finished(0, n_predicted=100))
    frames = [frame(event) for event in made]
    longs = [[id(piece) for piece in pieces if len(piece) >= 1_000] for pieces in [*frames, *of.output, of.body()]]
    # Done text, done part, done item, the completed response, what is kept, and what is told whole: the same bytes each.
    assert len(longs) == 6
    assert len(longs[0]) > 3
    assert all(long == longs[0] for long in longs)
    events = [json.loads(b"".join(pieces).split(b"\ndata: ")[1]) for pieces in frames]
    for event in events:
        EVENT.validate_python(event, strict=True)
    assert len(events[0]["logprobs"]) == 100
    assert events[-1]["response"]["output"] == [events[2]["item"]] == json.loads(b"".join(of.body()))["output"]
    assert json.loads(b"".join(of.output[0])) == events[2]["item"]


async def test_a_name_that_is_none_is_refused_among_allowed_tools() -> None:
    tools = [{"type": "function", "name": "f"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": ["f"]}]}
    async with serving() as client:
        refused = await create_response(client, tools=tools, tool_choice=choice)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def kept_item(name: str, n_bytes: int) -> StoredItem:
    n_more = store.ITEM_BYTES + store.REFERENCE_BYTES + store.PIECE_BYTES + getsizeof(name) + 2
    return StoredItem(name, b"{" + b" " * (n_bytes - n_more) + b"}")


def keep(within: Store, name: str, parent: Node | None = None, n_bytes: int = 10_000, owner: str | None = None) -> StoredResponse:
    """Keeps a response whose input takes so many bytes."""
    made = StoredResponse(owner, name, Node(parent, [kept_item(f"item of {name}", n_bytes)]), in_background=False)
    within.keep(made)
    within.finish(made, b"{}", [])
    return made


def test_what_was_used_least_recently_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT", 3)
    within = Store()
    for name in "abc":
        keep(within, name)
    within.response(None, "a")
    keep(within, "d")
    assert [name for name in "abcd" if (None, name) in within._all] == ["a", "c", "d"]


def test_the_key_that_has_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    within = Store()
    monkeypatch.setattr(store, "MAX_KEPT", 5)
    for name in "ab":
        keep(within, name, owner="one")
    for nth in range(20):
        keep(within, f"more {nth}", owner="two")
    assert [name for owner, name in within._all if owner == "one"] == ["a", "b"]
    monkeypatch.setattr(store, "MAX_KEPT", 100)
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", 100_000)
    for nth in range(20):
        keep(within, f"large {nth}", owner="two", n_bytes=30_000)
    assert [name for owner, name in within._all if owner == "one"] == ["a", "b"]
    assert len(within) == 4


def test_bytes_are_bounded_and_what_is_gone_on_from_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = 10_000 + store.ENTRY_BYTES + 2
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", 3 * one)
    within = Store()
    first = keep(within, "a")
    for name in "bc":
        keep(within, name, first.node)
    assert within.n_bytes == 3 * one
    within.remove(first)
    # Two go on from it.
    assert within.n_bytes == 3 * one - store.ENTRY_BYTES - 2
    assert [item.id for item in within.response(None, "c").node.items()] == ["item of a", "item of c"]
    keep(within, "d")
    assert [name for name in "bcd" if (None, name) in within._all] == ["c", "d"]
    keep(within, "e")
    # With the last that goes on from it, it is gone.
    assert sorted(within._items) == [(None, "item of d"), (None, "item of e")]
    assert within.n_bytes == 2 * one


def test_everything_that_is_kept_is_given_back() -> None:
    within = Store()
    first = keep(within, "a")
    second = keep(within, "b", first.node)
    conversation = StoredConversation(None, Conversation("conv", "conversation", 0, {}), [kept_item("x", 1000)])
    within.keep_conversation(conversation)
    within.add_items(conversation, [*second.node.given, kept_item("y", 1000)])
    within.remove_item(conversation, conversation.items[0])
    for thing in (first, conversation, second):
        within.remove(thing)
    assert (within.n_bytes, len(within), within._items) == (0, 0, {})


def test_what_is_being_written_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT", 1)
    within = Store()
    running = StoredResponse(None, "a", Node(None, []), in_background=True)
    within.keep(running)
    keep(within, "b")
    assert within.response(None, "a") is running


def test_the_same_item_is_held_once() -> None:
    within = Store()
    first = keep(within, "a")
    [again] = within.deduplicate(None, [StoredItem("item of a", first.node.given[0].json)])
    assert again is first.node.given[0]
    [other] = within.deduplicate(None, [StoredItem("item of a", b"{}")])
    assert other is not first.node.given[0]


def check_integrity(within: Store) -> None:
    """That what is counted is what is held."""
    nodes: set[Node] = set()
    held: list[StoredItem] = []
    n_bytes = sum(thing.n_bytes for thing in within._all.values())
    for thing in within._all.values():
        if isinstance(thing, StoredConversation):
            held += thing.items
        else:
            nodes.update(thing.node.path())
    for node in nodes:
        held += [*node.given, *node.written]
    once = {id(item): item for item in held}
    n_bytes += store.REFERENCE_BYTES * len(held)
    assert within.n_bytes == n_bytes + sum(item.n_bytes for item in once.values())
    assert {id(item) for items in within._items.values() for item in items} == once.keys()
    assert all(item.id == name for (_, name), items in within._items.items() for item in items)
    assert all(within._items.values())


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_what_is_counted_is_what_is_held(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_KEPT", 12)
    monkeypatch.setattr(store, "MAX_KEPT_BYTES", 12 * store.ENTRY_BYTES)
    draw = random.Random(seed)
    within = Store()
    running: list[StoredResponse] = []
    for step in range(300):
        there = list(within._all.values())
        done = [thing for thing in there if isinstance(thing, StoredResponse) and thing.frame is not None]
        talks = [thing for thing in there if isinstance(thing, StoredConversation)]
        new = within.deduplicate(
            None, [kept_item(f"item {draw.randrange(20)}", 600 + draw.randrange(3)) for _ in range(draw.randrange(3))]
        )
        match draw.randrange(6):
            case 0 | 1:
                parent = draw.choice(done).node if done and draw.random() < 0.7 else None
                running.append(StoredResponse(None, f"resp {step}", Node(parent, new), in_background=True))
                within.keep(running[-1])
            case 2 if running:
                ending = running.pop(draw.randrange(len(running)))
                within.finish(ending, b"{}" * draw.randrange(1, 500), [kept_item(f"written {step}", 700)])
            case 3 if there:
                within.remove(draw.choice(there))
            case 4:
                within.keep_conversation(StoredConversation(None, Conversation(f"conv {step}", "conversation", 0, {}), new))
            case 5 if talks:
                talk = draw.choice(talks)
                if talk.items and draw.random() < 0.5:
                    within.remove_item(talk, draw.choice(talk.items))
                else:
                    within.add_items(talk, new)
            case _ if done:
                within.response(None, draw.choice(done).id)
        check_integrity(within)
    for thing in list(within._all.values()):
        within.remove(thing)
    assert (within.n_bytes, within._items) == (0, {})


@pytest.mark.parametrize(
    ("body", "name"),
    [({}, ""), ({"stream": True}, ""), ({"background": True}, ""), ({"stream": True}, "named"), ({"conversation": True}, "")],
    ids=["whole", "stream", "background", "named", "conversation"],
)
async def test_a_response_leaves_no_circle(body: dict[str, Json], name: str) -> None:
    gc.collect()
    gc.disable()
    engine = ScriptedEngine(SAID)
    engine.loaded.set()
    app = create_app(engine.as_engine())
    try:
        async with AsyncTestClient(app) as client:
            if "conversation" in body:
                body = {"conversation": (await client.post("/v1/conversations", json={})).json()["id"]}
            await client.post("/v1/responses", json={"input": "hi"} | body, headers={"X-Conversation-Id": name})
            await wait_until(lambda: app.service.is_idle)
    finally:
        gc.enable()
