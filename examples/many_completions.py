"""Complete one prompt eight times. The prompt is computed once.

Prints the eight texts, then the prompt tokens computed and shared.
"""

import asyncio

import weft

PROMPT = "Once upon a time, in a small house at the edge of the forest, there lived a hedgehog who could not sleep."


async def main() -> None:
    """Requests eight branches of one prompt."""
    async with weft.Engine(n_slots=8) as engine:
        completion = await engine.complete(PROMPT, n=8, max_tokens=30)
        for branch in completion.choices:
            print(f"{branch.index}:{branch.text}")
        print(f"prompt tokens computed: {completion.n_computed}, shared: {completion.n_cached}")


asyncio.run(main())
