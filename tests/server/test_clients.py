"""What existing clients send, replayed: every value in it reaches the engine, and a real one answers in the shape they read.

The bodies are those of `client_bodies`, with values that are not the defaults.
"""

import json
import math
from typing import Any

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.server.client_bodies import OPEN_WEBUI, OPEN_WEBUI_TITLE, SCHEMA, SILLYTAVERN
from tests.server.live import events_of
from tests.server.matchers import TEXT, Json
from tests.server.scripted import ScriptedEngine
from weft import QueueFullError, Request
from weft.request.internal import InternalRequest
from weft.server import create_app

SILLYTAVERN_MEANS: dict[str, Json] = {
    "n": 1,
    "max_tokens": 12,
    "stop": ["\nUser:", "\nRex:"],
    "seed": 42,
    "samplers": ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"),
    "temperature": 0.75,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2.0,
    "top_k": 30,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.95,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "min_keep": 1,
    "repeat_penalty": 1.2,
    "repeat_last_n": 200,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 100,
    "dry_sequence_breakers": ["\n", ":", '"', "*", "Rex"],
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "adaptive_target": 0.4,
    "adaptive_decay": 0.8,
    "logit_bias": [(66, 1.5), (65, -math.inf)],
    "ignore_eos": True,
    "logprobs": 10,
    "use_cache": True,
}

OPEN_WEBUI_MEANS: dict[str, Json] = {
    "n": 1,
    "max_tokens": 12,
    "stop": ["User:", "\n\n"],
    "seed": 42,
    "temperature": 0.75,
    "top_k": 30,
    "top_p": 0.9,
    "min_p": 0.1,
    "tfs_z": 0.9,
    "repeat_penalty": 1.2,
    "repeat_last_n": 200,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "mirostat": 1,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "logit_bias": [(66, 5), (65, -100)],
}


async def request_for(route: str, body: dict[str, Json]) -> Request:
    """The request that reaches the engine."""
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(route, json=body)
    assert answer.status_code == 429, answer.text
    [request] = engine.requests
    return request


async def test_sillytavern_is_understood_in_full() -> None:
    request = msgspec.structs.asdict(await request_for("/completion", SILLYTAVERN))
    defaults = msgspec.structs.asdict(InternalRequest(prompt=[ord(character) for character in SILLYTAVERN["prompt"]]))
    assert request == defaults | SILLYTAVERN_MEANS


async def test_sillytaverns_grammar_and_schema_are_understood() -> None:
    plain = SILLYTAVERN | {"mirostat": 0}
    assert (await request_for("/completion", plain | {"grammar": 'root ::= "a"'})).grammar == 'root ::= "a"'
    # Where there is a schema, it sends no grammar.
    with_schema = {name: value for name, value in plain.items() if name != "grammar"} | {"json_schema": SCHEMA}
    assert json.loads((await request_for("/completion", with_schema)).schema or "") == SCHEMA


async def test_sillytavern_is_answered_in_the_shape_it_reads(client: httpx.AsyncClient) -> None:
    answer = await client.post("/completion", json=SILLYTAVERN)
    assert answer.status_code == 200, answer.text
    *tokens, end = [json.loads(event) for event in events_of(answer.text)]
    assert end["stop"]
    assert 1 <= len(tokens) <= 12
    for token in tokens:
        # It shows the text and, beside it, what else was likely.
        assert (token["content"], token["stop"]) == (TEXT, False)
        [told] = token["completion_probabilities"]
        assert [candidate["tok_str"] for candidate in told["probs"]] == [top["token"] for top in told["top_logprobs"]]
        assert len(told["probs"]) == 10
    whole = await client.post("/completion", json=SILLYTAVERN | {"stream": False})
    assert whole.json()["content"] == "".join(token["content"] for token in tokens)


async def test_sillytavern_finds_what_it_looks_for_before_it_connects(client: httpx.AsyncClient) -> None:
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["storyteller"]
    # It takes the checksum of the template, and the context from the settings.
    props = (await client.get("/props")).json()
    assert isinstance(props["chat_template"], str)
    assert props["default_generation_settings"]["n_ctx"] == 1024
    tokens = (await client.post("/tokenize", json={"content": "Rex"})).json()["tokens"]
    assert (await client.post("/detokenize", json={"tokens": tokens})).json()["content"].strip() == "Rex"
    assert len((await client.get("/slots")).json()) == 4


async def test_open_webui_is_understood_in_full() -> None:
    request = msgspec.structs.asdict(await request_for("/v1/chat/completions", OPEN_WEBUI))
    del request["prompt"]
    defaults = msgspec.structs.asdict(InternalRequest(prompt=()))
    del defaults["prompt"]
    # A chat keeps what was answered in it.
    assert request == defaults | OPEN_WEBUI_MEANS | {"checkpoints_at": request["checkpoints_at"], "cache_answers": True}


async def test_open_webui_is_answered_in_the_shape_it_reads(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=OPEN_WEBUI)
    assert answer.status_code == 200, answer.text
    *frames, done = events_of(answer.text)
    assert done == "[DONE]"
    chunks: list[Any] = [json.loads(frame) for frame in frames]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/chat/completions"])
async def test_open_webui_gets_a_title(client: httpx.AsyncClient, route: str) -> None:
    answer = await client.post(route, json=OPEN_WEBUI_TITLE)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == TEXT
