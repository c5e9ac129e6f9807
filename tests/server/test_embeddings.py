"""`/embedding`, `/v1/embeddings` and `/rerank`, in every shape."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.engine.tiny_encoders import ENCODERS, Encoder, vector, write_tiny_encoder
from tests.server.conftest import answers
from tests.server.matchers import matching
from weft.cli.main import parse
from weft.config import Pooling
from weft.server import create_app
from weft.settings import Settings


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[Encoder, Path]:
    """A small random model of each architecture."""
    folder = tmp_path_factory.mktemp("encoders")
    paths = {kind: folder / f"{kind}.gguf" for kind in ENCODERS}
    for kind, path in paths.items():
        write_tiny_encoder(kind, path)
    return paths


@asynccontextmanager
async def client_of(
    path: Path, settings: Settings | None = None, pooling: Pooling | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    engine = weft.Engine(path, n_slots=2, n_ctx=512, n_threads=1, pooling=pooling)
    async with AsyncTestClient(create_app(engine, settings or Settings(alias="tiny", metrics=True))) as client:
        await answers(client, 200)
        yield client


@pytest.fixture(scope="module")
async def bert(encoders: dict[Encoder, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(encoders["bert"]) as client:
        yield client


@pytest.fixture(scope="module")
async def reranker(encoders: dict[Encoder, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(encoders["reranker"]) as client:
        yield client


def refusal(answer: httpx.Response) -> tuple[str, str | None]:
    """What kind of error an answer is, and the field that it names."""
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == {"invalid_request_error": 400, "not_supported_error": 501}[error["type"]]
    return error["type"], error.get("param")


def unit(tokens: list[int]) -> object:
    row = vector("bert", tokens)
    return pytest.approx(list(row / np.linalg.norm(row)), abs=1e-3)


A, B = [2, 5, 3], [2, 6, 3]
"""The tokens of the texts "a" and "b"."""


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("a", [A]), (["a", "b"], [A, B]), ([5, 6], [[5, 6]]), ([[5, 6], [7]], [[5, 6], [7]]), (["a", [6]], [A, [6]])],
    ids=["text", "texts", "tokens", "lists", "mixed"],
)
async def test_openai_tells_a_vector_for_each_text(bert: httpx.AsyncClient, given: object, tokens: list[list[int]]) -> None:
    answer = await bert.post("/v1/embeddings", json={"input": given, "model": "any"})
    n_tokens = sum(map(len, tokens))
    assert answer.json() == {
        "object": "list",
        "data": [{"object": "embedding", "embedding": unit(text), "index": i} for i, text in enumerate(tokens)],
        "model": "tiny",
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }


async def test_openai_tells_base64_of_32_bits(bert: httpx.AsyncClient) -> None:
    answer = await bert.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"})
    told = answer.json()["data"][0]
    assert told["encoding_format"] == "base64"
    assert list(np.frombuffer(base64.b64decode(told["embedding"]), dtype="<f4")) == unit(A)


async def test_dimensions_cut_a_vector_and_bring_it_back_to_its_length(bert: httpx.AsyncClient) -> None:
    answer = await bert.post("/v1/embeddings", json={"input": "a", "dimensions": 8})
    row = vector("bert", A)[:8]
    assert answer.json()["data"][0]["embedding"] == pytest.approx(list(row / np.linalg.norm(row)), abs=1e-3)
    refused = await bert.post("/v1/embeddings", json={"input": "a", "dimensions": 33})
    assert refusal(refused) == ("invalid_request_error", "dimensions")


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
@pytest.mark.parametrize("name", ["content", "input"])
async def test_llama_server_tells_the_rows_of_each_text(bert: httpx.AsyncClient, path: str, name: str) -> None:
    answer = await bert.post(path, json={name: ["a", "b"]})
    assert answer.json() == [{"index": 0, "embedding": [unit(A)]}, {"index": 1, "embedding": [unit(B)]}]


async def test_one_text_beside_images_that_are_none_is_answered_as_in_2024(bert: httpx.AsyncClient) -> None:
    answer = await bert.post("/embedding", json={"content": "a", "image_data": []})
    assert answer.json() == {"embedding": unit(A)}
    # What had no place there, and what asks for nothing of then.
    several = await bert.post("/embedding", json={"content": ["a", "b"], "image_data": []})
    assert [one["index"] for one in several.json()] == [0, 1]
    for body in ({"content": "a", "image_data": None}, {"input": "a", "image_data": []}):
        assert (await bert.post("/embedding", json=body)).json() == [{"index": 0, "embedding": [unit(A)]}]


@pytest.mark.parametrize("tokens", [[5], [5, 6]], ids=str)
async def test_rows_of_tokens_are_no_vector_of_2024_however_few_they_are(
    encoders: dict[Encoder, Path], tokens: list[int]
) -> None:
    async with client_of(encoders["bert"], pooling="none") as client:
        (told,) = (await client.post("/embedding", json={"content": tokens, "image_data": []})).json()
    assert (told["index"], len(told["embedding"])) == (0, len(tokens))


async def test_embd_normalize_of_a_request_goes_before_that_of_the_server(encoders: dict[Encoder, Path]) -> None:
    async with client_of(encoders["bert"], Settings(embd_normalize=-1)) as client:
        (plain,) = (await client.post("/embedding", json={"content": "a"})).json()
        (scaled,) = (await client.post("/embedding", json={"content": "a", "embd_normalize": 2})).json()
    assert plain["embedding"][0] == pytest.approx(list(vector("bert", A)), abs=1e-2)
    assert scaled["embedding"][0] == unit(A)


async def test_nothing_pooled_is_a_row_for_each_token_and_no_answer_of_openais(encoders: dict[Encoder, Path]) -> None:
    async with client_of(encoders["bert"], pooling="none") as client:
        (told,) = (await client.post("/embeddings", json={"content": [5, 6, 7]})).json()
        assert (len(told["embedding"]), len(told["embedding"][0])) == (3, 32)
        refused = await client.post("/v1/embeddings", json={"input": "a"})
        assert refusal(refused) == ("invalid_request_error", "input")


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
async def test_jina_ranks_the_best_first(reranker: httpx.AsyncClient, path: str) -> None:
    documents = ["c d", {"text": "e f g"}, "a"]
    answer = await reranker.post(path, json={"query": "a b", "documents": documents, "return_documents": True})
    told = answer.json()
    scores = [each["relevance_score"] for each in told["results"]]
    assert scores == sorted(scores, reverse=True)
    texts = {each["index"]: each["document"] for each in told["results"]}
    assert texts == {0: {"text": "c d"}, 1: {"text": "e f g"}, 2: {"text": "a"}}
    assert (told["object"], told["model"], told["usage"]["prompt_tokens"]) == ("list", "tiny", 24)
    best = await reranker.post(path, json={"query": "a b", "documents": documents, "top_n": 1})
    assert best.json()["results"] == [{"index": told["results"][0]["index"], "relevance_score": scores[0]}]


async def test_tei_ranks_in_a_bare_list(reranker: httpx.AsyncClient) -> None:
    answer = await reranker.post("/rerank", json={"query": "a b", "texts": ["c d", "e f g"], "return_text": True})
    told = answer.json()
    assert {each["index"]: each["text"] for each in told} == {0: "c d", 1: "e f g"}
    assert told[0]["score"] >= told[1]["score"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/embedding", {}, "content"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [[]]}, "input"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/embedding", {"content": [5] * 129}, "content"),
        ("/embedding", {"content": "a", "embd_normalize": -2}, "embd_normalize"),
        ("/embedding", {"content": "a", "embd_normalize": 2**40}, "embd_normalize"),
        ("/v1/embeddings", {"input": "a", "dimensions": 2**40}, "dimensions"),
        ("/embedding", {"content": "a", "image_data": [{"id": 1}]}, "image_data"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(bert: httpx.AsyncClient, path: str, body: object, param: str) -> None:
    answer = await bert.post(path, json=body)
    assert refusal(answer) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format is 'hex'; it must be float or base64"),
        ("/embedding", {"content": "a", "embd_normalize": -2}, "embd_normalize is -2; it must be -1 for none, .*"),
    ],
)
async def test_a_refusal_says_what_would_be_right(bert: httpx.AsyncClient, path: str, body: object, message: str) -> None:
    answer = await bert.post(path, json=body)
    assert answer.json()["error"]["message"] == matching(message)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "texts": []}, "texts"),
        ({"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ({"query": "a", "texts": ["b"], "truncate": True}, "truncate"),
        ({"query": "a", "documents": ["b " * 130]}, "documents"),
    ],
)
async def test_what_cannot_be_ranked_is_refused_by_name(reranker: httpx.AsyncClient, body: object, param: str) -> None:
    assert refusal(await reranker.post("/rerank", json=body)) == ("invalid_request_error", param)


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_an_encoder_continues_no_text(bert: httpx.AsyncClient, path: str) -> None:
    answer = await bert.post(path, json={"prompt": "a"})
    assert refusal(answer) == ("not_supported_error", None)
    assert refusal(await bert.post("/rerank", json={"query": "a", "texts": ["b"]})) == ("not_supported_error", None)


async def test_a_server_restricted_to_vectors_continues_no_text(model_path: Path) -> None:
    async with client_of(model_path, Settings(embeddings=True)) as client:
        assert refusal(await client.post("/completion", json={"prompt": "a"})) == ("not_supported_error", None)
        assert (await client.post("/embedding", json={"content": "a"})).status_code == 200


async def test_a_server_restricted_to_ranking_continues_no_text(encoders: dict[Encoder, Path]) -> None:
    settings = parse(["-m", str(encoders["reranker"]), "--rerank"], {}).settings
    async with client_of(encoders["reranker"], settings) as client:
        for path in ("/completion", "/v1/completions"):
            refused = await client.post(path, json={"prompt": "a"})
            assert refusal(refused) == ("not_supported_error", None)
            assert "without `--reranking`" in refused.json()["error"]["message"], "not that it is an encoder"
        assert (await client.post("/rerank", json={"query": "a", "documents": ["b"]})).status_code == 200


async def test_the_server_tells_what_vectors_take(bert: httpx.AsyncClient) -> None:
    await bert.post("/embedding", json={"content": "a"})
    text = (await bert.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines["weft:embedding_texts_total"]) >= 1
    assert float(lines['weft:embedding_tokens_total{source="computed"}']) >= 3
    assert float(lines["weft:embedding_context_bytes"]) > 0
    assert (await bert.get("/props")).json()["pooling"] == "cls"
    assert (await bert.get("/v1/models")).json()["models"][0]["capabilities"] == ["embedding"]


async def test_a_large_body_of_tokens_is_read_as_a_small_one(bert: httpx.AsyncClient) -> None:
    answer = await bert.post("/v1/embeddings", json={"input": [[5] * 100] * 500})
    assert len(answer.json()["data"]) == 500
