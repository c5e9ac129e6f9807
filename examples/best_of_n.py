"""Continue the two most likely of sixteen beginnings, and keep the most likely story.

Prints the story and its mean log-probability, then the tokens computed and used.
"""

import asyncio

import weft


def likelihood(node: weft.Node) -> float:
    """Returns the mean log-probability of the generated tokens on the path to a node."""
    written = [each.chosen.logprob for part in node.ancestors for each in part.logprobs if each is not None]
    return sum(written) / max(len(written), 1)


async def main() -> None:
    """Extends sixteen beginnings, then the two likeliest."""
    async with weft.Engine() as engine:
        tree = weft.Tree(engine, "Once upon a time, there was a fox who lived in a forest and was afraid of the dark.")
        beginnings = await tree.root.extend(n=16, max_tokens=24)
        likeliest = sorted(beginnings, key=likelihood)[-2:]
        ends = [end for node in likeliest for end in await node.extend(n=8, max_tokens=40)]
        best = max(ends, key=likelihood)
        print(best.path_text)
        print(f"mean log-probability: {likelihood(best):.2f}, the best of {len(ends)}")
        n_computed = tree.n_computed + tree.n_predicted
        print(f"tokens computed: {n_computed}, tokens used: {n_computed + tree.n_cached}")


asyncio.run(main())
