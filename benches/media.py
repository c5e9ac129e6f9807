"""What a running stream feels of pictures beside it: of their decoding, of the projector, and of the places that they take.

`python -m benches.media`, in the repository's root, measures it on the demo model with a projector of random weights, as large as
a small one of the field (a vision transformer of 12 layers, 384 numbers wide, over 196 patches), in half a minute.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import weft
from tests.engine.tiny_projectors import Size, png_of, write_projector

SIZE = Size(n_embd=384, n_ff=1536, n_layers=12, n_heads=6, patch=16, side=224)
MAX_TOKENS = 600
N_STREAMS = 4


async def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--threads", type=int, help="threads of a decode")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mmproj.gguf")
        loaded = weft.Model.load(weft.DEMO_MODEL)
        write_projector(path, "llava", size=Size(**{**vars(SIZE), "n_text": loaded.n_embd}))
        async with weft.Engine(n_slots=8, n_ctx=8192, n_threads=asked.threads, mmproj=path) as engine:
            print(engine.compute.summary)
            print(f"\n{'a stream of ' + str(MAX_TOKENS) + ' tokens, ms':34}{'p50':>8}{'p99':>8}{'longest':>9}{'pictures':>10}")
            await _felt("alone", engine, new=False, beside=False)
            await _felt("beside pictures that are new", engine, new=True, beside=True)
            await _felt("beside one that is known", engine, new=False, beside=True)
            stats = engine.model.media_stats()
            print(f"\nencoded {stats.n_encoded}, {1e3 * stats.encode_s / max(stats.n_encoded, 1):.0f} ms each")


async def _felt(what: str, engine: weft.Engine, *, new: bool, beside: bool) -> None:
    """Prints the pauses of a stream while, beside it, one picture after the other is asked about."""
    n_seen = 0

    async def ask() -> None:
        nonlocal n_seen
        while True:
            # What encodes it as a file is not what is measured.
            media = await engine.read_media(await asyncio.to_thread(png_of, n_seen if new else 0, width=224, height=224))
            await engine.complete([f"{n_seen}: ", media, " What is it?"], max_tokens=1)
            n_seen += 1

    pauses: list[float] = []
    for seed in range(N_STREAMS):
        asking = asyncio.create_task(ask()) if beside else None
        last: float | None = None
        options: weft.RequestOptions = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "seed": seed}
        async for event in engine.stream(f"Story number {seed}: once upon a time", **options):
            if isinstance(event, weft.Token):
                now = time.perf_counter()
                pauses += [now - last] if last else []
                last = now
        if asking is not None:
            asking.cancel()
    pauses.sort()
    at = [1e3 * pauses[int(part * (len(pauses) - 1))] for part in (0.5, 0.99, 1.0)]
    print(f"{what:34}{at[0]:8.2f}{at[1]:8.2f}{at[2]:9.2f}{n_seen:10}")


if __name__ == "__main__":
    asyncio.run(main())
