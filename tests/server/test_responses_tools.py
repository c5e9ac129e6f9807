"""Functions and thoughts in responses: what the model writes becomes items, and items become what it wrote."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from litestar.testing import AsyncTestClient
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.scripted import Answer, AnsweringEngine, Script
from tests.server.matchers import Json
from weft.server import create_app

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)

TEMPLATE = """{% if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool.function.name }} {% endfor %}</tools>
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}{{ "\\n" }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SAYS = (
    "<think>\nRain, maybe.\n</think>\n\nLet me look.\n"
    '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

TOOLS: Json = [{"type": "function", "name": name, "description": "Looks.", "parameters": CITY} for name in ("look", "see")]


@pytest.fixture
def model() -> AnsweringEngine:
    engine = AnsweringEngine(Script([Answer("It rains.", when="wet"), Answer(SAYS)], TEMPLATE))
    engine.loaded.set()
    return engine


@pytest.fixture
async def client(model: AnsweringEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncTestClient(create_app(model.as_engine())) as client:
        yield client


async def create_response(client: httpx.AsyncClient, **body: Json) -> Json:
    """A response of the model's, which is what OpenAI's class says."""
    answer = await client.post("/v1/responses", json={"input": "Is it", "tools": TOOLS} | body)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json(), strict=True)
    return answer.json()


async def test_what_is_written_becomes_items(client: httpx.AsyncClient) -> None:
    thought, message, oslo, rome = (await create_response(client))["output"]
    assert thought["content"][0]["text"] == "Rain, maybe."
    assert message["content"][0]["text"] == "Let me look."
    assert [(call["name"], json.loads(call["arguments"])) for call in (oslo, rome)] == [
        ("look", {"city": "Oslo"}),
        ("look", {"city": "Rome"}),
    ]
    assert oslo["call_id"] != rome["call_id"]


async def test_what_a_function_returns_follows_what_was_written_word_for_word(
    client: httpx.AsyncClient, model: AnsweringEngine
) -> None:
    first = await create_response(client)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "wet"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    second = await create_response(client, input=outputs, previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "It rains."
    before, after = model.prompts
    assert after == f"{before}{SAYS}<|im_end|>\n" + "<|im_start|>tool\nwet<|im_end|>\n" * 2 + "<|im_start|>assistant\n"


async def test_the_same_without_anything_kept(client: httpx.AsyncClient, model: AnsweringEngine) -> None:
    first = await create_response(client, store=False, include=["reasoning.encrypted_content"])
    sent: list[Json] = [{"role": "user", "content": "Is it"}]
    for item in first["output"]:
        # As clients do that keep nothing but what is encrypted.
        sent.append({**item, "content": None} if item["type"] == "reasoning" else item)
        if item["type"] == "function_call":
            sent.append({"type": "function_call_output", "call_id": item["call_id"], "output": "wet"})
    # Both calls first, and then what they returned.
    sent.sort(key=lambda item: item.get("type") == "function_call_output")
    await create_response(client, store=False, input=sent)
    before, after = model.prompts
    assert after.startswith(f"{before}{SAYS}<|im_end|>\n<|im_start|>tool\nwet")


async def test_the_events_tell_the_same(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json={"input": "Is it", "tools": TOOLS, "stream": True})
    events = [json.loads(event.partition("\ndata: ")[2]) for event in answer.text.removesuffix("\n\n").split("\n\n")]
    for number, event in enumerate(events):
        EVENT.validate_python(event, strict=True)
        assert event["sequence_number"] == number
    told = events[-1]["response"]["output"]
    for index, item in enumerate(told):
        deltas = "".join(event["delta"] for event in events if event.get("output_index") == index and "delta" in event)
        assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    assert [item["type"] for item in told] == ["reasoning", "message", "function_call", "function_call"]


async def test_functions_that_may_not_be_called_now_are_left_out(client: httpx.AsyncClient, model: AnsweringEngine) -> None:
    await create_response(
        client, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "see"}]}
    )
    assert "<tools>see </tools>" in model.prompts[0]


async def test_what_was_cut_off_in_a_call_can_be_gone_on_from(client: httpx.AsyncClient, model: AnsweringEngine) -> None:
    first = await create_response(client, max_output_tokens=SAYS.index("Oslo") // 3 + 1)
    assert first["status"] == "incomplete"
    assert first["output"][-1]["type"] == "function_call"
    assert first["output"][-1]["status"] == "incomplete"
    second = await create_response(client, input="Is it wet?", previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "It rains."
    assert "Let me look." in model.prompts[1]


async def test_functions_of_a_namespace_are_called_by_it(client: httpx.AsyncClient, model: AnsweringEngine) -> None:
    model.script = Script(
        [
            Answer("It rains.", when="wet"),
            Answer('<tool_call>\n{"name": "sky.look", "arguments": {"city": "Oslo"}}\n</tool_call>'),
        ],
        TEMPLATE,
    )
    tools = [{"type": "namespace", "name": "sky", "description": "Of above.", "tools": TOOLS}, TOOLS[0]]
    first = await create_response(client, tools=tools)
    (call,) = first["output"]
    assert (call["namespace"], call["name"], json.loads(call["arguments"])) == ("sky", "look", {"city": "Oslo"})
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "wet"}
    second = await create_response(client, input=[output], tools=tools, previous_response_id=first["id"])
    assert second["output"][0]["content"][0]["text"] == "It rains."
    assert '{"name": "sky.look", "arguments": {"city": "Oslo"}}' in model.prompts[1]


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ({"name": "a.b", "tools": []}, "must be a name without '.'"),
        ({"name": "a", "tools": "look"}, "must be a list of functions"),
        ({"name": "a", "tools": [{"type": "custom", "name": "b"}]}, "tools[0].tools[0].type is 'custom'"),
    ],
)
async def test_a_namespace_that_is_none_is_refused(client: httpx.AsyncClient, tool: Json, told: str) -> None:
    answer = await client.post("/v1/responses", json={"input": "a", "tools": [{"type": "namespace"} | tool]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert told in answer.json()["error"]["message"]
