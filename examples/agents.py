"""Agents that fan out: they read one long brief, each says what it will do, and four ways of doing so begin where it stands."""

import asyncio

import weft

BRIEF = "Once upon a time, three friends went out to look for the lost ring of the king. " * 20
AGENTS = ["The fox", "The bear", "The whale"]


async def main() -> None:
    """Gives each agent its word, and forks it four times as soon as it has begun."""
    async with weft.Engine(n_slots=8) as engine:
        ways: list[weft.BranchOptions] = [{"suffix_prompt": name} for name in AGENTS]
        stream = engine.generate(BRIEF, branches=ways, max_tokens=24, temperature=1.0, ignore_eos=True)
        computed = used = 0

        async def follow(branch: weft.BranchStream) -> None:
            nonlocal computed, used
            if branch.index < len(AGENTS):
                await anext(branch)
                await branch.fork(n=4)
            text = await branch.text()
            assert branch.finished is not None
            usage = branch.finished.usage
            computed, used = computed + usage.n_computed, used + usage.n_prompt
            print(f"{branch.index}: {text.strip()}")

        await asyncio.gather(*[asyncio.create_task(follow(branch)) async for branch in stream.branches()])
        print(f"prompt tokens computed: {computed}, used: {used}")


asyncio.run(main())
