"""What flags say is what a request gets that leaves it unsaid."""

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import answers
from tests.server.scripted import ScriptedEngine
from weft.cli.main import parse
from weft.server import create_app

REFUSAL = weft.QueueFullError(8)
"""Every request is refused: it has been seen by then."""


async def request_of(arguments: list[str], path: str, body: dict[str, object]) -> weft.Request:
    """What the engine is asked for by a body, where the server was started with these arguments."""
    settings = parse(arguments, {}).settings
    engine = ScriptedEngine(REFUSAL)
    engine.loaded.set()
    app = create_app(engine.as_engine(), settings)
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        answer: httpx.Response = await client.post(path, json={"prompt": "a", **body})
    assert answer.status_code == 429, answer.text
    [request] = engine.requests
    return request


@pytest.fixture(scope="module", params=["/completion", "/v1/completions"], ids=["llamacpp", "openai"])
def path(request: pytest.FixtureRequest) -> str:
    """The route of either dialect."""
    return str(request.param)


@pytest.fixture(scope="module")
async def unsaid(path: str) -> weft.Request:
    """What the engine is asked for where neither a flag nor the body says anything."""
    return await request_of([], path, {})


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (["--n", "3"], {"n": 3}),
        (["-n", "5"], {"max_tokens": 5}),
        (["-s", "7"], {"seed": 7}),
        (["-r", "User:", "-r", "\\n"], {"stop": ["User:", "\n"]}),
        (["--samplers", "top_k;temp"], {"samplers": ("top_k", "temperature")}),
        (["--temp", "0.5", "--dynatemp-range", "0.25", "--dynatemp-exp", "2"], {
            "temperature": 0.5, "dynatemp_range": 0.25, "dynatemp_exponent": 2,
        }),
        (["--top-k", "3", "--top-p", "0.5", "--min-p", "0.25"], {"top_k": 3, "top_p": 0.5, "min_p": 0.25}),
        (["--typical", "0.5", "--top-nsigma", "2", "--tfs", "0.5"], {"typical_p": 0.5, "top_n_sigma": 2, "tfs_z": 0.5}),
        (["--xtc-probability", "0.5", "--xtc-threshold", "0.25"], {"xtc_probability": 0.5, "xtc_threshold": 0.25}),
        (["--min-keep", "2", "--no-penalize-nl"], {"min_keep": 2, "penalize_nl": False}),
        (["--repeat-penalty", "2", "--repeat-last-n", "5"], {"repeat_penalty": 2, "repeat_last_n": 5}),
        (["--presence-penalty", "1", "--frequency-penalty", "2"], {"presence_penalty": 1, "frequency_penalty": 2}),
        (["--dry-multiplier", "1", "--dry-base", "2", "--dry-allowed-length", "3", "--dry-penalty-last-n", "4"], {
            "dry_multiplier": 1, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 4,
        }),
        (["--dry-sequence-breaker", "x"], {"dry_sequence_breakers": ("x",)}),
        (["--mirostat", "2", "--mirostat-ent", "3", "--mirostat-lr", "0.5"], {
            "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.5,
        }),
        (["--adaptive-target", "0.5", "--adaptive-decay", "0.25"], {"adaptive_target": 0.5, "adaptive_decay": 0.25}),
        (["-l", "5+1", "-l", "6-inf"], {"logit_bias": [(5, 1.0), (6, float("-inf"))]}),
        (["--ignore-eos"], {"ignore_eos": True}),
        (["--grammar", "root ::= [a-z]"], {"grammar": "root ::= [a-z]"}),
        (["-j", "{}"], {"json_schema": "{}"}),
        (["--context-shift", "--keep", "5"], {"context_shift": True, "n_keep": 5}),
        (["--keep", "-1"], {"n_keep": None}),
        (["--no-cache-prompt"], {"use_cache": False}),
    ],
)  # fmt: skip
async def test_a_flag_is_the_default_of_a_request(
    arguments: list[str], fields: dict[str, object], path: str, unsaid: weft.Request
) -> None:
    request = await request_of(arguments, path, {})
    # Without a seed each request has its own; OpenAI's dialect has a limit of its own, and llama-server none.
    for field in msgspec.structs.fields(weft.Request):
        expected = fields.get(field.name, getattr(unsaid, field.name))
        assert getattr(request, field.name) == expected, field.name


@pytest.mark.parametrize(
    ("arguments", "body", "field", "value"),
    [
        (["--n", "3"], {"n": 2}, "n", 2),
        (["--temp", "0.5"], {"temperature": 0.25}, "temperature", 0.25),
        (["-r", "User:"], {"stop": ["x"]}, "stop", ["x"]),
        (["--no-cache-prompt"], {"cache_prompt": True}, "use_cache", True),
        (["--samplers", "top_k"], {"samplers": ["top_p"]}, "samplers", ("top_p",)),
    ],
)
async def test_what_a_request_says_wins_over_the_flag(
    arguments: list[str], body: dict[str, object], field: str, value: object, path: str
) -> None:
    assert getattr(await request_of(arguments, path, body), field) == value


async def test_every_name_of_the_model_is_listed() -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    settings = parse(["--alias", "one,two", "--tags", "small,own"], {}).settings
    async with AsyncTestClient(create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1), settings)) as client:
        await answers(client, 200)
        listed = (await client.get("/v1/models")).json()
    [card], [model] = listed["data"], listed["models"]
    assert (card["id"], card["aliases"]) == ("one", ["one", "two"])
    assert card["tags"] == model["tags"] == ["own", "small"]
