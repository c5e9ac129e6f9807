"""What a change of adapters costs, and what it leaves of the speed of streams that run beside each other with different ones.

Each change makes llama.cpp plan its graphs anew, so the first decode after one takes longer. `python -m benches.adapters`, in the
repository's root, measures it on the demo model with two toy adapters, in some seconds; `-m model.gguf --lora a.gguf,b.gguf` on
others.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import weft
from tests.adapters import write_adapter

N_ROUNDS = 24
PROMPT = "Once upon a time, in a village by the sea, there was a little girl who wanted to see the moon from close by."
"""So long that it is computed once for each set."""

N_TOKENS = 6
"""Of each answer: the first of them in the step that changes the adapters."""

N_STREAMS = 8
MAX_TOKENS = 128

Adapters = list[tuple[int, float]]


async def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=weft.DEMO_MODEL)
    parser.add_argument("-t", "--threads", type=int, help="threads of a decode")
    parser.add_argument("--lora", help="two adapters of the model, with a comma between them")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        toys = (write_adapter(Path(folder, f"{seed}.gguf"), seed=seed) for seed in (1, 2))
        files = asked.lora.split(",") if asked.lora else [str(path) for path in toys]
        lora = [(path, 0.0) for path in files]
        async with weft.Engine(asked.model, n_slots=N_STREAMS, n_ctx=8192, n_threads=asked.threads, lora=lora) as engine:
            print(engine.compute.summary)
            step_ms, changed_ms = await _changes(engine)
            await _beside(engine, step_ms, changed_ms)


async def _changes(engine: weft.Engine) -> tuple[float, float]:
    """A single stream, whose adapters change from answer to answer, or not.

    Returns how long a step takes, and one that changes adapters.
    """
    least: dict[str, tuple[float, float]] = {}
    print(f"\n{'one stream, least ms per step':36}{'first':>8}{'others':>8}")
    sets: dict[str, list[Adapters]] = {
        "without adapters": [[], []],
        "with one": [[(0, 1.0)], [(0, 1.0)]],
        "with two": [[(0, 1.0), (1, 1.0)], [(0, 1.0), (1, 1.0)]],
        "with one, without, with one": [[(0, 1.0)], []],
        "with the one, with the other": [[(0, 1.0)], [(1, 1.0)]],
    }
    for name, turns in sets.items():
        first, others = [], []
        for i in range(N_ROUNDS):
            began = time.monotonic()
            await engine.complete(PROMPT, max_tokens=N_TOKENS, adapters=turns[i % 2], temperature=0.0)
            recent = [step for step in engine.recent_steps() if step.started >= began and step.n_rows > 0]
            steps = [step.times.decode.total_seconds() * 1e3 for step in recent]
            first.append(steps[0])
            others += steps[1:]
        # The first answer of each set computes its prompt. Other programs make a step longer and never shorter.
        least[name] = (min(others), min(first[2:]))
        print(f"{name:36}{least[name][1]:8.2f}{least[name][0]:8.2f}")
    return least["with the one, with the other"]


async def _beside(engine: weft.Engine, step_ms: float, changed_ms: float) -> None:
    """Streams side by side, of as many sets as there are. A pause is a step of each set at least, with the change before it."""
    columns = f"{'tokens/s':>22}{'changes':>9}{'steps':>7}{'pause p99, ms':>15}{'longest':>9}{'at least':>10}"
    print(f"\n{N_STREAMS} streams of {MAX_TOKENS} tokens{columns}")
    sets: dict[str, list[Adapters]] = {
        "all without adapters": [[]],
        "all with the same": [[(0, 1.0)]],
        "of two sets": [[(0, 1.0)], [(1, 1.0)]],
        "of four sets": [[], [(0, 1.0)], [(1, 1.0)], [(0, 1.0), (1, 1.0)]],
        "each of its own": [[(0, 0.1 * i)] for i in range(N_STREAMS)],
    }
    for name, turns in sets.items():
        before, began = engine.stats(), time.perf_counter()
        read = await asyncio.gather(*[_read(engine, i, turns[i % len(turns)]) for i in range(N_STREAMS)])
        took, after = time.perf_counter() - began, engine.stats()
        n_changes = after.n_adapter_changes - before.n_adapter_changes
        n_steps = after.n_decodes - before.n_decodes
        speed = N_STREAMS * MAX_TOKENS / took
        pauses = sorted(1e3 * pause for each in read for pause in each)
        p99 = pauses[int(0.99 * (len(pauses) - 1))]
        least_ms = len(turns) * changed_ms if len(turns) > 1 else step_ms
        print(f"{name:28}{speed:20.0f}{n_changes:9}{n_steps:7}{p99:15.1f}{pauses[-1]:9.1f}{least_ms:10.1f}")


async def _read(engine: weft.Engine, index: int, adapters: Adapters) -> list[float]:
    """Reads one stream; returns the pauses after its first token, in seconds."""
    prompt = f"Story number {index}: once upon a time, there was"
    options: weft.RequestOptions = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "seed": index, "adapters": adapters}
    times = [time.perf_counter() async for event in engine.stream(prompt, **options) if isinstance(event, weft.Token)]
    return [after - before for before, after in pairwise(times)]


if __name__ == "__main__":
    asyncio.run(main())
