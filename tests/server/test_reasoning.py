"""Thoughts and lazy grammars over HTTP, by llama-server's names."""

import re

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import PROMPT, answers
from tests.server.matchers import Json
from weft.server import create_app
from weft.settings import Settings

THOUGHT = {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tags": ["</t>"], "generation_prompt": "<t>"}


def text_of(answer: Json) -> str:
    return str(answer["choices"][0]["text"] if "choices" in answer else answer["content"])


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_a_thought_ends_with_its_budget_and_the_answer_follows_the_grammar(client: httpx.AsyncClient, path: str) -> None:
    body = {
        **THOUGHT,
        "prompt": PROMPT,
        "reasoning_budget_tokens": 5,
        "reasoning_budget_message": " Enough.",
        "grammar": 'root ::= "{" [a-z] "}"',
    }
    answer = (await client.post(path, json=body)).json()
    assert re.search(r" Enough\. ?</t>\{[a-z]\}$", text_of(answer)), answer


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_a_grammar_waits_for_its_trigger(client: httpx.AsyncClient, path: str) -> None:
    body = {
        "prompt": PROMPT,
        "seed": 1,
        "n_predict": 200,
        "grammar": 'root ::= "lived in" "<call>" [0-9]',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "lived in"}],
    }
    answer = (await client.post(path, json=body)).json()
    assert re.fullmatch(r"[^.]+ lived in<call>[0-9]", text_of(answer)), answer
    if path == "/completion":
        settings = answer["generation_settings"]
        assert (settings["grammar_lazy"], settings["grammar_triggers"]) == (True, body["grammar_triggers"])


async def test_a_token_is_shown_that_is_preserved(client: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "grammar": 'root ::= "yes"', "preserved_tokens": ["</s>"], "logit_bias": [[2, 1000]]}
    assert (await client.post("/completion", json=body)).json()["content"] == "yes</s>"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"reasoning_budget_message": "Enough.</t>"}, "reasoning_budget_message"),
        ({"reasoning_budget_message": "x" * 20_000}, "reasoning_budget_message"),
        ({"reasoning_budget_message": "x", "reasoning_budget_end_tags": ["</t>"] * 17}, "reasoning_budget_end_tags"),
        ({"reasoning_budget_message": "x", "reasoning_budget_end_tags": ["t" * 300]}, "reasoning_budget_end_tags"),
    ],
)
async def test_what_is_wrong_with_a_thoughts_end_is_told_of_what_says_so(
    client: httpx.AsyncClient, asked: Json, param: str
) -> None:
    refused = await client.post("/completion", json={**THOUGHT, "prompt": PROMPT, "reasoning_budget_tokens": 5, **asked})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


async def test_the_servers_budget_and_message_hold_where_a_body_has_none() -> None:
    settings = Settings(reasoning_budget=2, reasoning_budget_message=" Done.")
    engine = weft.Engine(n_slots=2, n_ctx=1024, n_threads=1)
    async with AsyncTestClient(create_app(engine, settings)) as client:
        await answers(client, 200)
        answer = await client.post("/completion", json={**THOUGHT, "prompt": PROMPT, "n_predict": 30, "return_tokens": True})
        content = answer.json()["content"]
        begun = engine.model.detokenize(answer.json()["tokens"][:2])
        assert re.match(re.escape(begun) + r" ? Done\. ?</t>", content), content
        free = {**THOUGHT, "prompt": PROMPT, "n_predict": 30, "reasoning_budget_tokens": -1}
        answer = await client.post("/completion", json=free)
        assert "</t>" not in answer.json()["content"]
