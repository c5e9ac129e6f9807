"""Find the sentence that is nearest in meaning to a question. Pass an embedding model for good results.

Prints each sentence with its score, best first.
"""

import asyncio
import sys

import weft

SENTENCES = [
    "The fox hid the bread under a stone.",
    "A whale sang in the deep sea.",
    "It rained in the mountains all night.",
]


async def main() -> None:
    """Embeds the sentences and the question, and ranks by similarity."""
    async with weft.Engine(*sys.argv[1:2]) as engine:
        vectors = (await engine.embed(SENTENCES)).vectors.tolist()
        (question,) = (await engine.embed("Where is the bread?")).vectors.tolist()
        # Vectors have the length 1, so that this is the cosine of their angle.
        scores = [sum(a * b for a, b in zip(question, vector, strict=True)) for vector in vectors]  # type: ignore[call-overload]
        for score, sentence in sorted(zip(scores, SENTENCES, strict=True), reverse=True):
            print(f"{score:.3f} {sentence}")


asyncio.run(main())
