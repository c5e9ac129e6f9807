"""Those that have much to write take turns: whoever has little waits for one of them, however many they are."""

import asyncio
from itertools import pairwise

from weft.server.run.writing import next_turn

N_WRITERS = 20


async def test_of_many_that_write_much_one_alone_writes_between_two_looks_of_another() -> None:
    written: list[int] = []

    async def write(writer: int) -> None:
        for _ in range(10):
            await next_turn()
            written.append(writer)

    looks: list[int] = []

    async def look() -> None:
        while len(written) < 10 * N_WRITERS:
            looks.append(len(written))
            await asyncio.sleep(0)

    await asyncio.gather(look(), *(write(writer) for writer in range(N_WRITERS)))
    assert max(later - before for before, later in pairwise(looks)) == 1
    # And each as often as the others.
    assert written == list(range(N_WRITERS)) * 10


async def test_one_that_no_longer_waits_holds_nobody_up() -> None:
    waiting = [asyncio.create_task(next_turn()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    async with asyncio.timeout(5):
        await waiting[2]
    assert [task.cancelled() for task in waiting] == [True, True, False]
