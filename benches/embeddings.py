"""What a stream feels of vectors that are made beside it: the pauses between its tokens, alone and beside texts that never end.

`python -m benches.embeddings [MODEL]`, in the repository's root.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import asyncio
import sys
import time
from itertools import pairwise
from statistics import median, quantiles

import weft

N_TOKENS = 400
TEXTS = [[300 + place % 1000 for place in range(n, n + 200)] for n in range(64)]


async def pauses_ms(engine: weft.Engine) -> list[float]:
    """The pauses between the tokens of one stream, in milliseconds."""
    times = [
        time.perf_counter()
        async for event in engine.stream("Once upon a time,", max_tokens=N_TOKENS, ignore_eos=True, seed=1)
        if isinstance(event, weft.Token)
    ]
    return [1000 * (after - before) for before, after in pairwise(times)]


async def embed_for_ever(engine: weft.Engine) -> None:
    """Asks for vectors again and again."""
    while True:
        await engine.embed(TEXTS)


def told(name: str, pauses: list[float]) -> str:
    """A line of the table."""
    return f"{name:<16} {median(pauses):8.2f} {quantiles(pauses, n=100)[98]:8.2f} {max(pauses):8.2f}"


async def main() -> None:
    """Prints the table."""
    async with weft.Engine(*sys.argv[1:2], n_slots=4) as engine:
        await engine.embed("warm")
        await pauses_ms(engine)
        print(f"{'pauses in ms':<16} {'median':>8} {'p99':>8} {'most':>8}")
        print(told("alone", await pauses_ms(engine)))
        for n in (1, 4):
            before, started = engine.embedding_stats().n_tokens, time.perf_counter()
            tasks = [asyncio.create_task(embed_for_ever(engine)) for _ in range(n)]
            pauses = [pause for _ in range(3) for pause in await pauses_ms(engine)]
            speed = (engine.embedding_stats().n_tokens - before) / (time.perf_counter() - started)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            print(told(f"beside {n}", pauses), f"{speed:8.0f} tokens/s made into vectors")


if __name__ == "__main__":
    asyncio.run(main())
