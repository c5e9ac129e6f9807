"""Pictures and sounds from Python: what is shared, what is refused, and that nothing ends the process."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.engine.tiny_projectors import PROJECTORS, Projector, png_of, wav_of, write_tiny_projector
from tests.helpers import wait_until

GREEDY: Any = {"temperature": 0.0, "max_tokens": 6}

FILES = {file.name: file.read_bytes() for file in sorted((Path(__file__).parents[1] / "media").iterdir())}
"""A picture and a sound in every format."""

VISION: tuple[Projector, ...] = ("llava", "gemma3", "qwen2vl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("projectors")


def engine_of(projector: Projector, folder: Path, **options: Any) -> weft.Engine:  # noqa: ANN401 (settings)
    model, mmproj = write_tiny_projector(projector, folder)
    return weft.Engine(model, mmproj=mmproj, **{"n_ctx": 1024, "n_slots": 4, "n_threads": 1, "kv_unified": True, **options})


@pytest.fixture(scope="module", params=VISION)
async def seeing(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[weft.Engine]:
    async with engine_of(request.param, folder) as engine:
        yield engine


def file_of(projector: Projector, seed: int) -> bytes:
    return wav_of(seed) if projector == "ultravox" else png_of(seed)


@pytest.mark.parametrize("projector", PROJECTORS)
async def test_branches_and_turns_compute_a_shared_medium_once(projector: Projector, folder: Path) -> None:
    async with engine_of(projector, folder, n_ctx=2048) as engine:
        media = await engine.read_media(file_of(projector, 1))
        prompt: list[Any] = ["Look: ", media, " What is it?"]
        n_prompt = engine.model.tokenize_parts(prompt).n_tokens
        answer = await engine.complete(prompt, n=4, **GREEDY)
        assert (answer.n_prompt, answer.n_computed) == (n_prompt, n_prompt)
        assert engine.model.media_stats().n_encoded == 1
        turn: list[Any] = [*prompt, list(answer.choices[0].token_ids), " And now?"]
        n_turn = engine.model.tokenize_parts(turn).n_tokens
        assert (await engine.complete(turn, **GREEDY)).n_computed <= n_turn - n_prompt + 1
        again = await engine.read_media(file_of(projector, 1))
        assert (again.digest, again.n_tokens, again.kind) == (media.digest, media.n_tokens, media.kind)
        n_computed = (await engine.complete(["Look: ", again, " What is it?"], **GREEDY)).n_computed
        # A sliding window that has moved on is computed again.
        assert n_computed == 1 or PROJECTORS[projector] == "window"
        assert engine.model.media_stats().n_encoded == 1


async def test_behind_another_text_a_picture_is_decoded_again_but_not_encoded(seeing: weft.Engine) -> None:
    before = seeing.model.media_stats()
    for text in ("First: ", "Another one: ", "A third: "):
        media = await seeing.read_media(png_of(2))
        await seeing.complete([text, media, " Well?"], **GREEDY)
    after = seeing.model.media_stats()
    assert (after.n_encoded - before.n_encoded, after.n_reused - before.n_reused) == (1, 2)
    assert after.n_kept_bytes >= before.n_kept_bytes + 4 * 64 * 4


async def test_what_waits_for_the_projector_is_counted_until_it_was_encoded_or_let_go(seeing: weft.Engine) -> None:
    def n_waiting() -> int:
        return seeing.model.media_stats().n_waiting_bytes

    before = n_waiting()
    media = await seeing.read_media(png_of(90))
    # The pixels, and the vectors that they will be.
    assert n_waiting() >= before + 3 * 4 * 32 * 32
    await seeing.complete(["Counted: ", media, " Well?"], **GREEDY)
    assert n_waiting() == before
    unused = await seeing.read_media(png_of(91))
    assert n_waiting() > before
    del unused
    await wait_until(lambda: n_waiting() == before)
    assert seeing.model.media_stats().n_projector_bytes > 10_000


@pytest.mark.parametrize("projector", ["llava", "qwen2vl"])
async def test_another_picture_shares_the_text_before_it_alone(projector: Projector, folder: Path) -> None:
    async with engine_of(projector, folder) as engine:
        text = "The same words before both of them: "
        n_text = len(engine.tokenize(text))
        first, second = [list[Any]((text, await engine.read_media(png_of(seed)), "?")) for seed in (3, 4)]
        await engine.complete(first, **GREEDY)
        answer = await engine.complete(second, **GREEDY)
        # Some models have words around a picture, which are the same.
        assert n_text <= answer.n_cached < n_text + 30
        assert (await engine.complete(first, **GREEDY)).n_computed == 1


async def test_a_picture_changes_what_is_said(seeing: weft.Engine) -> None:
    said = set()
    for seed in (5, 6, 7):
        answer = await seeing.complete(["", await seeing.read_media(png_of(seed)), "?"], logprobs=1, **GREEDY)
        said.add(answer.choices[0].logprobs[0].chosen.logprob)
    assert len(said) == 3


async def test_texts_and_pictures_with_rows_and_columns_leave_the_context_and_come_back(folder: Path) -> None:
    async with engine_of("qwen2vl", folder, n_ctx=512, n_slots=1, cache_ram=64 * 2**20) as engine:
        text = "A text without pictures, which is longer than a line. " * 4
        picture: list[Any] = ["Look: ", await engine.read_media(png_of(8, width=128, height=128)), " What is it?"]
        n_text, n_picture = len(engine.tokenize(text)), engine.model.tokenize_parts(picture).n_tokens
        for _ in range(2):
            await engine.complete(text, **GREEDY)
            await engine.complete(picture, **GREEDY)
            await engine.complete("x" * 480, **GREEDY)
        assert (await engine.complete(text, **GREEDY)).n_computed < n_text / 2
        assert (await engine.complete(picture, **GREEDY)).n_computed < n_picture / 2


@pytest.mark.parametrize("size", [(512, 16), (16, 512), (64, 64), (128, 32)])
async def test_rows_and_columns_are_counted_from_where_a_picture_begins_however_it_is_cut(
    folder: Path, size: tuple[int, int]
) -> None:
    said = []
    for n_batch in (512, 3):
        async with engine_of("qwen2vl", folder) as engine:
            media = await engine.read_media(png_of(8, width=size[0], height=size[1]))
            said.append(logprob(await engine.complete(["Look: ", media, " Well?"], logprobs=1, n_batch=n_batch, **GREEDY)))
    assert said[0] == pytest.approx(said[1], abs=0.001)


async def test_a_model_that_counts_rows_and_keeps_a_state_shares_what_its_states_were_kept_of(folder: Path) -> None:
    model, mmproj = write_tiny_projector("qwen2vl", folder, kind="hybrid-grid")
    options: Any = {"mmproj": mmproj, "n_ctx": 1024, "n_slots": 4, "n_threads": 1, "kv_unified": True}
    file, said, alone = png_of(8, width=128, height=32), [], []
    async with weft.Engine(model, **options) as engine:
        prompt: list[Any] = ["Look: ", await engine.read_media(file), " What is it?"]
        n_prompt = engine.model.tokenize_parts(prompt).n_tokens
        answer = await engine.complete(prompt, n=3, logprobs=1, **GREEDY)
        assert answer.n_computed == n_prompt, "branches go on from one state"
        said.append(logprob(answer))
        turn: list[Any] = [*prompt, list(answer.choices[0].token_ids), " And now?"]
        later = await engine.complete(turn, logprobs=1, **GREEDY)
        assert later.n_computed <= engine.model.tokenize_parts(turn).n_tokens - n_prompt
        said.append(logprob(later))
        assert (await engine.complete(prompt, **GREEDY)).n_computed == 0, "its state was kept with what follows it"
        assert engine.model.media_stats().n_encoded == 1
    for parts in (prompt, turn):
        async with weft.Engine(model, **options) as engine:
            again = [await engine.read_media(file) if isinstance(part, weft.Media) else part for part in parts]
            alone.append(logprob(await engine.complete(again, logprobs=1, n_batch=16, **GREEDY)))
    assert said == pytest.approx(alone, abs=0.001)


async def test_a_medium_of_another_model_is_refused(folder: Path) -> None:
    async with engine_of("llava", folder) as first, engine_of("qwen2vl", folder) as second:
        media = await first.read_media(png_of(1))
        mixed = first.model.tokenize_parts(["", media, "?"])
        for prompt in (list[Any](("", media, "?")), mixed):
            with pytest.raises(weft.InvalidRequestError, match="another model"):
                await second.complete(prompt, **GREEDY)
        own = await second.read_media(png_of(1))
        assert second.model.tokenize_parts([own]).n_tokens > 0


@pytest.mark.parametrize("file", FILES)
async def test_every_kind_of_file_is_read(file: str, folder: Path) -> None:
    is_sound = file.startswith("tone")
    async with engine_of("ultravox" if is_sound else "llava", folder, n_ctx=2048) as engine:
        media = await engine.read_media(FILES[file])
        assert media.kind == ("audio" if is_sound else "image")
        assert len((await engine.complete(["What? ", media, "?"], **GREEDY)).choices[0].token_ids) > 0


@pytest.mark.parametrize("projector", ["llava", "gemma3"])
async def test_what_leaves_the_context_comes_back_from_memory(projector: Projector, folder: Path) -> None:
    async with engine_of(projector, folder, n_ctx=256, n_slots=1, cache_ram=64 * 2**20) as engine:
        prompt: list[Any] = ["Look: ", await engine.read_media(png_of(8)), " What is it, and what else is there to be seen?"]
        first = await engine.complete(prompt, logprobs=1, **GREEDY)
        await engine.complete("x" * 240, **GREEDY)
        again = await engine.complete(prompt, logprobs=1, **GREEDY)
        assert again.n_computed < first.n_prompt / 2
        assert engine.stats().host_cache.n_reloaded > 0
        assert logprob(again) == pytest.approx(logprob(first), abs=0.02)
        assert engine.model.media_stats().n_encoded == 1


def logprob(answer: weft.Completion) -> float:
    return answer.choices[0].logprobs[0].chosen.logprob


@pytest.mark.parametrize("projector", VISION)
async def test_a_crowd_under_pressure_gets_what_each_gets_alone(projector: Projector, folder: Path) -> None:
    draw = random.Random(1)
    seeds = [draw.choices(range(4), k=draw.randint(1, 3)) for _ in range(24)]
    async with engine_of(projector, folder, n_ctx=512, n_ubatch=64) as engine:
        # A large picture takes several decodes, where it may.
        side = 64 if projector == "qwen2vl" else 32

        async def prompt(nth: int) -> list[Any]:
            pictures = [await engine.read_media(png_of(seed, width=2 * side, height=side)) for seed in seeds[nth]]
            return [part for picture in pictures for part in (f"{nth % 3}: ", picture)] + [f" {nth}?"]

        async def ask(nth: int) -> float:
            answer = await engine.complete(await prompt(nth), logprobs=1, priority=nth % 5, n_batch=8 + nth, **GREEDY)
            return logprob(answer)

        async def leave(nth: int) -> None:
            task = asyncio.create_task(ask(nth))
            await asyncio.sleep(draw.random() * 0.05)
            task.cancel()

        alone = [await ask(nth) for nth in range(len(seeds))]
        for _ in range(4):
            leaving = [leave(nth) for nth in draw.sample(range(len(seeds)), k=8)]
            crowd = await asyncio.gather(*map(ask, range(len(seeds))), *leaving)
            assert crowd[: len(seeds)] == pytest.approx(alone, abs=0.02)
        assert engine.is_running


@pytest.mark.parametrize("projector", PROJECTORS)
async def test_damaged_files_are_read_or_refused(projector: Projector, folder: Path) -> None:
    draw = random.Random(2)
    # llama.cpp takes a tenth of a second for a sound.
    n_files = 100 if projector == "ultravox" else 320
    stem = "tone" if projector == "ultravox" else "quarters"
    files = [file_of(projector, 9), *(data for name, data in FILES.items() if name.startswith(stem))]
    whole = files[0]
    async with engine_of(projector, folder, n_ctx=2048) as engine:
        n_read = n_refused = 0
        for nth in range(n_files):
            data = bytearray(files[nth % len(files)])
            for _ in range(draw.randint(1, 6)):
                data[draw.randrange(min(len(data), draw.choice((64, len(data)))))] = draw.randrange(256)
            cut = draw.randrange(len(data)) if draw.random() < 0.3 else len(data)
            try:
                media = await engine.read_media(bytes(data[:cut]))
            except weft.InvalidRequestError:
                n_refused += 1
                continue
            n_read += 1
            if n_read % 10 == 0 and media.n_tokens < 1_500:
                await engine.complete(["", media, "?"], **GREEDY)
        assert n_read > 0
        assert n_refused > 0
        media = await engine.read_media(whole)
        assert (await engine.complete(["", media, "?"], **GREEDY)).choices[0].finish_reason in {"length", "end"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "PNG"),
        (b"GIF89a", "image is damaged"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "PNG"),
        (png_of(1, width=32, height=32)[:40], "image is damaged"),
        (png_of(1, width=32, height=32)[:-40], "image is damaged"),
        (FILES["quarters.bmp"][:18] + (30_000).to_bytes(4, "little") * 2 + FILES["quarters.bmp"][26:], "too large"),
        (png_of(1, width=2_010, height=10), "narrow"),
        (wav_of(1), "does not support audio"),
    ],
)
async def test_what_cannot_be_read_is_refused_with_the_reason(seeing: weft.Engine, data: bytes, reason: str) -> None:
    with pytest.raises(weft.InvalidRequestError, match=reason) as raised:
        await seeing.read_media(data)
    assert raised.value.param == "media"


async def test_a_model_without_a_projector_reads_none(engine: weft.Engine) -> None:
    assert not engine.model.modalities.vision
    with pytest.raises(weft.NotSupportedError, match="mmproj"):
        await engine.read_media(png_of(1))


async def test_a_file_that_is_no_projector_ends_the_start(folder: Path) -> None:
    model, mmproj = write_tiny_projector("llava", folder)
    wrong = folder / "wrong.gguf"
    wrong.write_bytes(mmproj.read_bytes()[:2_000])
    for path in (model, wrong, folder / "none.gguf", folder):
        with pytest.raises(weft.InvalidConfigError, match="projector") as raised:
            async with weft.Engine(model, mmproj=path, n_ctx=256):
                pass
        assert raised.value.param == "mmproj"


async def test_a_projector_of_another_width_ends_the_start(folder: Path) -> None:
    _, mmproj = write_tiny_projector("llava", folder)
    with pytest.raises(weft.InvalidConfigError, match="projector"):
        async with weft.Engine(mmproj=mmproj, n_ctx=256):
            pass


async def test_prompts_with_media_are_checked_as_others(seeing: weft.Engine) -> None:
    media = await seeing.read_media(png_of(1))
    with pytest.raises(weft.ContextOverflowError):
        await seeing.complete([media] * 70 + ["?"], **GREEDY)
    with pytest.raises(weft.InvalidRequestError, match="prompt"):
        await seeing.complete([media, 5.5], **GREEDY)  # type: ignore[list-item]
    with pytest.raises(weft.InvalidRequestError, match="token"):
        await seeing.complete([1, -2, 3], **GREEDY)
    most = seeing.embedding_stats().max_tokens
    with pytest.raises(weft.InvalidRequestError, match=rf"text 1 has \d+ tokens; it may have at most {most}"):
        await seeing.embed(["a", [media] * (most // media.n_tokens + 1)])
    with pytest.raises(weft.InvalidRequestError, match="token -2 of text 0 is not in the vocabulary"):
        await seeing.embed([[media, -2]])


async def test_texts_with_pictures_have_vectors(seeing: weft.Engine) -> None:
    one, again, other = [await seeing.read_media(png_of(seed)) for seed in (11, 11, 12)]
    before = seeing.embedding_stats()
    texts: list[Any] = ["A photo of a fox", ["A photo: ", one], ["A photo: ", again], ["A photo: ", other], [other], "A dog"]
    answer = await seeing.embed(texts)
    vectors = np.asarray(answer.vectors)
    lengths = [
        len(seeing.tokenize(text)) if isinstance(text, str) else seeing.model.tokenize_parts(text).n_tokens for text in texts
    ]
    assert list(answer.n_tokens) == lengths
    alike = vectors @ vectors.T
    assert alike[1, 2] == pytest.approx(1, abs=1e-6)
    assert alike[1, 3] < 0.99999
    # Beside others or alone, tokenized before or not.
    mixed = seeing.model.tokenize_parts(texts[3])
    alone = np.concatenate([np.asarray((await seeing.embed([text])).vectors) for text in [*texts[:3], mixed, *texts[4:]]])
    assert np.sum(alone * vectors, axis=1).min() > 0.9999
    stats = seeing.embedding_stats()
    assert (stats.n_texts - before.n_texts, stats.n_tokens - before.n_tokens) == (12, 2 * sum(lengths))


async def test_whoever_leaves_while_a_picture_is_looked_at_leaves_nothing_behind(seeing: weft.Engine) -> None:
    media = [await seeing.read_media(png_of(seed, width=64, height=64)) for seed in range(20, 30)]
    gone = [asyncio.create_task(seeing.embed([["", one]] * 50)) for one in media]
    kept = asyncio.create_task(seeing.embed([["", media[-1]], "a text"]))
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    assert len((await kept).n_tokens) == 2
    await wait_until(lambda: seeing.embedding_stats().n_waiting == 0)


async def test_an_encoder_makes_no_vectors_of_pictures(folder: Path) -> None:
    async with engine_of("llava", folder, kv_overrides={"llama.attention.causal": False}) as engine:
        assert (await engine.embed("a text")).vectors.shape == (1, 64)
        with pytest.raises(weft.NotSupportedError, match="encoder, which computes embeddings of texts only"):
            await engine.embed([["a", await engine.read_media(png_of(1))]])


async def test_penalties_see_the_text_around_media_alone(seeing: weft.Engine) -> None:
    media = await seeing.read_media(png_of(1))
    options: Any = {"repeat_penalty": 1.3, "repeat_last_n": -1, "dry_multiplier": 0.8, "presence_penalty": 0.2, "mirostat": 0}
    text: list[Any] = ["What? ", media, " What?"]
    without = await seeing.complete(text, max_tokens=24, seed=1, **options)
    whole = seeing.model.tokenize_parts(text)
    same = await seeing.complete(text, max_tokens=24, seed=1, penalty_prompt=whole.text_tokens, **options)
    assert without.choices[0].token_ids == same.choices[0].token_ids
    other = await seeing.complete(text, max_tokens=24, seed=1, penalty_prompt=[], **options)
    assert other.choices[0].token_ids != same.choices[0].token_ids


async def test_listings_show_media_as_marks(seeing: weft.Engine) -> None:
    media = await seeing.read_media(png_of(11))
    prompt = seeing.model.tokenize_parts(["Look: ", media, " Well?"])
    assert seeing.detokenize(prompt).count("<__media__>") == 1
    assert prompt.media[0].digest == media.digest
    assert len(prompt) == prompt.n_tokens > len(prompt.text_tokens) > 0
    answer = await seeing.complete(prompt, slot=1, **GREEDY)
    assert seeing.detokenize(await seeing.slot_tokens(1)).count("<__media__>") == 1
    texts = [seeing.detokenize([*node.excerpt(400)[0], *node.excerpt(400)[1]]) for node in await seeing.cached()]
    assert any("<__media__>" in text for text in texts)
    assert answer.n_prompt == prompt.n_tokens


async def test_a_picture_takes_as_many_tokens_as_are_asked_for(folder: Path) -> None:
    async def n_tokens(**asked: int) -> int:
        async with engine_of("qwen2vl", folder, **asked) as engine:
            media = await engine.read_media(png_of(1, width=64, height=64))
            assert (await engine.complete([media], max_tokens=1)).n_prompt >= media.n_tokens
            return media.n_tokens

    # One for each square of 16, between two words that the toy's vocabulary spells.
    n_of_words = await n_tokens() - 16
    assert 100 <= await n_tokens(image_min_tokens=100) - n_of_words < 130
    assert 0 < await n_tokens(image_max_tokens=10) - n_of_words <= 10


async def test_what_is_loaded_is_bounded_until_its_vectors_are_there(folder: Path) -> None:
    picture = png_of(1, width=64, height=64)
    options = {"image_min_tokens": 2_048, "image_max_tokens": 2_048}
    async with engine_of("qwen2vl", folder, n_ctx=4_096, **options) as engine:
        held: list[weft.Media] = []
        refused = ""
        for _ in range(250):
            try:
                held.append(await engine.read_media(picture))
            except weft.QueueFullError as full:
                refused = str(full)
                break
        assert len(held) > 10
        assert "bytes of images and audio); retry later" in refused
        # Equal ones have the vectors of the first.
        for media in held[:4]:
            await engine.complete(["", media, "?"], max_tokens=1)
        held.append(await engine.read_media(picture))
        held.clear()
        await engine.read_media(picture)
