"""`/infill`, and `suffix` on `/v1/completions`: what belongs between two texts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.engine.tiny_models import write_tiny_model
from tests.server.conftest import answers
from tests.server.live import events_of
from weft.infill import infill_tokens
from weft.server import create_app
from weft.settings import Settings

GAP_TOKENS = {"pre": 4, "suf": 5, "mid": 6, "rep": 7, "sep": 8}
"""Bytes that no text has play the control tokens."""

AROUND = {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n    return c"}
GREEDY = {"n_predict": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", params=[False, True], ids=["prefix first", "suffix first"])
async def coder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[httpx.AsyncClient, weft.Engine, bool]]:
    """A server over a model that knows gaps."""
    path = tmp_path_factory.mktemp("coder") / "coder.gguf"
    write_tiny_model("attention", path, gap_tokens=GAP_TOKENS)
    engine = weft.Engine(path, n_slots=4, n_ctx=2048, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine, Settings(spm_infill=request.param))) as client:
        await answers(client, 200)
        yield client, engine, request.param


def expected(
    engine: weft.Engine, *, suffix_first: bool, middle: str = "", snippets: list[weft.Snippet] | None = None
) -> list[int]:
    def read(text: str) -> list[int]:
        return engine.tokenize(text, add_special=False, parse_special=False)

    prefix, suffix = read(AROUND["input_prefix"]), read(AROUND["input_suffix"])
    more = {"middle": read(middle), "snippets": snippets or [], "suffix_first": suffix_first}
    return infill_tokens(engine.model, prefix, suffix, n_batch=2048, n_ctx=2048, **more)  # type: ignore[arg-type]


async def answer_of(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 (any JSON)
    answer = await client.post(path, json=body | GREEDY)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_gap_is_filled_with_what_follows_its_prompt(coder: tuple[httpx.AsyncClient, weft.Engine, bool]) -> None:
    client, engine, suffix_first = coder
    extra = [{"filename": "a.py", "text": "x = 1"}, {"text": "y = 2"}]
    told = await answer_of(client, "/infill", AROUND | {"prompt": "c =", "input_extra": extra, "return_tokens": True})
    snippets = [weft.Snippet("x = 1", "a.py"), weft.Snippet("y = 2")]
    prompt = expected(engine, suffix_first=suffix_first, middle="c =", snippets=snippets)
    plain = await answer_of(client, "/completion", {"prompt": prompt, "return_tokens": True})
    assert told["tokens"] == plain["tokens"] != []
    assert told["tokens_evaluated"] == len(prompt)
    assert told["prompt"] == plain["prompt"]
    assert plain["timings"]["cache_n"] >= len(prompt) - 1, "it is the same prompt, token for token"


async def test_branches_share_what_stands_around_the_gap(coder: tuple[httpx.AsyncClient, weft.Engine, bool]) -> None:
    client, engine, _ = coder
    body = AROUND | {"prompt": "shared by all", "n": 4, "temperature": 1.0, "n_predict": 4}
    before = engine.stats().n_computed
    answer = await client.post("/infill", json=body)
    assert [one["index"] for one in answer.json()] == [0, 1, 2, 3]
    assert engine.stats().n_computed - before <= answer.json()[0]["tokens_evaluated"], "the prompt was computed once at most"


async def test_a_streamed_answer_is_the_whole_one(coder: tuple[httpx.AsyncClient, weft.Engine, bool]) -> None:
    client, _, _ = coder
    whole = await answer_of(client, "/infill", AROUND)
    answer = await client.post("/infill", json=AROUND | GREEDY | {"stream": True})
    events = [json.loads(event) for event in events_of(answer.text)]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert events[-1]["stop"]


async def test_texts_may_be_tokens_and_either_of_them_nothing(coder: tuple[httpx.AsyncClient, weft.Engine, bool]) -> None:
    client, engine, _ = coder
    tokens = engine.tokenize(AROUND["input_prefix"], add_special=False, parse_special=False)
    mixed = await answer_of(client, "/infill", AROUND | {"input_prefix": [*tokens[:3], AROUND["input_prefix"][3:]]})
    assert mixed["content"] == (await answer_of(client, "/infill", AROUND))["content"]
    for body in ({"input_prefix": "a"}, {"input_suffix": "b"}, {"input_prefix": "", "input_suffix": ""}):
        assert (await answer_of(client, "/infill", body))["tokens_predicted"] == GREEDY["n_predict"]


async def test_what_is_too_long_is_cut_and_not_refused(coder: tuple[httpx.AsyncClient, weft.Engine, bool]) -> None:
    client, engine, _ = coder
    told = await answer_of(client, "/infill", {"input_prefix": "p" * 100_000, "input_suffix": "s" * 100_000})
    assert told["tokens_evaluated"] < engine.limits.n_ctx_slot
    assert told["tokens_predicted"] == GREEDY["n_predict"]


async def test_what_stands_around_a_gap_is_cut_to_a_batch(tmp_path: Path) -> None:
    write_tiny_model("attention", tmp_path / "coder.gguf", gap_tokens=GAP_TOKENS)
    body = {"input_prefix": "p" * 2_000, "input_suffix": "s" * 2_000}
    n_tokens = []
    for n_batch in (64, 128):
        engine = weft.Engine(tmp_path / "coder.gguf", n_slots=1, n_ctx=1024, n_batch=n_batch, n_threads=1)
        async with AsyncTestClient(create_app(engine)) as client:
            await answers(client, 200)
            n_tokens.append((await answer_of(client, "/infill", body))["tokens_evaluated"])
            stream = engine.stream_infill(body["input_prefix"], body["input_suffix"], max_tokens=1, report_progress=True)
            [n_own] = {event.n_prompt async for event in stream if isinstance(event, weft.Progress)}
            assert n_own == n_tokens[-1]
    assert n_tokens[1] - n_tokens[0] == 64, "where both texts are longer than a batch, as much as the batches differ by"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_prefix"),
        (AROUND | {"prompt": [1, 2]}, "prompt"),
        (AROUND | {"input_prefix": 3}, "input_prefix"),
        (AROUND | {"input_extra": "x"}, "input_extra"),
        (AROUND | {"input_extra": [{"filename": "a.py"}]}, "input_extra"),
        (AROUND | {"input_extra": [{"text": "x", "filename": 3}]}, "input_extra"),
        (AROUND | {"system_prompt": "x"}, "system_prompt"),
    ],
    ids=str,
)
async def test_what_is_no_gap_is_refused_by_name(
    coder: tuple[httpx.AsyncClient, weft.Engine, bool], body: dict[str, Any], param: str
) -> None:
    answer = await coder[0].post("/infill", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_openais_suffix_goes_the_same_way(coder: tuple[httpx.AsyncClient, weft.Engine, bool]) -> None:
    client, _, _ = coder
    body = {"prompt": AROUND["input_prefix"], "suffix": AROUND["input_suffix"]}
    told = await answer_of(client, "/v1/completions", body)
    assert told["choices"][0]["text"] == (await answer_of(client, "/infill", AROUND))["content"]
    refused = await client.post("/v1/completions", json=body | {"echo": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")


@pytest.mark.parametrize(("path", "body"), [("/infill", AROUND), ("/v1/completions", {"prompt": "a", "suffix": "b"})])
async def test_a_model_that_knows_no_gaps_says_so(tmp_path: Path, path: str, body: dict[str, str]) -> None:
    write_tiny_model("attention", tmp_path / "tiny.gguf")
    async with AsyncTestClient(create_app(weft.Engine(tmp_path / "tiny.gguf", n_slots=1, n_threads=1))) as client:
        await answers(client, 200)
        answer = await client.post(path, json=body)
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["type"] == "not_supported_error"
    assert error["message"].startswith("Infill is not supported by this model: prefix token is missing. suffix token")
