"""Find a story that contains given words, with Monte Carlo tree search over text.

Prints the best story, its share of the words, and the tokens computed and used.
"""

import asyncio
import math
from collections import defaultdict

import weft

WORDS = ("fox", "river", "bread", "moon", "friend")
ROUNDS, WAYS, TRIALS = 12, 4, 2


def score(text: str) -> float:
    """Returns the share of the words that the text contains."""
    return sum(word in text for word in WORDS) / len(WORDS)


async def main() -> None:
    """Searches, and prints the best story.

    Each round descends to the most promising leaf (UCT: Kocsis and Szepesvári, 2006), extends it in four ways, and completes each
    with two stories, which are scored and dropped.
    """
    visits: defaultdict[int, int] = defaultdict(int)
    values: defaultdict[int, float] = defaultdict(float)

    def promise(node: weft.Node) -> float:
        assert node.parent is not None, "a child has a parent"
        return values[node.id] / visits[node.id] + 0.5 * math.sqrt(math.log(visits[node.parent.id]) / visits[node.id])

    async with weft.Engine() as engine:
        tree = weft.Tree(engine, "Once upon a time, there was a fox.")
        best = tree.root.text
        for _ in range(ROUNDS):
            node = tree.root
            while node.children:
                node = max(node.children, key=promise)
            children = await node.extend(n=WAYS, max_tokens=16, ignore_eos=True)
            trials = await asyncio.gather(*(way.extend(n=TRIALS, max_tokens=64) for way in children))
            for trial in (trial for of_one in trials for trial in of_one):
                best = max(best, trial.path_text, key=score)
                for ancestor in trial.ancestors[:-1]:
                    visits[ancestor.id] += 1
                    values[ancestor.id] += score(trial.path_text)
                trial.drop()
        print(best)
        print(f"words used: {score(best):.0%}, nodes: {len(tree)}, stories tried: {ROUNDS * WAYS * TRIALS}")
        n_computed = tree.n_computed + tree.n_predicted
        print(f"tokens computed: {n_computed}, tokens used: {n_computed + tree.n_cached}")


asyncio.run(main())
