"""The `ollama` package: chats, streams, tools, schemas, thoughts, pictures, vectors and what is there."""

import ollama
from pydantic import BaseModel
from report import MODEL, TOOL, feature, picture, run, url

client = ollama.Client(host=url(), timeout=60)

HELLO = [{"role": "user", "content": "Hello!"}]
ASKED = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]
TOOLS = [{"type": "function", "function": TOOL}]


class Pet(BaseModel):
    """What a chat is to answer with."""

    kind: str
    age: int


@feature("models")
def models() -> None:
    [model] = client.list().models
    assert model.size > 0
    assert client.show(model.model).details.format == "gguf"
    assert len(client.ps().models) == 1


@feature("chat")
def chat() -> None:
    answer = client.chat(MODEL, HELLO)
    assert answer.message.content == "You said: Hello!"
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.eval_count > 0
    assert answer.prompt_eval_count > 0


@feature("stream")
def stream() -> None:
    chunks = list(client.chat(MODEL, HELLO, stream=True))
    assert "".join(chunk.message.content for chunk in chunks) == "You said: Hello!"
    assert [chunk.done for chunk in chunks] == [*[False] * (len(chunks) - 1), True]


@feature("tools")
def tools() -> None:
    message = client.chat(MODEL, ASKED, tools=TOOLS).message
    [call] = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris", "days": 3})
    result = {"role": "tool", "tool_name": "get_weather", "content": "It rains."}
    assert client.chat(MODEL, [*ASKED, message, result], tools=TOOLS).message.content == "The tool said: It rains."


@feature("tools in a stream")
def streamed_tools() -> None:
    calls = [call for chunk in client.chat(MODEL, ASKED, tools=TOOLS, stream=True) for call in chunk.message.tool_calls or []]
    assert [call.function.arguments for call in calls] == [{"city": "Paris", "days": 3}]


@feature("parallel tools")
def parallel_tools() -> None:
    both = 'Do get_weather({"city": "Rome", "days": 1}) and get_weather({"city": "Oslo", "days": 2}).'
    calls = client.chat(MODEL, [{"role": "user", "content": both}], tools=TOOLS).message.tool_calls
    assert [call.function.arguments["city"] for call in calls] == ["Rome", "Oslo"]


@feature("JSON schema")
def schema() -> None:
    asked = [{"role": "user", "content": "A 'dog' that is 3 years old"}]
    answer = client.chat(MODEL, asked, format=Pet.model_json_schema())
    assert Pet.model_validate_json(answer.message.content) == Pet(kind="dog", age=3)


@feature("reasoning")
def reasoning() -> None:
    asked = [{"role": "user", "content": "Please think before you answer"}]
    message = client.chat(MODEL, asked, think=True).message
    assert message.thinking.strip() == "First I think it over."
    assert message.content == "You said: Please think before you answer"


@feature("vision")
def vision() -> None:
    answer = client.chat(MODEL, [{"role": "user", "content": "What is this?", "images": [picture()]}])
    assert "<__media__>" in answer.message.content


@feature("text completion")
def generate() -> None:
    answer = client.generate(MODEL, "Once upon a time,", raw=True, options={"num_predict": 8, "seed": 1})
    assert answer.response
    assert answer.eval_count == 8
    chunks = list(client.generate(MODEL, "Hello!", stream=True))
    assert "".join(chunk.response for chunk in chunks) == "You said: Hello!"


@feature("embeddings")
def embeddings() -> None:
    vectors = client.embed(MODEL, ["a fox", "a whale"]).embeddings
    assert len(vectors) == 2
    assert len(vectors[0]) > 8
    assert len(client.embeddings(MODEL, "a fox").embedding) == len(vectors[0])


run()
