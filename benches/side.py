"""One side of `benches.levels`: a process that holds a model, and times what it is told to on its standard input.

It is run as a file, by an interpreter whose Weft may be another one than the repository's. A line is `PROMPT STREAMS SECONDS`:
tokens of a prompt, streams that follow it (0 for the prompt alone), and the least time; the answer is tokens per second, and per
second of the processor. Its arguments are the model and, if there is one, a number of threads.
"""

# ruff: noqa: T201  (its output is its answer; it is a program of its own)

import asyncio
import random
import sys
import time

import weft

THREADS = int(sys.argv[2]) if len(sys.argv) > 2 else None
N_CTX = 8192
N_STREAMS = 8
N_TOKENS = 32
"""Of each stream in one request."""

ORDINARY = range(300, 2000)
"""Ids of tokens that are no control tokens in any model that is measured."""


async def main() -> None:
    """Answers until the input ends."""
    draw = random.Random(0)
    # Nothing is kept in the store; what slots hold is forgotten, so that every round begins with the same empty cache.
    settings = weft.EngineConfig(n_slots=N_STREAMS, n_ctx=N_CTX, cache_ram=0, tuned=False, n_threads=THREADS)
    async with weft.Engine(sys.argv[1], config=settings) as engine:
        print(engine.compute.summary, flush=True)
        for line in sys.stdin:
            n_prompt, n_streams, seconds = line.split()
            n_tokens, took, computed = 0, 0.0, 0.0
            while not n_tokens or took < float(seconds):
                prompt = draw.choices(ORDINARY, k=int(n_prompt))
                n, wall, processor = await (decode(engine, prompt, int(n_streams)) if int(n_streams) else prefill(engine, prompt))
                n_tokens, took, computed = n_tokens + n, took + wall, computed + processor
                for slot in range(N_STREAMS):
                    await engine.erase_slot(slot)
            print(n_tokens / took, n_tokens / computed, flush=True)


def now() -> tuple[float, float]:
    """The time, and that of the processor in all threads, in seconds."""
    return time.perf_counter(), time.process_time()


async def prefill(engine: weft.Engine, prompt: list[int]) -> tuple[int, float, float]:
    """Tokens of a prompt, and the times to the first that follows it."""
    began, begun = now()
    answer = await engine.complete(prompt, max_tokens=1, ignore_eos=True)
    ended, done = now()
    return answer.n_computed, ended - began, done - begun


async def decode(engine: weft.Engine, prompt: list[int], n_streams: int) -> tuple[int, float, float]:
    """Tokens of all streams together but for their first ones, and the engine's time from these to the last.

    A small model is read more slowly than it writes. The processor's time is that of the prompt too, which is short.
    """
    n_tokens, took_ms, (_, begun) = 0, 0.0, now()
    async for event in engine.stream(prompt, n=n_streams, max_tokens=N_TOKENS, ignore_eos=True, seed=1):
        if isinstance(event, weft.Finished):
            n_tokens += event.usage.n_predicted - 1
            took_ms = max(took_ms, event.usage.predicted_ms)
    _, done = now()
    return n_tokens, took_ms / 1_000, done - begun


asyncio.run(main())
