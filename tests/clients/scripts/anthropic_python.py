"""The `anthropic` package: messages, streams, tools, thoughts, pictures and counts of tokens."""

import anthropic
from pydantic import BaseModel
from report import MODEL, TOOL, feature, picture, run, url

client = anthropic.Anthropic(base_url=url(), api_key="none", max_retries=0, timeout=60)

HELLO = {"model": MODEL, "max_tokens": 1000, "messages": [{"role": "user", "content": "Hello!"}]}
TOOLS = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}]
ASKED = HELLO | {"messages": [{"role": "user", "content": "What is the weather in Paris for 3 days?"}], "tools": TOOLS}


class Pet(BaseModel):
    """What a message is to answer with."""

    kind: str
    age: int


@feature("models")
def models() -> None:
    assert [model.type for model in client.models.list().data] == ["model"]


@feature("chat")
def chat() -> None:
    answer = client.messages.create(**HELLO, system="Be short.")
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "end_turn")
    assert [block.text for block in answer.content] == ["You said: Hello!"]
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    cut = client.messages.create(**HELLO | {"max_tokens": 2})
    assert cut.stop_reason == "max_tokens"
    stopped = client.messages.create(**HELLO, stop_sequences=["said"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "said")


@feature("stream")
def stream() -> None:
    with client.messages.stream(**HELLO) as events:
        texts = list(events.text_stream)
    assert len(texts) > 1
    final = events.get_final_message()
    assert final.content[0].text == "".join(texts) == "You said: Hello!"
    assert final.usage.output_tokens == client.messages.create(**HELLO).usage.output_tokens


@feature("tools")
def tools() -> None:
    answer = client.messages.create(**ASKED)
    assert answer.stop_reason == "tool_use"
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris", "days": 3})
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "It rains."}]}
    told = [*ASKED["messages"], {"role": "assistant", "content": answer.content}, result]
    answer = client.messages.create(**ASKED | {"messages": told})
    assert answer.content[0].text == "The tool said: It rains."


@feature("tool choice")
def tool_choice() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        assert client.messages.create(**ASKED, tool_choice=choice).stop_reason == "tool_use"
    assert client.messages.create(**ASKED, tool_choice={"type": "none"}).stop_reason == "end_turn"


@feature("tools in a stream")
def streamed_tools() -> None:
    with client.messages.stream(**ASKED) as events:
        parts = [event.partial_json for event in events if event.type == "input_json"]
    assert len(parts) > 1
    [call] = [block for block in events.get_final_message().content if block.type == "tool_use"]
    assert call.input == {"city": "Paris", "days": 3}


@feature("parallel tools")
def parallel_tools() -> None:
    both = 'Do get_weather({"city": "Rome", "days": 1}) and get_weather({"city": "Oslo", "days": 2}).'
    with client.messages.stream(**ASKED | {"messages": [{"role": "user", "content": both}]}) as events:
        events.until_done()
    calls = [block for block in events.get_final_message().content if block.type == "tool_use"]
    assert [call.input["city"] for call in calls] == ["Rome", "Oslo"]
    assert len({call.id for call in calls}) == 2


@feature("JSON schema")
def schema() -> None:
    asked = HELLO | {"messages": [{"role": "user", "content": "A 'dog' that is 3 years old"}]}
    assert client.messages.parse(**asked, output_format=Pet).parsed_output == Pet(kind="dog", age=3)


@feature("reasoning")
def reasoning() -> None:
    asked = HELLO | {"max_tokens": 3000, "messages": [{"role": "user", "content": "Please think before you answer"}]}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = client.messages.create(**asked, thinking=thinking)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[0].thinking.strip() == "First I think it over."
    with client.messages.stream(**asked, thinking=thinking) as events:
        events.until_done()
    streamed = events.get_final_message().content
    assert [block.type for block in streamed] == ["thinking", "text"]
    # What was thought is told again in the next turn.
    told = [*asked["messages"], {"role": "assistant", "content": streamed}, {"role": "user", "content": "And now?"}]
    assert client.messages.create(**asked | {"messages": told}).content[-1].text == "You said: And now?"


@feature("vision")
def vision() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": picture()}
    parts = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    answer = client.messages.create(**HELLO | {"messages": [{"role": "user", "content": parts}]})
    assert "<__media__>" in answer.content[0].text


@feature("token count")
def token_count() -> None:
    asked = {"model": MODEL, "messages": HELLO["messages"]}
    assert client.messages.count_tokens(**asked).input_tokens == client.messages.create(**HELLO).usage.input_tokens


@feature("errors")
def errors() -> None:
    try:
        client.messages.create(**HELLO | {"messages": []})
    except anthropic.BadRequestError as refused:
        assert refused.body["error"]["type"] == "invalid_request_error"
    else:
        raise AssertionError("no messages are refused")


run()
