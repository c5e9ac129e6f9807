"""One side of `benches.levels`: a process that holds a model, and times what it is told to on its standard input.

It is run as a file, by an interpreter whose Weft may be another one than the repository's. A line is `PROMPT STREAMS SECONDS`:
tokens of a prompt, streams that follow it (0 for the prompt alone), and the least time; the answer is tokens per second.
"""

# ruff: noqa: T201  (its output is its answer; it is a program of its own)

import asyncio
import random
import sys
import time

import weft

N_CTX = 8192
N_STREAMS = 8
N_TOKENS = 32
"""Of each stream in one request."""

ORDINARY = range(300, 2000)
"""Ids of tokens that are no control tokens in any model that is measured."""


async def main() -> None:
    """Answers until the input ends."""
    draw = random.Random(0)
    # Nothing is kept, so that every round begins with the same empty cache.
    async with weft.Engine(sys.argv[1], n_slots=N_STREAMS, n_ctx=N_CTX, cache_ram=0, tuned=False) as engine:
        print(engine.compute.summary, flush=True)
        for line in sys.stdin:
            n_prompt, n_streams, seconds = line.split()
            n_tokens, took = 0, 0.0
            while not n_tokens or took < float(seconds):
                prompt = draw.choices(ORDINARY, k=int(n_prompt))
                n, s = await (decode(engine, prompt, int(n_streams)) if int(n_streams) else prefill(engine, prompt))
                n_tokens, took = n_tokens + n, took + s
            print(n_tokens / took, flush=True)


async def prefill(engine: weft.Engine, prompt: list[int]) -> tuple[int, float]:
    """Tokens of a prompt, and the time to the first that follows it."""
    began = time.perf_counter()
    answer = await engine.complete(prompt, max_tokens=1, ignore_eos=True)
    return answer.n_computed, time.perf_counter() - began


async def decode(engine: weft.Engine, prompt: list[int], n_streams: int) -> tuple[int, float]:
    """Tokens of all streams together, from where all of them have begun to the last, and their time."""
    n_tokens, began, behind = 0, 0.0, 0
    async for event in engine.generate(prompt, n=n_streams, max_tokens=N_TOKENS, ignore_eos=True, seed=1):
        if isinstance(event, weft.Token):
            n_tokens += 1
            if n_tokens == 2 * n_streams:
                began, behind = time.perf_counter(), n_tokens
    return n_tokens - behind, time.perf_counter() - began


asyncio.run(main())
