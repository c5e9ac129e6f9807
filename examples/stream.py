"""Stream a completion.

Prints the text as it is generated, then the reason of its end and the time.
"""

import asyncio

import weft


async def main() -> None:
    """Prints each piece of text as it is generated."""
    async with weft.Engine() as engine:
        async for event in engine.stream("Once upon a time,", max_tokens=100):
            match event:
                case weft.Token(text=text):
                    print(text, end="", flush=True)
                case weft.Finished(text=rest, finish_reason=reason, usage=usage):
                    print(f"{rest}\n({reason} after {usage.n_predicted} tokens in {usage.predicted_ms:.0f} ms)")


asyncio.run(main())
