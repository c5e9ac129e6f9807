"""`langchain-openai`: a chain, a stream, tools and structured answers of each of its methods."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from report import MODEL, feature, picture, run, url

where = {"base_url": f"{url()}/v1", "api_key": "none", "model": MODEL, "max_retries": 0}
model = ChatOpenAI(**where, timeout=60)


@tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: {days} wet days"


class Pet(BaseModel):
    """A pet."""

    kind: str
    age: int


@feature("chat")
def chat() -> None:
    answer = model.invoke([("system", "Be short."), ("user", "Hello!")])
    assert answer.content == "You said: Hello!"
    assert answer.usage_metadata["output_tokens"] > 0


@feature("stream")
def stream() -> None:
    assert "".join(chunk.content for chunk in model.stream("Hello!")) == "You said: Hello!"


@feature("tools")
def tools() -> None:
    with_tools = model.bind_tools([get_weather])
    asked = [("user", "What is the weather in Paris for 3 days?")]
    called = with_tools.invoke(asked)
    results = [get_weather.invoke(call) for call in called.tool_calls]
    assert with_tools.invoke([*asked, called, *results]).content == "The tool said: Paris: 3 wet days"


@feature("parallel tools")
def parallel_tools() -> None:
    both = 'Do get_weather({"city": "Rome", "days": 1}) and get_weather({"city": "Oslo", "days": 2}).'
    chunks = list(model.bind_tools([get_weather]).stream(both))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert [call["args"]["city"] for call in whole.tool_calls] == ["Rome", "Oslo"]


for method in ("function_calling", "json_mode", "json_schema"):

    @feature(f"structured answer by {method}")
    def structured(method: str = method) -> None:
        asked = f"A 'dog' that is 3 years old, as a pet in JSON: {Pet.model_json_schema()}".replace("'", '"')
        assert model.with_structured_output(Pet, method=method).invoke(asked).age == 3


@feature("vision")
def vision() -> None:
    source = {"type": "image", "base64": picture(), "mime_type": "image/png"}
    assert (
        "<__media__>" in model.invoke([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, source]}]).content
    )


@feature("embeddings")
def embeddings() -> None:
    vectors = OpenAIEmbeddings(**where, check_embedding_ctx_length=False).embed_documents(["a fox", "a whale"])
    assert len(vectors) == 2


@feature("responses")
def responses() -> None:
    assert ChatOpenAI(**where, use_responses_api=True).invoke("Hello!").text == "You said: Hello!"


run()
