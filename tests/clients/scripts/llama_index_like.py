"""llama-index's `OpenAILike`: completions, chats, streams, tools and vectors."""

from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from report import MODEL, feature, picture, run, url

where = {"api_base": f"{url()}/v1", "api_key": "none", "timeout": 60.0, "max_retries": 0}
talks = OpenAILike(model=MODEL, is_chat_model=True, is_function_calling_model=True, **where)
writes = OpenAILike(model=MODEL, is_chat_model=False, max_tokens=8, **where)


def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: {days} wet days"


class Pet(BaseModel):
    """A pet."""

    kind: str
    age: int


@feature("chat")
def chat() -> None:
    assert talks.chat([ChatMessage(role="user", content="Hello!")]).message.content == "You said: Hello!"


@feature("stream")
def stream() -> None:
    chunks = list(talks.stream_chat([ChatMessage(role="user", content="Hello!")]))
    assert chunks[-1].message.content == "You said: Hello!"


@feature("tools")
def tools() -> None:
    asked = "What is the weather in Paris for 3 days?"
    answer = talks.predict_and_call([FunctionTool.from_defaults(get_weather)], user_msg=asked)
    assert answer.response == "Paris: 3 wet days"


@feature("JSON schema")
def schema() -> None:
    answer = talks.as_structured_llm(Pet).complete("The tool for a pet: a 'dog' that is 3 years old")
    assert answer.raw == Pet(kind="dog", age=3)


@feature("vision")
def vision() -> None:
    parts = [TextBlock(text="What is this?"), ImageBlock(image=picture().encode(), image_mimetype="image/png")]
    assert "<__media__>" in talks.chat([ChatMessage(role="user", blocks=parts)]).message.content


@feature("text completion")
def completion() -> None:
    assert writes.complete("Once upon a time,").text
    assert "".join(chunk.delta for chunk in writes.stream_complete("Once upon a time,"))


@feature("embeddings")
def embeddings() -> None:
    reads = OpenAILikeEmbedding(model_name=MODEL, **where)
    assert len(reads.get_text_embedding_batch(["a fox", "a whale"])) == 2


run()
