"""`openai-agents`: an agent with a tool, handed over, and with an answer of a class; over chats and over responses."""

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel
from report import MODEL, feature, run, url

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{url()}/v1", api_key="none", max_retries=0, timeout=60)


@function_tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: {days} wet days"


class Pet(BaseModel):
    """A pet."""

    kind: str
    age: int


ASKED = "What is the weather in Paris for 3 days?"

for name, model in {
    "chats": OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
    "responses": OpenAIResponsesModel(model=MODEL, openai_client=client),
}.items():

    @feature(f"tools ({name})")
    def tools(model: object = model) -> None:
        agent = Agent(name="weather", instructions="Be short.", model=model, tools=[get_weather])
        assert Runner.run_sync(agent, ASKED).final_output == "The tool said: Paris: 3 wet days"

    @feature(f"stream ({name})")
    def stream(model: object = model) -> None:
        import asyncio  # noqa: PLC0415

        async def read() -> str:
            agent = Agent(name="weather", model=model, tools=[get_weather], model_settings=ModelSettings(include_usage=True))
            ran = Runner.run_streamed(agent, ASKED)
            deltas = [
                event.data.delta
                async for event in ran.stream_events()
                if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
            ]
            assert ran.final_output == "".join(deltas)
            return ran.final_output

        assert asyncio.run(read()) == "The tool said: Paris: 3 wet days"

    @feature(f"handoff ({name})")
    def handoff(model: object = model) -> None:
        poet = Agent(name="poet", model=model)
        agent = Agent(name="triage", model=model, handoffs=[poet])
        ran = Runner.run_sync(agent, "Transfer to the poet with your tool")
        assert ran.last_agent.name == "poet"

    @feature(f"JSON schema ({name})")
    def schema(model: object = model) -> None:
        agent = Agent(name="pets", model=model, output_type=Pet)
        assert Runner.run_sync(agent, "A 'dog' that is 3 years old").final_output == Pet(kind="dog", age=3)


run()
