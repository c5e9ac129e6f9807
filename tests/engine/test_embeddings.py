"""Vectors of texts and scores of rerankers, from Python."""

import asyncio
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.engine import tiny_bidirectional
from tests.engine.tiny_bidirectional import BIDIRECTIONAL, OTHERS, Bidirectional, Other, write_tiny_bidirectional
from tests.engine.tiny_encoders import CLS, ENCODERS, N_POSITIONS, SEP, TEMPLATE, Encoder, vector, write_tiny_encoder
from tests.engine.tiny_models import Kind, write_tiny_model
from tests.helpers import wait_until
from weft.config import Kernels, Pooling

MAKERS: tuple[Encoder, ...] = ("bert", "nomic", "qwen")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[Encoder, Path]:
    """A small random model of each architecture."""
    folder = tmp_path_factory.mktemp("encoders")
    paths = {kind: folder / f"{kind}.gguf" for kind in ENCODERS}
    for kind, path in paths.items():
        write_tiny_encoder(kind, path)
    return paths


def engine_of(path: Path, pooling: Pooling | None = None) -> weft.Engine:
    return weft.Engine(path, n_slots=2, n_ctx=512, n_threads=1, pooling=pooling)


def texts(n: int) -> Iterator[list[int]]:
    """Texts of all lengths, in tokens that every toy has."""
    draw = random.Random(1)
    return ([draw.randrange(5, 50) for _ in range(1 + 7 * i % (N_POSITIONS - 1))] for i in range(n))


def cosines(a: Any, b: Any) -> np.ndarray:  # noqa: ANN401 (arrays)
    return np.asarray(np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


@pytest.mark.parametrize("kind", MAKERS)
async def test_vectors_are_what_the_model_computes_alone_or_in_batches(encoders: dict[Encoder, Path], kind: Encoder) -> None:
    asked = list(texts(40))
    expected = np.array([vector(kind, text) for text in asked])
    async with engine_of(encoders[kind]) as engine:
        together = np.asarray((await engine.embed(asked, normalize=-1)).vectors)
        assert engine.embedding_stats().n_batches > 1
        alone = np.concatenate([np.asarray((await engine.embed([text])).vectors) for text in asked[:10]])
    assert cosines(together, expected).min() > 0.9999
    assert np.abs(together - expected).max() < 0.01
    assert cosines(alone, expected[:10]).min() > 0.9999
    assert np.allclose(np.linalg.norm(alone, axis=1), 1)


def company(n_longest: int) -> list[list[int]]:
    """Texts of lengths around 64, where the kernels of llama.cpp for CPUs change, in tokens that every toy has."""
    draw = random.Random(2)
    lengths = [1, 62, 65, n_longest, 2, 63, 64, 30, 31, 1, 5, n_longest - 1, 16, 17, 100]
    return [[draw.randrange(5, 50) for _ in range(n)] for n in lengths]


async def alone_and_in_company(engine: weft.Engine, asked: Sequence[list[int]]) -> tuple[Any, list[Any]]:
    """The embeddings of texts, each alone in its batch, and with others in batches of several compositions."""

    async def embedded(some: Sequence[list[int]]) -> Any:  # noqa: ANN401 (arrays)
        return np.asarray((await engine.embed(some, normalize=-1)).vectors, dtype=np.float64)

    alone = np.concatenate([await embedded([text]) for text in asked])
    concurrent = await asyncio.gather(*(embedded([text]) for text in asked))
    return alone, [await embedded(asked), (await embedded(asked[::-1]))[::-1], np.concatenate(concurrent)]


@pytest.mark.parametrize("kernels", ["weft", "llama.cpp"])
@pytest.mark.parametrize("kind", [*MAKERS, *BIDIRECTIONAL, *OTHERS])
async def test_an_embedding_does_not_depend_on_the_texts_that_are_computed_with_it(
    tmp_path: Path, kind: Encoder | Bidirectional | Other, kernels: Kernels
) -> None:
    path = tmp_path / "model.gguf"
    if kind in MAKERS:
        write_tiny_encoder(kind, path)
    else:
        write_tiny_bidirectional(kind, path)  # type: ignore[arg-type]
    async with weft.Engine(path, n_slots=2, n_ctx=512, n_threads=1, kernels=kernels) as engine:
        asked = company(engine.embedding_stats().max_tokens)
        alone, others = await alone_and_in_company(engine, asked)
        assert engine.embedding_stats().n_batches > len(asked)
        assert engine.embeddings_are_repeatable == (kind == "qwen" and engine.is_repeatable)
        for together in others:
            assert cosines(alone, together).min() >= 0.999999
            assert not engine.embeddings_are_repeatable or np.array_equal(alone, together)


@pytest.mark.parametrize("kind", ["reranker", "judge"])
async def test_a_score_does_not_depend_on_the_texts_that_are_ranked_with_it(encoders: dict[Encoder, Path], kind: Encoder) -> None:
    documents = ["a b", "c d e " * 3, "f", "g h " * 4, "a b c"]
    async with weft.Engine(encoders[kind], n_slots=2, n_ctx=512, n_threads=1, kernels="weft") as engine:
        alone = [(await engine.rerank("a", [text])).scores[0] for text in documents]
        together = list((await engine.rerank("a", documents)).scores)
        assert together == pytest.approx(alone, abs=1e-5)
        assert not engine.embeddings_are_repeatable or together == alone


@pytest.mark.parametrize("kind", BIDIRECTIONAL)
async def test_every_encoder_makes_the_vectors_of_its_architecture(tmp_path: Path, kind: Bidirectional) -> None:
    write_tiny_bidirectional(kind, tmp_path / "encoder.gguf")
    draw = random.Random(1)
    asked = [[draw.randrange(3, 250) for _ in range(1 + 7 * i % (tiny_bidirectional.N_POSITIONS - 1))] for i in range(40)]
    expected = np.array([tiny_bidirectional.vector(kind, text) for text in asked])
    async with engine_of(tmp_path / "encoder.gguf") as engine:
        together = np.asarray((await engine.embed(asked, normalize=-1)).vectors)
        assert engine.embedding_stats().n_batches > 1
        alone = np.concatenate([np.asarray((await engine.embed([text])).vectors) for text in asked[:10]])
        most = engine.embedding_stats().max_tokens
        assert (await engine.embed([[7] * most])).vectors.shape == (1, 32)
        with pytest.raises(
            weft.InvalidRequestError, match=f"text 0 has {most + 1} tokens; it may have at most {most}, so shorten it"
        ):
            await engine.embed([[7] * (most + 1)])
        with pytest.raises(weft.NotSupportedError, match=re.escape(f"the model ({kind}) is an encoder")):
            await engine.complete("a")
    assert most == tiny_bidirectional.N_POSITIONS
    assert cosines(together, expected).min() > 0.9999
    assert np.abs(together - expected).max() < 0.01
    assert cosines(alone, expected[:10]).min() > 0.9999


@pytest.mark.parametrize("kind", BIDIRECTIONAL)
async def test_rows_of_an_encoders_tokens_come_to_its_vector(tmp_path: Path, kind: Bidirectional) -> None:
    write_tiny_bidirectional(kind, tmp_path / "encoder.gguf")
    asked = [[9, 8, 7, 6, 5], [40] * 30]
    async with engine_of(tmp_path / "encoder.gguf", pooling="none") as engine:
        answer = await engine.embed(asked)
    rows = np.split(np.asarray(answer.vectors), answer.starts[1:-1])
    means = np.array([of_text.mean(axis=0) for of_text in rows])
    assert cosines(means, np.array([tiny_bidirectional.vector(kind, text) for text in asked])).min() > 0.9999


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("t5encoder", {"n_buckets": 2}, "relative_buckets_count is 2; it must be 4 to 511"),
        ("t5", {"n_buckets": 512}, "relative_buckets_count is 512; it must be 4 to 511"),
        ("t5", {"without": ["enc.blk.0.attn_rel_b.weight"]}, "its tensor enc.blk.0.attn_rel_b.weight is missing"),
        ("gemma-embedding", {"without": ["dense_3.weight"]}, "the output of its dense layers has length 40; it must be 32"),
        ("gemma-embedding", {"without": ["dense_2.weight"]}, "its dense_3_feat_in is 40; it must be 32"),
        ("modern-bert", {"without": ["output_norm.weight"]}, "tensor 'output_norm.weight' not found"),
    ],
)
async def test_an_encoder_that_llama_cpp_would_end_the_process_for_is_refused(
    tmp_path: Path, kind: Bidirectional, changes: dict[str, Any], message: str
) -> None:
    write_tiny_bidirectional(kind, tmp_path / "encoder.gguf", **changes)
    with pytest.raises(weft.ModelLoadError, match=message):
        await engine_of(tmp_path / "encoder.gguf").start()


async def test_positions_of_a_table_reach_no_further_than_it_does(encoders: dict[Encoder, Path]) -> None:
    # As that of rotations would (RoPE), where llama.cpp would look behind the table and end the process.
    scaled: Any = {"rope_scaling_type": "linear", "rope_freq_scale": 0.5}
    async with weft.Engine(encoders["bert"], n_slots=2, n_ctx=512, n_threads=1, **scaled) as engine:
        assert engine.embedding_stats().max_tokens == N_POSITIONS
        with pytest.raises(weft.InvalidRequestError, match=f"at most {N_POSITIONS}"):
            await engine.embed([[5] * (N_POSITIONS + 1)])
    async with weft.Engine(encoders["nomic"], n_slots=2, n_ctx=512, n_threads=1, **scaled) as engine:
        assert engine.embedding_stats().max_tokens == 2 * N_POSITIONS


async def test_scores_are_what_the_classifier_computes_of_query_and_text(encoders: dict[Encoder, Path]) -> None:
    query, documents = "a b c", ["c d", "e f g h", "a b c"]
    async with engine_of(encoders["reranker"]) as engine:
        ranking = await engine.rerank(query, documents)

        def words(text: str) -> list[int]:
            return engine.tokenize(text, add_special=False)

        pairs = [[CLS, *words(query), SEP, SEP, *words(text), SEP] for text in documents]
    assert list(ranking.n_tokens) == [len(pair) for pair in pairs]
    assert np.allclose(ranking.scores, [vector("reranker", pair)[0] for pair in pairs], atol=0.01)


async def test_a_causal_reranker_reads_both_by_its_template_and_computes_the_query_once(encoders: dict[Encoder, Path]) -> None:
    query, documents = "who is it {document}", [f"the fox {i}" for i in range(20)]
    async with engine_of(encoders["judge"]) as engine:
        ranking = await engine.rerank(query, documents)
        before, middle = TEMPLATE.split("{query}")[0], TEMPLATE.split("{query}")[1]
        asked = [f"{before}{query}{middle.replace('{document}', text)}" for text in documents]
        pairs = [engine.tokenize(text, add_special=False) for text in asked]
        stats = engine.embedding_stats()
    assert list(ranking.n_tokens) == [len(pair) for pair in pairs]
    assert np.allclose(ranking.scores, [vector("judge", pair)[0] for pair in pairs], atol=0.001)
    # What follows the number of the text is not alike, nor are numbers.
    assert stats.n_batches > 1
    assert stats.n_computed < stats.n_tokens / 4


async def test_one_engine_writes_and_makes_vectors_and_takes_no_memory_for_them_before() -> None:
    async with weft.Engine(n_slots=2, n_ctx=512, n_threads=1) as engine:
        assert engine.embedding_stats().n_bytes == 0
        assert engine.embedding_stats().pooling == "mean"
        answer, _ = await asyncio.gather(engine.embed("Once upon a time"), engine.complete("Once", max_tokens=4))
        assert answer.vectors.shape == (1, engine.model.n_embd)
        assert engine.embedding_stats().n_bytes > 0


async def test_vectors_are_a_buffer_that_numpy_does_not_copy(encoders: dict[Encoder, Path]) -> None:
    async with engine_of(encoders["bert"]) as engine:
        answer = await engine.embed(["a b", "c"])
    assert (answer.vectors.format, answer.vectors.ndim, answer.vectors.shape) == ("f", 2, (2, 32))
    assert np.shares_memory(np.asarray(answer.vectors), np.asarray(answer.vectors))
    assert list(answer.n_tokens) == [4, 3]


async def test_nothing_pooled_is_a_row_for_each_token(encoders: dict[Encoder, Path]) -> None:
    async with engine_of(encoders["nomic"], pooling="none") as engine:
        answer = await engine.embed([[5, 6, 7], [8]])
        assert list(answer.starts) == [0, 3, 4]
    rows = np.asarray(answer.vectors)
    assert cosines(rows[:3].mean(axis=0, keepdims=True), vector("nomic", [5, 6, 7])[None]).min() > 0.9999


async def test_vectors_are_cut_and_scaled_as_asked(encoders: dict[Encoder, Path]) -> None:
    async with engine_of(encoders["bert"]) as engine:
        whole = np.asarray((await engine.embed("a b c", normalize=-1)).vectors)[0]
        cut = np.asarray((await engine.embed("a b c", dimensions=8)).vectors)[0]
        taxicab = np.asarray((await engine.embed("a b c", normalize=1)).vectors)[0]
        with pytest.raises(weft.InvalidRequestError, match="must be 1 to 32"):
            await engine.embed("a", dimensions=33)
        with pytest.raises(weft.InvalidRequestError, match="normalize is -2"):
            await engine.embed("a", normalize=-2)
    assert np.allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    assert np.allclose(taxicab, whole / np.abs(whole).sum(), atol=1e-6)


async def test_what_texts_begin_with_is_computed_once_where_the_model_is_causal(encoders: dict[Encoder, Path]) -> None:
    instruction = list(range(10, 50))
    asked = [[*instruction, i, i + 1] for i in range(5, 45)]
    async with engine_of(encoders["qwen"]) as engine:
        vectors = np.asarray((await engine.embed(asked)).vectors)
        stats = engine.embedding_stats()
    assert (stats.n_tokens, stats.n_computed) == (40 * 42, 40 + 40 * 2)
    assert cosines(vectors, np.array([vector("qwen", text) for text in asked])).min() > 0.9999


async def computed_by_turns(engine: weft.Engine, beginnings: Sequence[Sequence[int]], n_turns: int) -> tuple[list[int], Any]:
    """Tokens that are computed for texts which begin so by turns, each a call of its own, and the texts with their vectors."""
    n_computed, asked, vectors = [], [], []
    for turn in range(n_turns):
        for beginning in beginnings:
            text = [*beginning, 100 + turn, 7, 8]
            before = engine.embedding_stats().n_computed
            vectors.append(np.asarray((await engine.embed([text])).vectors)[0])
            n_computed.append(engine.embedding_stats().n_computed - before)
            asked.append(text)
    return n_computed, list(zip(asked, vectors, strict=True))


async def test_instructions_by_turns_are_computed_once_each(encoders: dict[Encoder, Path]) -> None:
    instructions = [list(range(first, first + 20)) for first in (10, 110)]
    async with engine_of(encoders["qwen"]) as engine:
        n_computed, told = await computed_by_turns(engine, instructions, 4)
    assert n_computed == [23, 23, *[3] * 6]
    expected = np.array([vector("qwen", text) for text, _ in told])
    assert cosines(np.array([of_text for _, of_text in told]), expected).min() > 0.9999


async def test_two_queries_by_turns_compute_each_query_once(encoders: dict[Encoder, Path]) -> None:
    queries = ["somebody-or-other?", "everywhere-and-nowhere?"]
    async with engine_of(encoders["judge"]) as engine:
        n_computed, pairs = [], []
        for turn in range(4):
            for query in queries:
                before = engine.embedding_stats().n_computed
                ranking = await engine.rerank(query, [f"{turn}"])
                n_computed.append(engine.embedding_stats().n_computed - before)
                asked = TEMPLATE.replace("{query}", query).replace("{document}", f"{turn}")
                pairs.append(engine.tokenize(asked, add_special=False))
                assert ranking.scores[0] == pytest.approx(vector("judge", pairs[-1])[0], abs=0.005)
    assert n_computed == [n_after_earlier(pairs, place) for place in range(len(pairs))]
    # A second query goes on from what stands before both.
    assert n_computed[1] < len(pairs[1]) - 16
    assert n_computed[2:] == [n_computed[2]] * 6


def n_after_earlier(texts: Sequence[Sequence[int]], place: int) -> int:
    """Tokens of a text after what it begins with in common with some earlier one."""
    text = texts[place]
    alike = [next(n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b) for other in texts[:place]]
    return len(text) - max(alike, default=0)


@pytest.mark.parametrize("kind", ["window", "recurrent", "hybrid"])
async def test_a_window_shares_what_it_still_sees_and_a_state_is_computed_whole(tmp_path: Path, kind: Kind) -> None:
    write_tiny_model(kind, tmp_path / "model.gguf")
    instructions = [list(range(first, first + 40)) for first in (10, 110)]
    async with engine_of(tmp_path / "model.gguf", pooling="last") as engine:
        n_computed, told = await computed_by_turns(engine, instructions, 4)
    # Once more at most, for itself, where the window has moved on that both texts had in common.
    most = [43, 43, 43, 43, *[3] * 4] if kind == "window" else [43] * 8
    assert n_computed[:2] == most[:2]
    assert n_computed[4:] == most[4:]
    for text, of_text in told:
        async with engine_of(tmp_path / "model.gguf", pooling="last") as engine:
            alone = np.asarray((await engine.embed([text])).vectors)
        assert cosines(of_text[None], alone).min() > 0.9999


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "texts is empty; it must have at least one text"),
        ([[]], "text 0 is empty"),
        ([[5], [5] * (N_POSITIONS + 1)], f"text 1 has 129 tokens; it may have at most {N_POSITIONS}"),
        ([[5_000]], "not in the vocabulary"),
    ],
    ids=["none", "empty", "long", "token"],
)
async def test_a_text_that_cannot_be_is_refused(encoders: dict[Encoder, Path], given: Sequence[Any], message: str) -> None:
    async with engine_of(encoders["bert"]) as engine:
        with pytest.raises(weft.InvalidRequestError, match=message):
            await engine.embed(given)


async def test_what_a_model_is_not_made_for_is_refused_by_name(encoders: dict[Encoder, Path]) -> None:
    async with engine_of(encoders["bert"]) as engine:
        with pytest.raises(weft.NotSupportedError, match=r"the model \(bert\) is an encoder"):
            await engine.complete("a")
        with pytest.raises(weft.NotSupportedError, match="cannot score texts"):
            await engine.rerank("a", ["b"])
    async with engine_of(encoders["reranker"]) as engine:
        with pytest.raises(weft.NotSupportedError, match="scores instead of embeddings"):
            await engine.embed("a")
    with pytest.raises(weft.InvalidConfigError, match="no classifier"):
        await engine_of(encoders["bert"], pooling="rank").start()


async def test_a_cancelled_call_is_not_computed(encoders: dict[Encoder, Path]) -> None:
    async with engine_of(encoders["qwen"]) as engine:
        task = asyncio.create_task(engine.embed([[7] * 100] * 4000))
        await wait_until(lambda: engine.embedding_stats().n_waiting > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        await wait_until(lambda: engine.embedding_stats().n_waiting == 0)
        assert engine.embedding_stats().n_texts < 4000
        assert (await engine.embed([[7]])).vectors.shape == (1, 32)


async def test_a_close_ends_who_waits(encoders: dict[Encoder, Path]) -> None:
    engine = engine_of(encoders["qwen"])
    await engine.start()
    task = asyncio.create_task(engine.embed([[7] * 100] * 4000))
    await wait_until(lambda: engine.embedding_stats().n_waiting > 0)
    await engine.close()
    with pytest.raises(weft.EngineStoppedError):
        await task
