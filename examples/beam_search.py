"""Find the most likely endings of a story with beam search, and sample others without replacement.

Prints each end with its log-probability, then the tokens computed and used.
"""

import asyncio

import weft

PROMPT = (
    "Once upon a time, there was a fox who lived in a forest. He had a red coat and a long tail, and he liked to run and play "
    "with his friends. But there was one thing that he did not like. He was afraid of the dark, so"
)


async def main() -> None:
    """Searches twice from one prompt, with four beams each."""
    async with weft.Engine(n_slots=4) as engine:
        request = weft.Request(prompt=PROMPT, n=3, beam_width=4, max_tokens=24, temperature=0, top_k=0, top_p=1.0, min_p=0.0)
        likeliest = await engine.complete(request)
        for branch in likeliest.choices:
            print(f"{branch.score:.3f}:{branch.text!r}")
        drawn = await engine.complete(PROMPT, n=4, diverse="beam", max_tokens=24, seed=1)
        for branch in drawn.choices:
            print(f"{branch.score:.1f}:{branch.text!r}")
        stats = engine.stats()
        # Each of the four beams has the prompt, and tokens of its own.
        n_used = sum(4 * (answer.n_prompt + 24) for answer in (likeliest, drawn))
        print(f"tokens computed: {stats.n_computed + stats.n_predicted}, tokens used: {n_used}")


asyncio.run(main())
