"""`pydantic-ai`: an agent with tools and with an answer of a class, over chats, responses and Anthropic's messages."""

from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from report import MODEL, feature, picture, run, url

openai_like = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url()}/v1", api_key="none", max_retries=0, timeout=60))
anthropic_like = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url(), api_key="none", max_retries=0, timeout=60))

MODELS = {
    "chats": OpenAIChatModel(MODEL, provider=openai_like),
    "responses": OpenAIResponsesModel(MODEL, provider=openai_like),
    "messages": AnthropicModel(MODEL, provider=anthropic_like),
}


class Pet(BaseModel):
    """A pet."""

    kind: str
    age: int


def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: {days} wet days"


def features(name: str, model: Any) -> None:  # noqa: ANN401 (any of the three)
    """What is tried of one of the dialects."""

    @feature(f"chat ({name})")
    def chat() -> None:
        assert Agent(model).run_sync("Hello!").output == "You said: Hello!"

    @feature(f"stream ({name})")
    def stream() -> None:
        answer = Agent(model).run_stream_sync("Hello!")
        assert "".join(answer.stream_text(delta=True, debounce_by=None)) == "You said: Hello!"

    @feature(f"tools ({name})")
    def tools() -> None:
        agent = Agent(model, tools=[get_weather])
        assert agent.run_sync("What is the weather in Paris for 3 days?").output == "The tool said: Paris: 3 wet days"

    for kind in (ToolOutput, NativeOutput, PromptedOutput):
        if not (name == "messages" and kind is NativeOutput):

            @feature(f"{kind.__name__} ({name})")
            def structured(kind: Any = kind) -> None:  # noqa: ANN401
                answer = Agent(model, output_type=kind(Pet)).run_sync('A "dog" that is 3 years old').output
                assert (answer.kind, answer.age) == ("dog", 3)

    @feature(f"vision ({name})")
    def vision() -> None:
        import base64  # noqa: PLC0415

        parts = ["What is this?", BinaryContent(base64.b64decode(picture()), media_type="image/png")]
        assert "<__media__>" in Agent(model).run_sync(parts).output


for name, model in MODELS.items():
    features(name, model)

run()
