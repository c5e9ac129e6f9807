"""Adapters from Python: who computes with which, and what is shared."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.adapters import N_BYTES, write_adapter, write_changes
from tests.engine.tiny_encoders import write_tiny_encoder
from tests.helpers import prompt_of

PROMPT = "Once upon a time, there was a little"
GREEDY: Any = {"temperature": 0.0, "max_tokens": 12}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"{seed}.gguf", seed=seed, task_name=f"task {seed}") for seed in (1, 2)]


@pytest.fixture(scope="module")
async def adapted(files: list[Path]) -> AsyncIterator[weft.Engine]:
    """Two adapters that are off where a request says nothing.

    The gap that streams are allowed is one that the slowest machine keeps, so that turns have as many steps as they are to have.
    """
    lora = [(file, 0.0) for file in files]
    async with weft.Engine(n_slots=4, n_ctx=4096, n_threads=1, lora=lora, max_token_gap_ms=10_000) as engine:
        yield engine


async def text_of(engine: weft.Engine, **options: Any) -> str:  # noqa: ANN401 (fields of a request)
    return (await engine.complete(PROMPT, **GREEDY, **options)).text


async def test_each_set_writes_its_own_text_and_none_is_the_model_alone(adapted: weft.Engine, engine: weft.Engine) -> None:
    alone = await text_of(engine)
    texts = {alone}
    for adapters in ([(0, 1.0)], [(1, 1.0)], [(0, 1.0), (1, 1.0)], [(0, -1.0)]):
        texts.add(await text_of(adapted, adapters=adapters))
    assert len(texts) == 5
    for nothing in (None, [], [(0, 0.0)], ((1, 0), (0, 0))):
        assert await text_of(adapted, adapters=nothing) == alone


async def test_adapters_are_on_from_the_start_with_their_scales(files: list[Path], adapted: weft.Engine) -> None:
    async with weft.Engine(n_slots=1, n_ctx=512, n_threads=1, lora=[(files[1], 0.5), files[0]]) as engine:
        told = [(adapter.id, adapter.path, adapter.scale, adapter.task_name) for adapter in engine.adapters]
        assert told == [(0, str(files[1]), 0.5, "task 2"), (1, str(files[0]), 1.0, "task 1")]
        assert [adapter.n_bytes for adapter in engine.adapters] == [N_BYTES, N_BYTES]
        assert await text_of(engine) == await text_of(adapted, adapters=[(1, 0.5), (0, 1.0)])


async def test_equal_sets_share_and_different_ones_do_not(adapted: weft.Engine) -> None:
    prompt = prompt_of(100, "adapters share")
    sets: list[list[tuple[int, float]]] = [[], [(0, 1.0)], [(0, 0.5)], [(0, 1.0), (1, 1.0)]]
    for adapters in sets:
        assert (await adapted.complete(prompt, max_tokens=1, adapters=adapters)).n_computed == 100
    for adapters in ([(1, 0.0)], [(1, 1.0), (0, 1.0)], [(0, 0.5)]):
        assert (await adapted.complete(prompt, max_tokens=1, adapters=adapters, n=3)).n_cached >= 99


async def test_what_is_set_for_all_counts_from_then_on_and_shares_across_it(adapted: weft.Engine) -> None:
    prompt = prompt_of(100, "adapters for all")
    try:
        adapted.set_adapters([(1, 0.7)])
        assert [adapter.scale for adapter in adapted.adapters] == [0.0, pytest.approx(0.7)]
        assert (await adapted.complete(prompt, max_tokens=1)).n_computed == 100
        adapted.set_adapters([])
        assert (await adapted.complete(prompt, max_tokens=1)).n_computed == 100
        assert (await adapted.complete(prompt, max_tokens=1, adapters=[(1, 0.7)])).n_computed == 1
    finally:
        adapted.set_adapters([])


async def test_sets_that_run_beside_each_other_write_what_they_write_alone(adapted: weft.Engine) -> None:
    sets: list[list[tuple[int, float]]] = [[], [(0, 1.0)], [(1, 1.0)]]
    alone = [await text_of(adapted, adapters=adapters) for adapters in sets]
    before = adapted.stats()
    beside = await asyncio.gather(*[text_of(adapted, adapters=adapters) for adapters in sets])
    assert list(beside) == alone
    after = adapted.stats()
    n_changes = after.n_adapter_changes - before.n_adapter_changes
    assert 0 < n_changes <= (after.n_decodes - before.n_decodes) / 2


async def test_pins_and_files_serve_those_with_the_same_adapters(adapted: weft.Engine, tmp_path: Path) -> None:
    prompt = prompt_of(100, "adapters that are pinned")
    prefix = await adapted.pin(prompt, adapters=[(0, 1.0)])
    assert (await adapted.complete([*prompt, 5], max_tokens=1)).n_computed == 101
    assert (await adapted.complete([*prompt, 5], max_tokens=1, adapters=[(0, 1.0)])).n_computed == 1
    assert await adapted.unpin(prefix)

    await adapted.save_prefix(prompt, tmp_path / "prefix", adapters=[(0, 1.0)])
    async with weft.Engine(n_slots=1, n_ctx=512, n_threads=1, lora=[adapted.adapters[0].path]) as engine:
        await engine.load_prefix(tmp_path / "prefix")
        assert (await engine.complete([*prompt, 5], max_tokens=1)).n_computed == 1
        assert (await engine.complete([*prompt, 5], max_tokens=1, adapters=[])).n_computed == 101
    async with weft.Engine(n_slots=1, n_ctx=512, n_threads=1) as engine:
        with pytest.raises(weft.PrefixFileError, match="an adapter that is not loaded here; start with the same --lora"):
            await engine.load_prefix(tmp_path / "prefix")


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        ([(2, 1.0)], "adapters has 2; there are 2, counted from 0"),
        ([(0, float("nan"))], "adapters has a scale of NaN for 0; it must be a finite number"),
        ([(0, 1.0), (0, 2.0)], "adapters has 0 twice"),
        ([(-1, 1.0)], "adapters is [(-1, 1.0)]; it must be a sequence of pairs of an adapter's id, from 0, and its scale"),
        ("one", "adapters is 'one'; it must be a sequence of pairs"),
    ],
)
async def test_what_is_no_set_of_adapters_is_refused(adapted: weft.Engine, adapters: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(weft.InvalidRequestError) as caught:
        await adapted.complete(PROMPT, adapters=adapters)
    assert caught.value.param == "adapters"
    assert caught.value.message.startswith(message)


async def test_a_file_that_is_no_adapter_of_the_model_ends_the_start(tmp_path: Path) -> None:
    cases = {
        "trained for the architecture": write_adapter(tmp_path / "arch.gguf", seed=1, architecture="qwen2"),
        "does not fit that matrix": write_adapter(tmp_path / "shape.gguf", seed=1, n_embd=64),
        "token 2048 of its invocation is not in the vocabulary (2048 tokens)": write_adapter(
            tmp_path / "alora.gguf", seed=1, invoked_by=[3, 2048]
        ),
        "it is not a LoRA adapter": Path(weft.DEMO_MODEL),
        "there is no such file": tmp_path / "nothing.gguf",
    }
    for words, path in cases.items():
        with pytest.raises(weft.InvalidConfigError, match=re.escape(words)) as caught:
            await weft.Engine(lora=[path]).start()
        assert caught.value.param == "lora"
        assert str(path) in caught.value.message


def test_settings_that_are_no_adapters_are_refused_at_once() -> None:
    for lora in ([3], [("a.gguf", "much")], [("a.gguf", float("inf"))], "a.gguf"):
        with pytest.raises(
            weft.InvalidConfigError, match="a list, each element of which is a pair of a text and a finite number"
        ):
            weft.EngineConfig(lora=lora)  # type: ignore[arg-type]


INVOCATION = [1203, 7, 1203]


@pytest.fixture(scope="module")
async def activated(tmp_path_factory: pytest.TempPathFactory, files: list[Path]) -> AsyncIterator[weft.Engine]:
    """Two activated adapters and a plain one, all of them off where a request says nothing."""
    folder = tmp_path_factory.mktemp("activated")
    loras = [write_adapter(folder / f"{seed}.gguf", seed=seed, invoked_by=INVOCATION) for seed in (1, 2)]
    async with weft.Engine(n_slots=2, n_ctx=4096, n_threads=1, lora=[(file, 0.0) for file in [*loras, files[0]]]) as engine:
        yield engine


def invoking(seed: str, n_before: int, n_after: int) -> list[int]:
    return [*prompt_of(n_before, f"{seed} before"), *INVOCATION, *prompt_of(n_after, f"{seed} after")]


async def test_an_activated_adapter_shares_what_is_before_its_invocation_with_the_model(
    activated: weft.Engine, adapted: weft.Engine
) -> None:
    assert [adapter.invocation for adapter in activated.adapters] == [INVOCATION, INVOCATION, []]
    before = activated.tokenize("Once upon a time, there was a little girl who had a red ball and a big dog named Max.")
    after = activated.tokenize("She went to the park with her mom, and", add_special=False)
    prompt, n_before = [*before, *INVOCATION, *after], len(before)
    alone = await activated.complete(prompt, **GREEDY)
    adapters = [(0, 1.0)]
    first = await activated.complete(prompt, **GREEDY, adapters=adapters)
    n_after = len(INVOCATION) + len(after)
    assert (alone.n_computed, first.n_computed, first.n_cached) == (n_before + n_after, n_after, n_before)
    assert first.text != alone.text
    assert first.text != (await adapted.complete(prompt, **GREEDY, adapters=adapters)).text, "it is not on from the beginning"
    again = await activated.complete(prompt, **GREEDY, adapters=adapters, n=2)
    assert (again.n_computed, [branch.text for branch in again.choices]) == (1, [first.text] * 2)
    other = await activated.complete(prompt, **GREEDY, adapters=[(1, 1.0)])
    assert (other.n_computed, other.text not in {alone.text, first.text}) == (n_after, True)
    base = await activated.complete(prompt, **GREEDY)
    assert (base.n_computed, base.text) == (1, alone.text)


async def test_a_prompt_without_the_invocation_is_the_models_own(activated: weft.Engine, adapted: weft.Engine) -> None:
    alone = await text_of(activated)
    assert await text_of(activated, adapters=[(0, 1.0)]) == alone
    assert await text_of(adapted, adapters=[(0, 1.0)]) != alone
    with pytest.raises(weft.InvalidRequestError, match="adapters has 0 and 1, but a text can have at most one activated adapter"):
        await activated.complete(PROMPT, adapters=[(0, 1.0), (1, 1.0), (2, 1.0)])


async def test_texts_for_vectors_have_an_activated_adapter_from_its_invocation_on(
    activated: weft.Engine, adapted: weft.Engine
) -> None:
    invoking_text, plain_text = invoking("is a vector", 60, 20), prompt_of(60, "is a vector before")

    async def vectors(engine: weft.Engine, adapters: list[tuple[int, float]]) -> Any:  # noqa: ANN401 (an array)
        engine.set_adapters(adapters)
        try:
            return np.asarray((await engine.embed([invoking_text, plain_text])).vectors)
        finally:
            engine.set_adapters([])

    def alike(a: Any, b: Any) -> list[bool]:  # noqa: ANN401 (arrays)
        # Numbers differ a little with what is computed beside a text; what an adapter here changes is more.
        cosines = np.sum(a * b, axis=1)
        assert all(cosine > 0.999 or cosine < 0.99 for cosine in cosines), cosines
        return [bool(cosine > 0.999) for cosine in cosines]

    alone, invoked = await vectors(activated, []), await vectors(activated, [(0, 1.0)])
    assert alike(alone, invoked) == [False, True], "a text without the invocation is the model's own"
    assert alike(invoked, await vectors(adapted, [(0, 1.0)])) == [False, False], "it is not on from the beginning"
    # Beside a plain adapter, which counts from the beginning.
    plain, both = await vectors(activated, [(2, 1.0)]), await vectors(activated, [(0, 1.0), (2, 1.0)])
    assert alike(plain, both) == [False, True]
    assert alike(invoked, both) == [False, False]


async def test_an_encoder_reads_a_text_at_once_and_takes_no_activated_adapter(tmp_path: Path) -> None:
    write_tiny_encoder("bert", tmp_path / "bert.gguf")
    shapes = {"blk.0.attn_q.weight": (32, 32)}
    plain = write_changes(tmp_path / "plain.gguf", "bert", shapes, seed=1)
    activated = write_changes(tmp_path / "activated.gguf", "bert", shapes, seed=1, invoked_by=[7, 8])
    vectors = []
    for lora in ([], [plain]):
        async with weft.Engine(tmp_path / "bert.gguf", n_threads=1, lora=lora) as engine:
            vectors.append((await engine.embed([[5, 7, 8, 9]])).vectors.tolist())
    assert vectors[0] != vectors[1]
    with pytest.raises(
        weft.InvalidConfigError, match=r"an activated adapter \(aLoRA\).* computes the whole text in one pass"
    ) as caught:
        await weft.Engine(tmp_path / "bert.gguf", n_threads=1, lora=[activated]).start()
    assert caught.value.param == "lora"


async def test_what_is_cached_pinned_and_saved_says_where_an_activated_adapter_begins(
    activated: weft.Engine, tmp_path: Path
) -> None:
    prompt = invoking("is listed", 60, 20)
    prefix = await activated.pin(prompt, adapters=[(0, 0.5)])
    assert (prefix.adapters, prefix.invoked_at) == ([(0, 0.5)], 60)
    assert [(each.adapters, each.invoked_at) for each in await activated.prefixes()] == [([(0, 0.5)], 60)]
    pinned = [node for node in await activated.cached() if node.is_pinned]
    assert [(node.start, node.adapters) for node in pinned] == [(0, []), (60, [(0, 0.5)])]
    await activated.unpin(prefix)

    # As if its own invocation had been written after it.
    longer = [*prompt, *INVOCATION, *prompt_of(20, "is written")]
    await activated.save_prefix(longer, tmp_path / "prefix", adapters=[(0, 0.5)], invoked_at=60)
    async with weft.Engine(n_slots=1, n_ctx=512, n_threads=1, lora=[activated.adapters[0].path]) as engine:
        await engine.load_prefix(tmp_path / "prefix")
        assert (await engine.slot_state(0))[1:] == ([], None), "it was loaded into no slot in particular"
        await engine.load_prefix(tmp_path / "prefix", slot=0)
        assert await engine.slot_state(0) == (longer, [(0, 0.5)], 60)
        assert (await engine.complete([*prompt, 5], max_tokens=1, adapters=[(0, 0.5)])).n_computed == 1
        assert (await engine.complete([*prompt, 5], max_tokens=1, adapters=[])).n_computed == 24
