"""Each kind of memory shares, stores, resumes and saves, and what it then computes is what an empty cache computes.

Right is not "the same bits": attention sums in the order of the cells, and a product of one row is not summed as one of many. So
log-probabilities are compared, with those of an engine that has nothing cached.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import weft
from tests.engine.tiny_models import N_CONTROL, N_VOCAB, N_WINDOW, Kind
from tests.helpers import is_idle, wait_until
from weft import Choice, Logprobs, RequestOptions


def hot(max_tokens: int, n: int = 1) -> RequestOptions:
    """No two branches are alike."""
    return {
        "max_tokens": max_tokens,
        "n": n,
        "temperature": 1,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "ignore_eos": True,
        "logprobs": 20,
    }


def greedy(max_tokens: int, n: int = 1, slot: int | None = None) -> RequestOptions:
    """All branches are alike."""
    return {"max_tokens": max_tokens, "n": n, "slot": slot, "temperature": 0, "ignore_eos": True, "logprobs": 20}


@dataclass(frozen=True)
class Case:
    """A kind of memory, and how attention and its cache are computed."""

    kind: Kind
    flash: Literal["auto", "on", "off"] = "auto"
    """Our own attention where that is usable, and llama.cpp's two."""
    kv: Literal["f16", "q8_0"] = "f16"

    def __str__(self) -> str:
        return self.kind if self.kind == "recurrent" else f"{self.kind}-{self.kv}-flash-{self.flash}"

    @property
    def tolerance(self) -> float:
        """How much the logarithm of a probability may differ.

        Measured: at most 0.023 where llama.cpp's flash attention sums in 16 bits, which it does with few rows and values in f16,
        0.001 with its other attention, and 0.0004 with ours. One other token far back makes a difference of 0.1 and more.
        """
        return 0.05 if self.flash == "on" and self.kv == "f16" else 0.005

    @property
    def keeps_states(self) -> bool:
        """Whether what it computed cannot be cut, so that it is kept as a whole where a prompt or a branch ends."""
        return self.kind in ("recurrent", "hybrid")


# A state has no cells whose format could differ. A quantised V needs flash attention.
CASES = [
    Case("recurrent"),
    *(
        Case(kind, flash, kv)  # type: ignore[arg-type]
        for kind in ("attention", "window", "hybrid")
        for flash, kv in (("auto", "f16"), ("on", "f16"), ("off", "f16"), ("auto", "q8_0"), ("on", "q8_0"))
    ),
]

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_kind = pytest.mark.parametrize("case", [Case("attention"), Case("window"), Case("recurrent"), Case("hybrid")], ids=str)


def text_of(n_tokens: int, name: object) -> list[int]:
    """Random bytes, the same for the same name."""
    draw = random.Random(str(name))
    return [draw.randrange(N_CONTROL, N_VOCAB) for _ in range(n_tokens)]


class Alone:
    """Computes every text from an empty cache."""

    def __init__(self, engine: weft.Engine, case: Case) -> None:
        self._engine = engine
        self._case = case

    async def distribution(self, text: Sequence[int]) -> dict[int, float]:
        """The log-probability of every token after a text."""
        completion = await self._engine.complete(text, max_tokens=1, temperature=0, logprobs=N_VOCAB)
        assert completion.n_computed == len(text)
        await self._engine.erase_slot(0)
        [logprobs] = completion.choices[0].logprobs
        return {top.token: top.logprob for top in logprobs.top}

    async def difference(self, text: Sequence[int], logprobs: Logprobs) -> float:
        """By how much log-probabilities after a text are wrong."""
        distribution = await self.distribution(text)
        return max(abs(top.logprob - distribution[top.token]) for top in logprobs.top)

    async def check(self, prompt: Sequence[int], branch: Choice, places: Iterable[int] = (0,)) -> None:
        """Checks what a branch drew its tokens from, at these places."""
        for place in places:
            difference = await self.difference([*prompt, *branch.token_ids[:place]], branch.logprobs[place])
            assert difference < self._case.tolerance, f"{self._case}, token {place} after a prompt of {len(prompt)}"


Models = dict[Kind, Path]


@asynccontextmanager
async def running(
    models: Models, case: Case, *, n_slots: int = 8, n_ctx: int = 2048, cache_ram: int | None = None
) -> AsyncIterator[weft.Engine]:
    """An engine of this kind."""
    async with weft.Engine(
        models[case.kind],
        n_slots=n_slots,
        n_ctx=n_ctx,
        kv_unified=True,
        n_threads=1,
        flash_attention=case.flash,
        type_k=case.kv,
        type_v=case.kv,
        cache_ram=cache_ram,
    ) as engine:
        yield engine


@asynccontextmanager
async def alone(models: Models, case: Case) -> AsyncIterator[Alone]:
    async with running(models, case, n_slots=1, n_ctx=1024, cache_ram=0) as engine:
        yield Alone(engine, case)


def is_empty(engine: weft.Engine) -> bool:
    """Whether nothing is in the pool."""
    return is_idle(engine) and engine.stats().n_cells_used == 0


@each_case
async def test_a_token_far_back_is_told_apart(case: Case, tiny_models: Models) -> None:
    async with alone(tiny_models, case) as reference:
        text = text_of(60, "far back")
        distribution = await reference.distribution(text)
        for place in (0, 30, 60 - N_WINDOW, 59):
            other = await reference.distribution([*text[:place], text[place] ^ 64, *text[place + 1 :]])
            assert max(abs(other[token] - logprob) for token, logprob in distribution.items()) > 0.1


@each_case
@pytest.mark.parametrize("where", ["pool", "store", "store after many others"])
async def test_branches_are_continued_without_computing_their_past(case: Case, where: str, tiny_models: Models) -> None:
    in_pool = where == "pool"
    async with running(tiny_models, case, cache_ram=0 if in_pool else None) as engine, alone(tiny_models, case) as reference:
        prompt = text_of(60, f"branches {where}")
        first = await engine.complete(prompt, **hot(24, n=4))
        assert (first.n_computed, first.n_cached) == (60, 3 * 60)
        if where == "store after many others":
            for i in range(20):
                await engine.complete(text_of(100, f"other {i}"), **hot(4, n=2))
        if not in_pool:
            await wait_until(lambda: is_empty(engine))
        for branch in reversed(first.choices):
            assert len(branch.token_ids) == 24
            path = [*prompt, *branch.token_ids, *text_of(2, "new")]
            [continued] = (await engine.complete(path, **greedy(1))).choices
            assert (continued.usage.n_computed, continued.usage.n_cached) == (1 + 2, 60 + 24 - 1)
            await reference.check(path, continued)
            await reference.check(prompt, branch, (0, 1, 23))
        assert (engine.stats().n_reloaded > 0) is not in_pool


@each_case
async def test_beams_are_forks_that_compute_what_their_texts_alone_would(case: Case, tiny_models: Models) -> None:
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        prompt = text_of(50, "beams")
        before = engine.stats()
        asked: RequestOptions = {**hot(20, n=3), "beam_width": 6}
        found = await engine.complete(prompt, **asked)
        after = engine.stats()
        assert (after.n_computed - before.n_computed, after.n_predicted - before.n_predicted) == (50, 6 * 20)
        assert len({branch.token_ids for branch in found.choices}) == 3
        for branch in found.choices:
            await reference.check(prompt, branch, (0, 1, 10, 19))
            mean = sum(one.chosen.logprob for one in branch.logprobs) / 20
            # Ends are banned, so that what is left is a little likelier than the model says.
            assert branch.score is not None
            assert mean - 1e-4 < branch.score < mean + 0.05


@each_case
async def test_branches_are_continued_together(case: Case, tiny_models: Models) -> None:
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        prompt = text_of(50, "together")
        first = await engine.complete(prompt, **hot(20, n=4))
        await wait_until(lambda: is_empty(engine))
        paths = [[*prompt, *branch.token_ids] for branch in first.choices]
        answers = await asyncio.gather(*(engine.complete(path, **hot(20, n=2)) for path in paths))
        assert [answer.n_computed for answer in answers] == [1] * 4
        for path, answer in zip(paths, answers, strict=True):
            for branch in answer.choices:
                await reference.check(path, branch, (0, 19))


@pytest.mark.parametrize("case", [case for case in CASES if not case.keeps_states], ids=str)
async def test_a_prompt_that_is_known_is_computed_only_for_its_logits(case: Case, tiny_models: Models) -> None:
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        prompt = text_of(60, "again")
        for _ in range(3):
            answer = await engine.complete(prompt, **greedy(1))
            await wait_until(lambda: is_empty(engine))
            await reference.check(prompt, answer.choices[0])
        assert answer.n_computed == 1


@pytest.mark.parametrize("case", [case for case in CASES if case.keeps_states], ids=str)
@pytest.mark.parametrize("n", [1, 4])
async def test_a_prompt_that_is_known_is_not_decoded_again(case: Case, n: int, tiny_models: Models) -> None:
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        prompt = text_of(60, "again")
        first = await engine.complete(prompt, **greedy(12))
        for i in range(10):
            await engine.complete(text_of(100, f"other {i}"), **greedy(4))
        await wait_until(lambda: is_empty(engine))
        before = engine.stats()
        again = await engine.complete(prompt, **greedy(1, n=n))
        assert engine.stats().n_decodes == before.n_decodes
        assert engine.stats().n_computed == before.n_computed
        assert [branch.logprobs[0].top[0].logprob for branch in again.choices] == [
            first.choices[0].logprobs[0].top[0].logprob
        ] * n
        longer = await engine.complete(prompt, **greedy(12, n=n))
        assert engine.stats().n_computed == before.n_computed
        for branch in longer.choices:
            await reference.check(prompt, branch, range(12))
        if n == 1:
            assert longer.text == first.text


@each_case
@pytest.mark.parametrize("cache_ram", [0, None], ids=["no store", "a store"])
async def test_a_prompt_that_begins_an_earlier_one_is_computed_once(
    case: Case, cache_ram: int | None, tiny_models: Models
) -> None:
    async with running(tiny_models, case, cache_ram=cache_ram) as engine, alone(tiny_models, case) as reference:

        async def n_computed(text: Sequence[int]) -> int:
            [branch] = (await engine.complete(text, **greedy(20))).choices
            await wait_until(lambda: is_idle(engine) if cache_ram == 0 else is_empty(engine))
            await reference.check(text, branch, (0, 19))
            return branch.usage.n_computed

        prompt = text_of(60, "begins")
        longer, other = [*prompt, 5, *text_of(29, "one end")], [*prompt, 6, *text_of(29, "another end")]
        assert await n_computed(longer) == 90
        assert await n_computed(prompt) <= 60
        # A state is stored with the logits after it, and without a store it is nowhere but at the end of an answer.
        n_again = {None: 0, 0: 60}[cache_ram] if case.keeps_states else 1
        assert [await n_computed(prompt) for _ in range(2)] == [n_again, n_again]
        if not (case.keeps_states and cache_ram == 0):
            assert await n_computed(other) in (30, 31)
            assert await n_computed(prompt) == n_again
            assert await n_computed(longer) == n_again


@each_case
@pytest.mark.parametrize("cache_ram", [0, None], ids=["no store", "a store"])
async def test_what_gave_up_its_slot_goes_on_as_if_alone(case: Case, cache_ram: int | None, tiny_models: Models) -> None:
    async with running(tiny_models, case, n_ctx=256, cache_ram=cache_ram) as engine, alone(tiny_models, case) as reference:
        prompts = [text_of(20, f"pressure {i}") for i in range(4)]
        answers = await asyncio.gather(*(engine.complete(prompt, **greedy(200)) for prompt in prompts))
        assert engine.stats().n_preempted > 0
        for prompt, answer in zip(prompts, answers, strict=True):
            [branch] = answer.choices
            assert (branch.finish_reason, len(branch.token_ids)) == ("length", 200)
            await reference.check(prompt, branch, (0, 1, 50, 100, 150, 199))


@each_kind
async def test_what_is_pinned_is_never_computed_again(case: Case, tiny_models: Models) -> None:
    async with running(tiny_models, case, n_ctx=512, cache_ram=1) as engine, alone(tiny_models, case) as reference:
        prompt = text_of(60, "pinned")
        prefix = await engine.pin(prompt)
        # Others begin as the prompt does, or go on after it, until their window has moved on.
        beginnings = [0, 1, 20, 59, 60]
        for i in range(100):
            await engine.complete([*prompt[: beginnings[i % 5]], *text_of(300, f"flood {i}")], **greedy(1))
            if engine.stats().host_cache.n_evicted > 0 and i >= 5:
                break
        assert engine.stats().host_cache.n_evicted > 0, "what is not pinned has to go"
        for n_common in beginnings:
            await engine.complete([*prompt[:n_common], *text_of(100, f"beside {n_common}")], **greedy(1))
            [found] = (await engine.complete([*prompt, *text_of(2, f"found {n_common}")], **greedy(1))).choices
            assert found.usage.n_computed == 2, f"beside a text that shares {n_common} tokens"
        path = [*prompt, *text_of(2, "new")]
        [branch] = (await engine.complete(path, **greedy(20))).choices
        assert branch.usage.n_computed == 2
        await reference.check(path, branch, (0, 19))
        assert await engine.unpin(prefix)


@each_kind
async def test_an_edited_last_turn_computes_only_from_the_end_of_the_turn_before(case: Case, tiny_models: Models) -> None:
    turns = [*text_of(120, "first turn"), *text_of(40, "second turn")]
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        assert engine.limits.forks_anywhere == (case.kind == "attention")
        request = weft.Request(prompt=[*turns, *text_of(30, "last turn")], checkpoints_at=[120, 160])
        await engine.complete(request, **greedy(4))
        for kept, name in ((160, "edited"), (120, "edited before"), (160, "edited again")):
            edited = [*turns[:kept], *text_of(25, name)]
            [branch] = (await engine.complete(edited, **greedy(12))).choices
            # A window goes on from where it still holds what it sees.
            assert branch.usage.n_computed == 25 or case.kind == "window"
            await reference.check(edited, branch, (0, 11))


@each_case
async def test_a_saved_prefix_is_loaded_by_another_engine(case: Case, tiny_models: Models, tmp_path: Path) -> None:
    prompt, path = text_of(90, "saved"), tmp_path / "prefix.weft"
    async with running(tiny_models, case) as engine:
        assert (await engine.save_prefix(prompt, path)).n_tokens == 90
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        assert (await engine.load_prefix(path)).n_tokens == 90
        longer = [*prompt, *text_of(2, "new")]
        answer = await engine.complete(longer, **hot(20, n=3))
        assert answer.n_computed == engine.stats().n_computed == 2
        for branch in answer.choices:
            await reference.check(longer, branch, (0, 19))


@each_kind
async def test_a_file_of_another_kind_is_refused(case: Case, tiny_models: Models, tmp_path: Path) -> None:
    path = tmp_path / "prefix.weft"
    async with running(tiny_models, case) as engine:
        await engine.save_prefix(text_of(40, "refused"), path)
    for other in tiny_models.keys() - {case.kind}:
        async with running(tiny_models, Case(other)) as engine:
            with pytest.raises(weft.PrefixFileError):
                await engine.load_prefix(path)
            assert await engine.cached() == []
            assert (await engine.complete(text_of(40, "refused"), max_tokens=1)).n_cached == 0


async def test_a_window_whose_cells_were_used_again_is_a_miss(tiny_models: Models) -> None:
    case = Case("window")
    async with running(tiny_models, case, n_slots=3, n_ctx=512, cache_ram=0) as engine, alone(tiny_models, case) as reference:
        first, second, third = (text_of(n, f"recycled {n}") for n in (101, 102, 200))
        await engine.complete(first, **greedy(1, slot=0))
        # A pin shares its cells with no other sequence; llama.cpp does not reuse shared cells.
        await engine.pin(second)
        fork = [*second[:40], *text_of(3, "fork")]
        [hit] = (await engine.complete(fork, **greedy(1, slot=2))).choices
        assert hit.usage.n_cached == 40
        await reference.check(fork, hit)
        # llama.cpp looks for cells from the first one that was given up, and takes those that no window sees on its way.
        await engine.erase_slot(2)
        await engine.erase_slot(0)
        await engine.complete(third, **greedy(1, slot=0))
        [miss] = (await engine.complete(fork, **greedy(1, slot=2))).choices
        assert miss.usage.n_cached == 0
        await reference.check(fork, miss)
        # At its end it still can be continued.
        end = [*second, *text_of(3, "end")]
        [hit] = (await engine.complete(end, **greedy(20, slot=2))).choices
        assert hit.usage.n_cached == 102
        await reference.check(end, hit, (0, 19))


async def test_a_window_is_kept_along_a_prompt_and_where_two_have_parted(tiny_models: Models) -> None:
    case = Case("window")
    async with running(tiny_models, case, n_slots=2) as engine, alone(tiny_models, case) as reference:
        shared = text_of(310, "parted")
        # The second one goes on from the last place along the first one, which is 288 tokens from its beginning by default.
        for nth, n_cached in enumerate((0, 288, 310, 310)):
            prompt = [*shared, nth + N_CONTROL, *text_of(99, f"parted {nth}")]
            [branch] = (await engine.complete(prompt, **greedy(4))).choices
            assert (branch.usage.n_computed, branch.usage.n_cached) == (410 - n_cached, n_cached)
            await reference.check(prompt, branch, (0, 3))
            # Of what is saved of the first one, the window has moved on.
            await wait_until(lambda: is_empty(engine))


@each_kind
async def test_a_context_is_shifted(case: Case, tiny_models: Models) -> None:
    prompt = text_of(90, "shifted")
    async with running(tiny_models, case, n_slots=2, n_ctx=256) as engine, alone(tiny_models, case) as reference:
        request = weft.Request(prompt=prompt, context_shift=True, n_keep=20)
        n_keep = 20 + len(engine.tokenize(""))
        answer = await engine.complete(request, **hot(400, n=2))
        assert answer.n_computed == 90
        for branch in answer.choices:
            context = list(prompt)
            for place, token in enumerate(branch.token_ids):
                if len(context) == 256:
                    del context[n_keep : n_keep + (255 - n_keep) // 2]
                if place in (0, 165, 166, 167, 399):
                    difference = await reference.difference(context, branch.logprobs[place])
                    assert difference < case.tolerance, f"{case}, token {place}"
                context.append(token)
            assert (branch.is_truncated, branch.usage.n_context) == (True, len(context) - 1)


@each_case
async def test_log_probabilities_of_a_prompt_are_those_of_generation(case: Case, tiny_models: Models) -> None:
    prompt = text_of(100, "told")
    async with running(tiny_models, case) as engine, alone(tiny_models, case) as reference:
        await engine.complete(prompt, **greedy(1))
        answer = await engine.complete(prompt, max_tokens=1, prompt_logprobs=20)
        assert answer.n_computed == len(answer.prompt_logprobs) == 100
        for place in (1, 2, 50, 64, 65, 99):
            logprobs = answer.prompt_logprobs[place]
            assert logprobs is not None
            assert logprobs.chosen.token == prompt[place]
            assert await reference.difference(prompt[:place], logprobs) < case.tolerance, f"{case}, token {place}"


@pytest.mark.parametrize("cache_ram", [0, None], ids=["no store", "a store"])
@pytest.mark.parametrize(("kind", "seeds"), [("attention", [0]), ("window", range(3)), ("recurrent", [0]), ("hybrid", [0])])
async def test_a_fork_anywhere_is_right(kind: Kind, seeds: Sequence[int], cache_ram: int | None, tiny_models: Models) -> None:
    case = Case(kind)
    async with alone(tiny_models, case) as reference:
        for seed in seeds:
            async with running(tiny_models, case, n_slots=3, n_ctx=512, cache_ram=cache_ram) as engine:
                await check_forks(engine, reference, random.Random(seed))


async def check_forks(engine: weft.Engine, reference: Alone, draw: random.Random) -> None:
    """Asks for three completions at a time, of texts that begin as far as drawn as one that is known or is being computed."""
    texts: list[list[int]] = []
    n_cached = 0
    for _ in range(8):
        prompts: list[list[int]] = []
        for _ in range(3):
            known = draw.choice([*texts, *prompts, []])
            shared = known[: draw.choice([len(known), draw.randint(0, len(known))])]
            prompts.append([*shared[:250], *text_of(draw.randint(1, 40), draw.random())])
        lengths = [draw.choice([1, 10, 60]) for _ in prompts]
        requests = zip(prompts, lengths, strict=True)
        answers = await asyncio.gather(*(engine.complete(prompt, **greedy(n)) for prompt, n in requests))
        for prompt, n, answer in zip(prompts, lengths, answers, strict=True):
            n_cached += answer.n_cached
            await reference.check(prompt, answer.choices[0], {0, n - 1})
            texts.append([*prompt, *answer.choices[0].token_ids])
    assert n_cached > 0
