"""Send two prompts with the same beginning. The second computes only its own tokens.

Prints both texts, each with the prompt tokens computed and found in the cache.
"""

import asyncio

import weft

SETTING = "Once upon a time there was a village by the sea. Every morning the boats went out, and every evening they came home."


async def main() -> None:
    """Completes two prompts with the same beginning."""
    async with weft.Engine() as engine:
        for ending in (" One day a whale", " One night the lighthouse"):
            completion = await engine.complete(SETTING + ending, max_tokens=30)
            print(ending + completion.text)
            print(f"prompt tokens computed: {completion.n_computed}, found in the cache: {completion.n_cached}")


asyncio.run(main())
