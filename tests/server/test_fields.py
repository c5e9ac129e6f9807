import math

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.server.conftest import PROMPT
from tests.server.matchers import SOME_TEXT, Json
from tests.server.scripted import ScriptedEngine
from weft import QueueFull, Request
from weft.server import create_app
from weft.settings import Settings


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        ({}, {}),
        ({"n": 3, "seed": 5, "temperature": 0.25}, {"n": 3, "seed": 5, "temperature": 0.25}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": 2**32 - 1}, {"seed": None}),
        ({"seed": 2**32 + 7}, {"seed": 7}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"max_tokens": 2**70}, {"max_tokens": 2**31 - 1}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "", "b"]}, {"stop": ["a", "b"]}),
        ({"logit_bias": {"65": 1, "BC": False}}, {"logit_bias": [(65, 1), (66, -math.inf), (67, -math.inf)]}),
        ({"logit_bias": [[65, -1.5], ["BC", 2]]}, {"logit_bias": [(65, -1.5), (66, 2), (67, 2)]}),
        ({"logit_bias": {"-0": 1}}, {"logit_bias": [(0, 1)]}),
        ({"logit_bias": {"1_0": 1}}, {"logit_bias": [(49, 1), (95, 1), (48, 1)]}),
        ({"logit_bias": {" 7 ": 1}}, {"logit_bias": [(32, 1), (55, 1), (32, 1)]}),
        ({"logit_bias": {"+8": 1}}, {"logit_bias": [(43, 1), (56, 1)]}),
        ({"logit_bias": {"\u0663": 1}}, {"logit_bias": [(0x663, 1)]}),
        ({"logprobs": 3}, {"n_probs": 3}),
        ({"n_probs": 2}, {"n_probs": 2}),
        ({"top_k": 1, "top_p": 0.5, "min_p": 0.25}, {"top_k": 1, "top_p": 0.5, "min_p": 0.25}),
        ({"repeat_penalty": 1.5, "repeat_last_n": 8}, {"repeat_penalty": 1.5, "repeat_last_n": 8}),
        ({"presence_penalty": 0.5, "frequency_penalty": 0.25}, {"presence_penalty": 0.5, "frequency_penalty": 0.25}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"id_slot": 2}, {"slot": 2}),
        ({"id_slot": 4}, {"slot": 0}),
        ({"id_slot": 2**70 + 3}, {"slot": 3}),
        ({"id_slot": -2}, {"slot": 2}),
        ({"id_slot": -1}, {"slot": None}),
        ({"id_slot": None}, {"slot": None}),
    ],
    ids=str,
)
async def test_each_field_reaches_the_engine(path: str, body: dict[str, object], request_: dict[str, object]) -> None:
    engine = ScriptedEngine(QueueFull(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(path, json={"prompt": "ab", **body})
    defaults = msgspec.structs.asdict(Request(prompt=[97, 98], stop=[], logit_bias=[]))
    assert [msgspec.structs.asdict(request) for request in engine.requests] == [defaults | request_]


@pytest.mark.parametrize(("route", "n_probs"), [("/completion", 0), ("/v1/completions", 1)])
async def test_log_probabilities_of_the_drawn_token_alone_are_asked_of_the_engine(route: str, n_probs: int) -> None:
    engine = ScriptedEngine(QueueFull(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(route, json={"prompt": "ab", "logprobs": 0})
    assert [request.n_probs for request in engine.requests] == [n_probs]


async def test_what_a_request_leaves_unsaid_comes_from_the_settings(path: str) -> None:
    settings = {"n_predict": 5, "seed": 6, "temperature": 0.5, "top_k": 7, "ignore_eos": True}
    engine = ScriptedEngine(QueueFull(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(**settings))) as client:  # type: ignore[arg-type]
        await client.post(path, json={"prompt": "ab", "temperature": None, "top_k": 8})
    [request] = engine.requests
    assert (request.max_tokens, request.seed, request.temperature, request.top_k, request.ignore_eos) == (5, 6, 0.5, 8, True)


NEUTRAL = {
    "adaptive_target": -1,
    "dry_multiplier": 0,
    "dynatemp_range": 0,
    "grammar": "",
    "image_data": [],
    "lora": [],
    "min_keep": 0,
    "mirostat": 0,
    "n_indent": 0,
    "penalty_prompt": None,
    "post_sampling_probs": False,
    "response_fields": [],
    "response_format": {"type": "text"},
    "return_progress": False,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    "system_prompt": "",
    "t_max_predict_ms": 0,
    "tfs_z": 1,
    "timings_per_token": False,
    "tools": [],
    "top_n_sigma": -1,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
}

ASKING = {
    "adaptive_target": 0.5,
    "dry_multiplier": 0.8,
    "dynatemp_range": 0.5,
    "grammar": 'root ::= "a"',
    "image_data": [{"id": 1, "data": ""}],
    "json_schema": {},
    "lora": [{"id": 0, "scale": 1}],
    "min_keep": 1,
    "mirostat": 2,
    "n_indent": 4,
    "penalty_prompt": "a",
    "post_sampling_probs": True,
    "response_fields": ["content"],
    "response_format": {"type": "json_object"},
    "return_progress": True,
    "samplers": ["top_k"],
    "system_prompt": {"prompt": "a"},
    "t_max_predict_ms": 100,
    "tfs_z": 0.9,
    "timings_per_token": True,
    "tools": [{"type": "function"}],
    "top_n_sigma": 1,
    "typical_p": 0.9,
    "xtc_probability": 0.5,
}


async def test_a_neutral_value_asks_for_nothing(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "max_tokens": 1, **NEUTRAL})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"dynatemp_range": -1},
        {"grammar": ""},
        {"image_data": ""},
        {"image_data": {}},
        {"lora": {}},
        {"lora": ""},
        {"response_format": {}},
        {"response_format": {"type": None}},
        {"response_fields": ""},
        {"tools": {}},
        {"samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"]},
        {"samplers": ["dry", "penalties", "top_k", "top_p", "min_p", "temperature", "xtc"]},
        {"samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]},
        {"samplers": []},
        {"samplers": ""},
        {"samplers": "ekpmt"},
        {"samplers": "edskypmxt"},
    ],
    ids=str,
)
async def test_every_neutral_value_asks_for_nothing(client: httpx.AsyncClient, path: str, fields: dict[str, Json]) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "max_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"dynatemp_range": 0.1},
        {"grammar": {"root": "a"}},
        {"grammar": 5},
        {"image_data": {"id": 1}},
        {"lora": {"id": 0}},
        {"response_format": {"type": "json_object"}},
        {"response_format": "json"},
        {"tools": {"type": "function"}},
        {"samplers": ["dry"]},
        {"samplers": ["top_k", "penalties", "top_p", "min_p", "temperature"]},
        {"samplers": ["penalties", "top_k", "top_p", "min_p", "temperature", "no_such_sampler"]},
        {"samplers": "kept"},
    ],
    ids=str,
)
async def test_any_other_value_is_said_not_to_be_supported(client: httpx.AsyncClient, path: str, fields: dict[str, Json]) -> None:
    [name] = fields
    answer = await client.post(path, json={"prompt": PROMPT, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert answer.json()["error"]["message"] == f"{name} is not supported; leave it out"


async def test_the_settings_that_are_reported_may_be_sent_back(client: httpx.AsyncClient, path: str) -> None:
    params = (await client.get("/props")).json()["default_generation_settings"]["params"]
    answer = await client.post(path, json={"prompt": PROMPT, **params, "stop": [" "]})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("field", ASKING)
async def test_what_is_not_there_is_refused_by_name(client: httpx.AsyncClient, path: str, field: str) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, field: ASKING[field]})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "code": 400,
            "message": f"{field} is not supported; leave it out",
            "type": "invalid_request_error",
            "param": field,
        }
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, ["a"]]}, "prompt"),
        ({"prompt": [99_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 257}, "n"),
        ({"prompt": "a", "n_cmpl": 257}, "n_cmpl"),
        ({"prompt": "a", "n_cmpl": 0, "n": 1}, "n_cmpl"),
        ({"prompt": "a", "n": 2**70}, "n"),
        ({"prompt": "a", "n_probs": -1}, "n_probs"),
        ({"prompt": "a", "top_k": 2**40}, "top_k"),
        ({"prompt": "a", "top_p": 1e300}, "top_p"),
        ({"prompt": "a", "n_predict": -2}, "n_predict"),
        ({"prompt": "a", "max_tokens": -2}, "max_tokens"),
        ({"prompt": "a", "max_completion_tokens": -7}, "max_completion_tokens"),
        ({"prompt": "a", "n_predict": "many"}, "n_predict"),
        ({"prompt": "a", "n_probs": 1001}, "n_probs"),
        ({"prompt": "a", "logprobs": 3000}, "logprobs"),
        ({"prompt": "a", "logprobs": 2**70}, "logprobs"),
        ({"prompt": "a", "repeat_penalty": 0}, "repeat_penalty"),
        ({"prompt": "a", "repeat_last_n": -2}, "repeat_last_n"),
        ({"prompt": "a", "temperature": []}, "temperature"),
        ({"prompt": "a", "stop": [1]}, "stop"),
        ({"prompt": "a", "logit_bias": [[99_999, 1]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[1, 1]] * 2049}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {str(key): 1 for key in range(2049)}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"a b" * 2048: 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[1, True]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[1]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias"),
        ({"prompt": "a", "stream": "perhaps"}, "stream"),
        ({"prompt": "a", "id_slot": "first"}, "id_slot"),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_a_wrong_field_is_named(client: httpx.AsyncClient, path: str, body: dict[str, Json], param: str) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json() == {"error": {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": param}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 300}, "n is 300; it must be 1 to 256"),
        ({"n_cmpl": 300}, "n_cmpl is 300; it must be 1 to 256"),
        ({"max_tokens": -2}, "max_tokens is -2; it must be -1 or more"),
        ({"max_completion_tokens": -7}, "max_completion_tokens is -7; it must be -1 or more"),
        ({"logprobs": 3000}, "logprobs is 3000; it must be 0 to 1000"),
        ({"n_probs": 3000}, "n_probs is 3000; it must be 0 to 1000"),
        ({"logit_bias": [[1, 1]] * 2049}, "there are 2049 biases; the vocabulary has 2048 pieces"),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_a_message_names_the_field_that_was_sent(
    client: httpx.AsyncClient, path: str, fields: dict[str, Json], message: str
) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, **fields})
    assert answer.json()["error"]["message"] == message


async def test_more_prompts_than_may_ever_wait_are_refused(path: str) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": ["a"] * 9})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert answer.json()["error"]["message"] == "there are 9 prompts; at most 8 may wait"
