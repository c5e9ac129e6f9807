"""Where requests are submitted: what takes long must not hold the event loop up, which serves everybody else."""

import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import answers
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from weft import QueueFullError
from weft.server import create_app
from weft.settings import Settings

ASKED: Json = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
"""What every route reads."""


async def is_submitted_aside(route: str, body: Json, **settings: Json) -> bool:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    engine.limits.max_queue = 1_000
    engine.limits.n_ctx_slot = 1 << 20
    async with AsyncTestClient(create_app(engine.as_engine(), Settings.of(settings))) as client:
        await answers(client, 200)
        assert (await client.post(route, json=ASKED | body)).status_code == 429
    [thread] = engine.submitted_on
    return thread != engine.loop_thread


@pytest.fixture(params=["/completion", "/v1/completions", "/v1/chat/completions"], ids=["llamacpp", "openai", "chat"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    "body",
    [{"grammar": 'root ::= "a"'}, {"json_schema": {}}, {"response_format": {"type": "json_object"}}],
    ids=["grammar", "json_schema", "response_format"],
)
async def test_a_grammar_is_read_aside(route: str, body: Json) -> None:
    assert await is_submitted_aside(route, body)


async def test_a_grammar_of_the_settings_is_read_aside(route: str) -> None:
    assert await is_submitted_aside(route, {}, grammar='root ::= "a"')


async def test_a_grammar_of_the_settings_is_tried_aside_at_the_start() -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(grammar='root ::= "a"'))) as client:
        await answers(client, 200)
    [thread] = engine.refused_on
    assert thread != engine.loop_thread


async def test_what_is_tried_at_the_start_is_no_request() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    settings = Settings.of({"grammar": 'root ::= "a"', "logit_bias": ((5, 1.0),)})
    async with AsyncTestClient(create_app(engine, settings)) as client:
        await answers(client, 200)
        assert engine.stream("a", max_tokens=0).request_id == 0


async def test_a_server_that_makes_vectors_only_starts_with_a_grammar_that_nothing_is_written_by() -> None:
    engine = weft.Engine(n_slots=1, n_ctx=256, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(embeddings=True, grammar="root ::= ("))) as client:
        await answers(client, 200)


async def test_breakers_of_repetitions_are_looked_up_aside(route: str) -> None:
    assert await is_submitted_aside(route, {"dry_multiplier": 0.8, "dry_sequence_breakers": ["a", "b"]})


async def test_a_short_request_without_these_is_submitted_at_once(route: str) -> None:
    neutral: Json = {"grammar": "", "response_format": {"type": "text"}, "dry_multiplier": 0, "dry_sequence_breakers": ["a"]}
    assert not await is_submitted_aside(route, neutral)


async def test_a_prompt_of_many_tokens_is_submitted_aside() -> None:
    assert await is_submitted_aside("/completion", {"prompt": [1] * 10_000})


@pytest.mark.parametrize(("n_prompts", "is_aside"), [(100, False), (1_000, True)])
async def test_many_prompts_are_submitted_aside(n_prompts: int, *, is_aside: bool) -> None:
    assert await is_submitted_aside("/completion", {"prompt": ["a"] * n_prompts}) is is_aside
