"""Complete a prompt.

Prints the prompt and its completion.
"""

import asyncio

import weft


async def main() -> None:
    """Loads the model, completes the prompt, and unloads the model."""
    async with weft.Engine() as engine:
        completion = await engine.complete("Once upon a time,", max_tokens=100)
        print("Once upon a time," + completion.text)


asyncio.run(main())
