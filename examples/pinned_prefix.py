"""Pin a system prompt, and save it to a file for the next process.

Prints the pinned tokens and bytes, then the prompt tokens computed and found in the cache.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import weft

SYSTEM = (
    "Once upon a time there was a storyteller who knew every animal of the forest by its name, and whoever asked got a story."
)


async def main(path: Path) -> None:
    """Pins and saves in one engine, loads in another."""
    async with weft.Engine() as engine:
        prefix = await engine.pin(SYSTEM)
        print(f"pinned {prefix.n_tokens} tokens, {prefix.n_bytes} bytes")
        await engine.save_prefix(SYSTEM, path)
    async with weft.Engine() as engine:
        await engine.load_prefix(path)
        completion = await engine.complete(SYSTEM + " One day a fox", max_tokens=30)
        print(f"prompt tokens computed: {completion.n_computed}, found in the cache: {completion.n_cached}")


with TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder, "storyteller.weft")))
