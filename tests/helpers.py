"""What several tests need."""

import asyncio
import ctypes
import os
import platform
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, Unpack

import weft
from weft import Choice, Finished, Node, Stream, Token

How = Literal["stream", "whole"]
"""Through which door: `Engine.stream` read event by event, or `Engine.complete`."""

TRIES = 5
"""How often that is tried which depends on how fast the machine is at the moment, where one success shows it."""


class FixedDraftCosts(weft.EngineConfig, frozen=True, kw_only=True):
    """Settings with which the length of drafts does not depend on measured times."""

    draft_row_percent: int = 5
    """What a drafted token adds to a step, in percent of it."""


async def collect(stream: Stream) -> list[Token | Finished]:
    """Every event of the branches of a stream."""
    return [event async for event in stream if isinstance(event, Token | Finished)]


async def branches(
    engine: weft.Engine, how: How, prompt: str | list[int] | weft.Request, **options: Unpack[weft.RequestOptions]
) -> list[Choice]:
    """The branches of the answer, through either door."""
    if how == "whole":
        return list((await engine.complete(prompt, **options)).choices)
    tokens: defaultdict[int, list[Token]] = defaultdict(list)
    finished: dict[int, Finished] = {}
    for event in await collect(engine.stream(prompt, **options)):
        assert event.index not in finished, "a branch yields nothing after its end"
        if isinstance(event, Finished):
            finished[event.index] = event
        else:
            tokens[event.index].append(event)
    return [
        Choice(
            index=index,
            text="".join(token.text for token in tokens[index]) + end.text,
            token_ids=tuple(token.token for token in tokens[index]),
            finish_reason=end.finish_reason,
            stop_reason=end.stop_reason,
            is_context_full=end.is_context_full,
            usage=end.usage,
            is_truncated=end.is_truncated,
            score=end.score,
            logprobs=tuple(token.logprobs for token in tokens[index] if token.logprobs is not None),
        )
        for index, end in sorted(finished.items())
    ]


def ended_by(branch: Choice | Finished | Node) -> Literal["end", "stop", "length", "context_full", "cancelled", "nothing"]:
    """What ended a branch: an end token (or a grammar), a stop string, a limit, the context, or a caller."""
    if branch.finish_reason == "stop":
        return "stop" if isinstance(branch.stop_reason, str) else "end"
    if not isinstance(branch, Node) and branch.is_context_full:
        return "context_full"
    return branch.finish_reason or "nothing"


def prompt_of(n_tokens: int, name: str) -> list[int]:
    """A prompt that no other test begins with: random words, the same for the same name."""
    draw = random.Random(name)
    return [draw.randrange(300, 2000) for _ in range(n_tokens)]


def n_processing(engine: weft.Engine) -> int:
    """How many slots are busy."""
    return sum(slot.is_processing for slot in engine.slots)


def is_idle(engine: weft.Engine) -> bool:
    """Whether no slot is busy and no request waits for one."""
    stats = engine.stats()
    return stats.n_waiting == 0 and not any(slot.is_processing for slot in stats.slots)


async def wait_until(condition: Callable[[], bool], deadline_s: float = 30, pause_s: float = 0.002) -> None:
    """Waits for something that no event announces; `pause_s` is between two looks."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not so within {deadline_s} s"
        await asyncio.sleep(pause_s)


def names_in(folder: Path) -> list[str]:
    """What is in a folder, in order."""
    return sorted(entry.name for entry in folder.iterdir())


async def read_sse(lines: AsyncIterator[str]) -> list[str]:
    """The data of every server-sent event in a response's lines, comments left out."""
    events: list[str] = []
    data: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            events.append("\n".join(data))
            data = []
    assert not data, "an event ends with an empty line"
    return events


def niceness(thread: int) -> int:
    """Of a thread of this process, as Linux counts it; 0 is the one that asks."""
    return os.getpriority(os.PRIO_PROCESS, thread)


def turn_ns(thread: int) -> int:
    """How long the turns are that a thread takes on a processor, in nanoseconds; 0 where Linux does not tell (before 6.12)."""
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    attributes = (ctypes.c_uint64 * 6)()
    assert ctypes.CDLL(None, use_errno=True).syscall(number, thread, attributes, 48, 0) == 0, os.strerror(ctypes.get_errno())
    return int(attributes[3])


def niceness_of_computing() -> int:
    """How much nicer threads are that compute: not at all where they have long turns instead."""
    return 0 if turn_ns(0) else 5
