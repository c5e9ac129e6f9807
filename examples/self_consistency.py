"""Sample many chains of reasoning, and take the answer that most of them reach.

Prints the votes, then the tokens computed and used.
"""

import asyncio
from collections import Counter

import weft

STORY = "Once upon a time, a fox, a bear and a whale had a race to the lighthouse, far out in the sea. Who would win it?"
ANSWER = 'root ::= " fox" | " bear" | " whale"'


async def main() -> None:
    """Samples twelve chains, and completes each with an answer."""
    async with weft.Engine() as engine:
        tree = weft.Tree(engine, STORY)
        chains = await tree.root.extend(n=12, max_tokens=40, stop=["\n"])
        questions = [chain.append(" In the end, the winner was the") for chain in chains]
        answers = await asyncio.gather(*(node.extend(grammar=ANSWER, max_tokens=8, temperature=0) for node in questions))
        votes = Counter(answer.text.strip() for [answer] in answers)
        print("votes:", ", ".join(f"{answer} {n}" for answer, n in votes.most_common()))
        n_computed = tree.n_computed + tree.n_predicted
        print(f"tokens computed: {n_computed}, tokens used: {n_computed + tree.n_cached}")


asyncio.run(main())
