"""Ask sixteen questions about one document in one request. The document is computed once.

Prints the answers, then the tokens computed and used.
"""

import asyncio

import weft

DOCUMENT = "Once upon a time, a fox named Mia lived by the sea. " + "Every day she found a shell, and gave it to a friend. " * 24
WHO = ["The fox", "The friend", "Mia", "The sea"]
WHAT = ["was", "said", "wanted", "found"]
QUESTIONS = [f" {who} {what}" for who in WHO for what in WHAT]


async def main() -> None:
    """Prints the answer to each question, and the tokens of all."""
    async with weft.Engine(n_slots=4) as engine:
        branches: list[weft.BranchOptions] = [{"suffix_prompt": question} for question in QUESTIONS]
        answer = await engine.complete(DOCUMENT, branches=branches, max_tokens=12, temperature=0.0)
        for question, branch in zip(QUESTIONS, answer.choices, strict=True):
            print(f"{question.strip()}{branch.text}".splitlines()[0])
        usages = [branch.usage for branch in answer.choices]
        print(f"tokens computed: {sum(one.n_computed for one in usages)}, tokens used: {sum(one.n_prompt for one in usages)}")


asyncio.run(main())
