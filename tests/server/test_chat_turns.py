"""Chats of models whose memory cannot be cut: each turn goes on from a snapshot at the end of an earlier one, or behind it."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.engine.tiny_models import Kind
from tests.server.conftest import answers
from weft.server import create_app

SYSTEM = {"role": "system", "content": "You are a lighthouse keeper, and you answer in rhymes."}
FIRST = {"role": "user", "content": "Tell me of the storm last winter, please."}
TOLD = {"role": "assistant", "content": "The wind was loud, the waves were tall."}
NEXT = {"role": "user", "content": "And of the ship that you saved?"}
EDITED = {"role": "user", "content": "What of the gull on the roof?"}


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
async def test_a_next_and_an_edited_turn_compute_only_what_is_new(tiny_models: Mapping[Kind, Path], kind: Kind) -> None:
    engine = weft.Engine(tiny_models[kind], n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1)
    async with AsyncTestClient(create_app(engine)) as client:
        await answers(client, 200)

        async def n_cached(*messages: dict[str, str]) -> int:
            body = {"messages": messages, "max_tokens": 4, "temperature": 0}
            usage = (await client.post("/v1/chat/completions", json=body)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        async def n_tokens(*messages: dict[str, str]) -> int:
            body = {"messages": messages, "add_generation_prompt": False}
            text = (await client.post("/apply-template", json=body)).json()["prompt"]
            tokens = (await client.post("/tokenize", json={"content": text, "add_special": True})).json()["tokens"]
            return len(tokens)

        assert await n_cached(SYSTEM, FIRST) == 0
        # The answer that the client sends back is not the one that was drawn, so the question is where they part.
        first = await n_tokens(SYSTEM, FIRST)
        assert await n_cached(SYSTEM, FIRST, TOLD, NEXT) >= first
        # A last message of the assistant is left open, to be gone on with. A token is a byte here.
        told = await n_tokens(SYSTEM, FIRST, TOLD) + len("<|im_end|>\n")
        assert await n_cached(SYSTEM, FIRST, TOLD, EDITED) >= told
        # Another chat of the same system shares its message.
        assert await n_cached(SYSTEM, EDITED) >= await n_tokens(SYSTEM)
