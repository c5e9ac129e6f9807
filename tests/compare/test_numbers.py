"""Weft's numbers are llama-server's."""

from pathlib import Path

import numpy as np
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.compare.numbers import TOYS, ask, kept
from tests.server.conftest import answers
from weft.cli.main import parse
from weft.server import create_app


def test_every_toys_numbers_are_kept() -> None:
    assert sorted(kept()) == sorted(TOYS), "python -m tests.compare.numbers --llama-server PROGRAM"


@pytest.mark.parametrize("name", TOYS)
async def test_vectors_scores_and_logprobs_are_llama_servers(name: str, tmp_path: Path) -> None:
    toy = TOYS[name]
    settings, _ = parse([*toy.write(tmp_path), "-t", "1"], {})
    engine = weft.Engine(settings.model, config=settings.engine)
    async with AsyncTestClient(create_app(engine, settings)) as client:
        await answers(client, 200)
        told = [await ask(client, question) for question in toy.questions]
    expected = kept()[name]
    assert len(told) == len(expected)
    for question, ours, theirs in zip(toy.questions, told, expected, strict=True):
        assert [len(row) for row in ours] == [len(row) for row in theirs]
        match question.path:
            case "/embeddings":
                assert min(_cosine(*rows) for rows in zip(ours, theirs, strict=True)) >= 0.9999
            case "/rerank":
                assert ours[0] == pytest.approx(theirs[0], rel=1e-3, abs=1e-3)
            case _:
                assert ours[0] == theirs[0], "the tokens"
                # The demo model's weights are of 8 bits, and so are the numbers that they are multiplied by.
                assert ours[1] == pytest.approx(theirs[1], abs=0.05 if name == "adapters" else 0.02)


def _cosine(one: list[float], other: list[float]) -> float:
    a, b = np.array(one), np.array(other)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
