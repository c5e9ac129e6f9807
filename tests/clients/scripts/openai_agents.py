"""`openai-agents`: an agent with a tool, handed over, and with an answer of a class; over chats and over responses."""

import asyncio
from collections.abc import Callable

from agents import Agent, Model, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel
from report import MODEL, feature, run, task, url

set_tracing_disabled(True)


@function_tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: {days} wet days"


@function_tool
def read(page: int) -> str:
    """A page of a book."""
    return " ".join(f"This is line {nth} of page {page}." for nth in range(20))


RULES = "\n".join(
    f"Rule {nth} says what to do where a reader asks for the {nth}th time, and it is as long." for nth in range(400)
)
"""Of each of four agents; some 7,000 tokens."""


class Pet(BaseModel):
    """A pet."""

    kind: str
    age: int


ASKED = "What is the weather in Paris for 3 days?"


def features(name: str, model: Callable[[], Model]) -> None:
    """What is tried of either dialect. Each has a model of its own, as each has an event loop of its own."""

    @feature(f"tools ({name})")
    def tools() -> None:
        agent = Agent(name="weather", instructions="Be short.", model=model(), tools=[get_weather])
        assert Runner.run_sync(agent, ASKED).final_output == "The tool said: Paris: 3 wet days"

    @feature(f"stream ({name})")
    def stream() -> None:
        async def read() -> tuple[str, str]:
            ran = Runner.run_streamed(Agent(name="weather", model=model(), tools=[get_weather]), ASKED)
            deltas = [
                event.data.delta
                async for event in ran.stream_events()
                if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
            ]
            return ran.final_output, "".join(deltas)

        assert asyncio.run(read()) == ("The tool said: Paris: 3 wet days",) * 2

    @feature(f"handoff ({name})")
    def handoff() -> None:
        agent = Agent(name="triage", model=model(), handoffs=[Agent(name="poet", model=model())])
        assert Runner.run_sync(agent, "Transfer to the poet with your tool").last_agent.name == "poet"

    @feature(f"JSON schema ({name})")
    def schema() -> None:
        agent = Agent(name="pets", model=model(), output_type=Pet)
        assert Runner.run_sync(agent, "A 'dog' that is 3 years old").final_output == Pet(kind="dog", age=3)

    @feature(f"long task ({name})")
    def long_task() -> None:
        readers = [Agent(name=f"reader {nth}", instructions=RULES, model=model()) for nth in range(4)]
        tools = [reader.as_tool(f"reader_{nth}", "Reads.") for nth, reader in enumerate(readers)]
        agent = Agent(name="books", instructions="Read what you are told to.", model=model(), tools=[read, *tools])
        calls = [f'read({{"page": {nth}}})' for nth in range(12)]
        calls.insert(8, " ".join(f'reader_{nth}({{"input": "Part {nth}"}})' for nth in range(4)))
        assert Runner.run_sync(agent, task(calls), max_turns=20).final_output == "All 13 steps are done."


def client() -> AsyncOpenAI:
    """The client."""
    return AsyncOpenAI(base_url=f"{url()}/v1", api_key="none", max_retries=0, timeout=60)


features("chats", lambda: OpenAIChatCompletionsModel(model=MODEL, openai_client=client()))
features("responses", lambda: OpenAIResponsesModel(model=MODEL, openai_client=client()))

run()
