"""Whatever is asked for at once, in whatever order: every answer is whole, and nothing is held when nothing runs."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

import weft
from tests.helpers import ended_by, is_idle, prompt_of, wait_until

N_OPERATIONS = 100
N_TASKS = 8
N_CONTROL = 8
"""The demo model's first pieces are control tokens, which stand for no text."""


class Users:
    """Several tasks that share one engine, and draw what they do from one generator."""

    def __init__(self, engine: weft.Engine, folder: Path, seed: int) -> None:
        self.engine = engine
        self.folder = folder
        self.draw = random.Random(seed)
        self.known: list[list[int]] = [prompt_of(self.draw.randrange(1, 150), f"known {i}") for i in range(8)]
        self.pins: list[weft.Prefix] = []
        self.refused: Counter[type[Exception]] = Counter()
        self.n_left = N_OPERATIONS

    def prompt(self) -> list[int]:
        """Something that is known, whole or in part, and perhaps something new after it."""
        base = self.draw.choice(self.known)
        kept = self.draw.choice([len(base), self.draw.randrange(1, len(base) + 1)])
        return [*base[:kept], *prompt_of(self.draw.choice([0, 1, 20]), str(self.draw.random()))][:200]

    async def complete(self) -> None:
        n, max_tokens = self.draw.choice([1, 1, 2, 9]), self.draw.choice([0, 1, 8, 30])
        slot = self.draw.choice([None, 0, 1])
        prompt = self.prompt()
        done = await self.engine.complete(prompt, n=n, max_tokens=max_tokens, slot=slot, ignore_eos=True, temperature=2)
        assert [branch.index for branch in done.choices] == list(range(n))
        for branch in done.choices:
            assert branch.usage.n_prompt == len(prompt)
            assert ended_by(branch) == "context_full" or len(branch.token_ids) == branch.usage.n_predicted == max_tokens
            assert branch.text == self.engine.detokenize([token for token in branch.token_ids if token >= N_CONTROL])
        self.known[self.draw.randrange(len(self.known))] = [*prompt, *done.choices[-1].token_ids]

    async def cancel(self) -> None:
        task = asyncio.create_task(self.engine.complete(self.prompt(), n=3, max_tokens=100, ignore_eos=True))
        await asyncio.sleep(self.draw.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def pin(self) -> None:
        self.pins.append(await self.engine.pin(self.prompt()))

    async def unpin(self) -> None:
        if self.pins:
            assert await self.engine.unpin(self.pins.pop())

    async def save(self) -> None:
        prompt, compute = self.prompt(), self.draw.random() < 0.5
        file = await self.engine.save_prefix(prompt, self.folder / str(self.draw.randrange(3)), compute=compute)
        assert file.n_tokens == len(prompt) if compute else file.n_tokens <= len(prompt)

    async def load(self) -> None:
        await self.engine.load_prefix(self.folder / str(self.draw.randrange(3)), slot=self.draw.choice([None, 0, 1]))

    async def erase(self) -> None:
        await self.engine.erase_slot(self.draw.randrange(2))

    async def look(self) -> None:
        nodes = await self.engine.cached()
        for node in nodes:
            above = None if node.parent is None else nodes[node.parent]
            assert node.start == (0 if above is None else above.start + above.n_tokens)

    async def work(self) -> None:
        operations = [self.complete] * 6 + [self.cancel] * 2
        operations += [self.pin, self.unpin, self.unpin, self.save, self.load, self.erase, self.look]
        while self.n_left > 0:
            self.n_left -= 1
            try:
                await self.draw.choice(operations)()
            except (weft.PinBudgetError, weft.ContextOverflowError, weft.InvalidRequestError, FileNotFoundError) as error:
                # Pins may leave no room, nothing may be cached, and no file be there yet: that is said, and hurts nobody.
                self.refused[type(error)] += 1


@pytest.mark.parametrize("cache_ram", [0, 1, None], ids=["no store", "a store of 1 MiB", "a store"])
@pytest.mark.parametrize(("n_slots", "n_ctx"), [(2, 256), (4, 1024)])
async def test_everything_at_once(n_slots: int, n_ctx: int, cache_ram: int | None, tmp_path: Path) -> None:
    async with weft.Engine(n_slots=n_slots, n_ctx=n_ctx, kv_unified=True, n_threads=1, cache_ram=cache_ram) as engine:
        users = Users(engine, tmp_path, seed=n_slots * n_ctx + (cache_ram or 7))
        await asyncio.gather(*(users.work() for _ in range(N_TASKS)))
        assert sum(users.refused.values()) < N_OPERATIONS / 2
        for prefix in users.pins:
            assert await engine.unpin(prefix)
        await wait_until(lambda: is_idle(engine))
        assert not any(node.slots or node.is_pinned for node in await engine.cached())
        stats = engine.stats()
        assert stats.n_cells_used == stats.n_cells_idle
        assert stats.host_cache.max_bytes is None or stats.host_cache.n_bytes <= stats.host_cache.max_bytes
        # Nothing is left of it all that would keep anybody from the whole pool.
        rest = await engine.complete(prompt_of(8, "the rest"), ignore_eos=True)
        assert rest.n_predicted == engine.limits.n_ctx_slot - 8
