"""The `openai` package: chats, tools, schemas, thoughts, pictures, vectors and responses."""

import json
from typing import Literal

import openai
from pydantic import BaseModel
from report import MODEL, TOOL, feature, picture, run, url

client = openai.OpenAI(base_url=f"{url()}/v1", api_key="none", max_retries=0, timeout=60)

ASKED = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]
TOOLS = [{"type": "function", "function": TOOL}]


class Pet(BaseModel):
    """What a chat is to answer with."""

    kind: Literal["cat", "dog"]
    age: int


@feature("models")
def models() -> None:
    listed = list(client.models.list())
    assert listed[0].object == "model"
    assert client.models.retrieve(listed[0].id).id == listed[0].id


@feature("chat")
def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello!"}], n=2)
    assert [choice.message.content for choice in answer.choices] == ["You said: Hello!"] * 2
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.refusal is None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@feature("stream")
def stream() -> None:
    with client.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": "Hello!"}]) as events:
        texts = [event.delta for event in events if event.type == "content.delta"]
    assert len(texts) > 1
    assert events.get_final_completion().choices[0].message.content == "".join(texts) == "You said: Hello!"


@feature("usage")
def usage() -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]}
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == client.chat.completions.create(**asked).usage.completion_tokens


@feature("log-probabilities")
def logprobs() -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello!"}], logprobs=True, top_logprobs=2
    )
    told = answer.choices[0].logprobs.content
    assert "".join(token.token for token in told).startswith("You said: Hello!")
    assert all(len(token.top_logprobs) == 2 for token in told)


@feature("tools")
def tools() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls", choice
    [call] = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris", "days": 3}
    result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
    answer = client.chat.completions.create(model=MODEL, messages=[*ASKED, choice.message, result], tools=TOOLS)
    assert answer.choices[0].message.content == "The tool said: It rains."
    assert answer.choices[0].finish_reason == "stop"


@feature("tool choice")
def tool_choice() -> None:
    asked = {"model": MODEL, "messages": ASKED, "tools": TOOLS}
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = client.chat.completions.create(**asked, tool_choice=choice)
        assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert client.chat.completions.create(**asked, tool_choice="none").choices[0].message.tool_calls is None


@feature("tools in a stream")
def streamed_tools() -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=TOOLS) as events:
        deltas = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert json.loads("".join(deltas)) == {"city": "Paris", "days": 3}
    assert len(deltas) > 1
    [choice] = events.get_final_completion().choices
    assert choice.finish_reason == "tool_calls"
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]


@feature("parallel tools")
def parallel_tools() -> None:
    both = 'Do get_weather({"city": "Rome", "days": 1}) and get_weather({"city": "Oslo", "days": 2}).'
    asked = {"model": MODEL, "messages": [{"role": "user", "content": both}], "tools": TOOLS, "parallel_tool_calls": True}
    message = client.chat.completions.create(**asked).choices[0].message
    assert [json.loads(call.function.arguments)["city"] for call in message.tool_calls] == ["Rome", "Oslo"]
    assert len({call.id for call in message.tool_calls}) == 2
    with client.chat.completions.stream(**asked) as events:
        events.until_done()
    streamed = events.get_final_completion().choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in streamed] == ["Rome", "Oslo"]


@feature("JSON schema")
def schema() -> None:
    asked = [{"role": "user", "content": "A dog that is 3 years old"}]
    answer = client.chat.completions.parse(model=MODEL, messages=asked, response_format=Pet)
    assert answer.choices[0].message.parsed == Pet(kind="dog", age=3)


@feature("JSON object")
def json_object() -> None:
    asked = [{"role": "user", "content": 'JSON like {"properties": {"age": {"type": "integer"}}} for a pet of 3 years'}]
    answer = client.chat.completions.create(model=MODEL, messages=asked, response_format={"type": "json_object"})
    assert json.loads(answer.choices[0].message.content) == {"age": 3}


@feature("reasoning")
def reasoning() -> None:
    asked = [{"role": "user", "content": "Please think before you answer"}]
    message = client.chat.completions.create(model=MODEL, messages=asked).choices[0].message
    assert message.reasoning_content.strip() == "First I think it over."
    assert message.content == "You said: Please think before you answer"
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(model=MODEL, messages=asked, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content


@feature("vision")
def vision() -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture()}"}},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
    assert "<__media__>" in answer.choices[0].message.content


@feature("text completion")
def completion() -> None:
    answer = client.completions.create(model=MODEL, prompt="Once upon a time,", n=2, max_tokens=8, logprobs=1)
    assert all(choice.text and choice.logprobs.tokens for choice in answer.choices)
    chunks = client.completions.create(model=MODEL, prompt="Once upon a time,", max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks)


@feature("embeddings")
def embeddings() -> None:
    answer = client.embeddings.create(model=MODEL, input=["a fox", "a whale"])
    assert len(answer.data) == 2
    assert len(answer.data[0].embedding) == len(answer.data[1].embedding) > 8
    floats = client.embeddings.create(model=MODEL, input="a fox", encoding_format="float").data[0].embedding
    assert max(abs(one - other) for one, other in zip(floats, answer.data[0].embedding, strict=True)) < 1e-3


@feature("responses")
def responses() -> None:
    answer = client.responses.create(model=MODEL, input="Hello!")
    assert answer.output_text == "You said: Hello!"
    with client.responses.stream(model=MODEL, input="Hello!") as events:
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == events.get_final_response().output_text == "You said: Hello!"


@feature("tools in responses")
def responses_tools() -> None:
    tools = [{"type": "function", "strict": True, **TOOL}]
    asked = "What is the weather in Paris for 3 days?"
    first = client.responses.create(model=MODEL, input=asked, tools=tools)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris", "days": 3})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    told = [{"role": "user", "content": asked}, *first.output, result]
    assert client.responses.create(model=MODEL, input=told, tools=tools).output_text == "The tool said: It rains."


@feature("errors")
def errors() -> None:
    try:
        client.chat.completions.create(model=MODEL, messages=[])
    except openai.BadRequestError as refused:
        assert refused.param == "messages"
    else:
        raise AssertionError("no messages are refused")


run()
