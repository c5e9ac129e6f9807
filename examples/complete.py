"""Print one answer."""

import asyncio

import weft


async def main() -> None:
    async with weft.Engine() as engine:
        completion = await engine.complete("Once upon a time,", max_tokens=100)
        print("Once upon a time," + completion.text)


asyncio.run(main())
