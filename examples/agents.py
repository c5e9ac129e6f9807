"""Let three agents read one brief and begin to answer; fork each answer four times.

Prints the twelve answers, then the tokens computed and used.
"""

import asyncio

import weft

BRIEF = "Once upon a time, three friends went out to look for the lost ring of the king. " * 20
AGENTS = ["The fox", "The bear", "The whale"]


async def fan_out(branch: weft.BranchStream) -> tuple[weft.BranchStream, weft.Completion]:
    """Forks a branch four times after its first event, and returns both."""
    await anext(branch)
    forks = await weft.Completion.collect(await branch.fork_stream(n=4))
    await branch.text()
    return branch, forks


async def main() -> None:
    """Starts one branch for each agent, and sums their usage."""
    async with weft.Engine(n_slots=8) as engine:
        branches: list[weft.BranchOptions] = [{"suffix_prompt": name} for name in AGENTS]
        stream = engine.stream(BRIEF, branches=branches, max_tokens=24, temperature=1.0, ignore_eos=True)
        tasks = [asyncio.create_task(fan_out(branch)) async for branch in stream.branches()]
        usages = []
        for branch, forks in await asyncio.gather(*tasks):
            for fork in forks.choices:
                print(f"{AGENTS[branch.index]}: … {fork.text.strip()}")
            usages += [fork.usage for fork in forks.choices] + ([branch.finished.usage] if branch.finished else [])
        print(f"tokens computed: {sum(one.n_computed for one in usages)}, tokens used: {sum(one.n_prompt for one in usages)}")


asyncio.run(main())
