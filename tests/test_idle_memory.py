"""What only refers to itself is looked for when nobody waits, and what is freed goes back; and requests leave no circles."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from litestar.types import HTTPReceiveMessage, Message

from weft.server.executor import Executor, Purpose
from weft.server.streaming.client_timeouts import ClientTimeouts
from weft.serving import idle_memory
from weft.serving.idle_memory import Collector


class Circle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


class Clock:
    """A loop of which a test turns the hands."""

    def __init__(self) -> None:
        self.now = 0.0
        self.next: tuple[float, Callable[[], Any]] | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[..., Any], *args: object) -> None:
        self.next = (self.now + delay, lambda: call(*args))

    def turn(self) -> None:
        assert self.next is not None
        self.now, call = self.next
        call()


@pytest.fixture
def by_hand() -> Iterator[None]:
    """The interpreter collects nothing by itself."""
    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.set_threshold(*before)


def old_circle() -> "weakref.ref[Circle]":
    """One that has outlived two collections."""
    circle = Circle()
    known = weakref.ref(circle)
    gc.collect(0)
    gc.collect(1)
    return known


@pytest.mark.usefixtures("by_hand")
def test_what_became_old_is_collected_when_nobody_waits() -> None:
    clock = Clock()
    is_idle = False
    Collector(lambda: is_idle).start(clock)  # type: ignore[arg-type]
    known = old_circle()
    clock.turn()
    assert known() is not None, "somebody waits"
    is_idle = True
    clock.turn()
    assert known() is None


@pytest.mark.usefixtures("by_hand")
def test_where_somebody_always_waits_it_is_collected_seldom() -> None:
    clock = Clock()
    Collector(lambda: False).start(clock)  # type: ignore[arg-type]
    known = old_circle()
    while clock.now + idle_memory.CHECK_S < idle_memory.INTERVAL_S:
        clock.turn()
        assert known() is not None
    clock.turn()
    assert known() is None


@pytest.mark.usefixtures("by_hand")
def test_while_much_lives_it_is_collected_very_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    blocks = 1_000
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks)
    Collector(lambda: False).start(clock)  # type: ignore[arg-type]
    clock.turn()
    known = old_circle()
    blocks = 2_001
    while clock.now + idle_memory.CHECK_S < idle_memory.LONG_INTERVAL_S:
        clock.turn()
        assert known() is not None
    clock.turn()
    assert known() is None


class Heap:
    """One that holds so much, until it is trimmed."""

    def __init__(self) -> None:
        self.n_resident = 100 << 20
        self.is_idle = True
        self.clock = Clock()
        self.trims: list[float] = []
        Collector(lambda: self.is_idle, lambda: self.n_resident, self.trim).start(self.clock)  # type: ignore[arg-type]

    def trim(self) -> None:
        self.trims.append(self.clock.now)
        self.n_resident = 110 << 20

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.turn()
            for thread in threading.enumerate():
                if thread.name == "weft-trim":
                    thread.join()


def test_a_heap_that_has_grown_is_trimmed_when_nobody_waits_and_not_again_before_it_grows_again() -> None:
    heap = Heap()
    heap.look(times=3)
    assert not heap.trims
    heap.n_resident = 500 << 20
    heap.look(times=3)
    assert heap.trims == [4 * idle_memory.CHECK_S]
    heap.n_resident += idle_memory.TRIM_BYTES
    heap.look()
    assert len(heap.trims) == 2


def test_a_heap_is_left_alone_while_somebody_waits() -> None:
    heap = Heap()
    heap.is_idle = False
    heap.n_resident = 4_000 << 20
    heap.look(times=int(2 * idle_memory.INTERVAL_S / idle_memory.CHECK_S))
    assert not heap.trims
    heap.is_idle = True
    heap.look()
    assert len(heap.trims) == 1


def test_freed_memory_in_the_middle_of_the_heap_goes_back_to_the_system() -> None:
    script = """
        from weft._native import trim_heap
        from weft.installed.platform import resident_bytes
        # Larger than what Python has an allocator of its own for; each second one stays.
        blocks = [b"x" * (16_000 + number % 2) for number in range(8_000)]
        del blocks[::2]
        before = resident_bytes()
        trim_heap()
        print(before - resident_bytes())
    """
    told = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=60)
    assert int(told.stdout) > 32 << 20


def test_the_interpreter_leaves_old_objects_alone() -> None:
    before = gc.get_threshold()
    try:
        Collector(lambda: False).start(Clock())  # type: ignore[arg-type]
        assert gc.get_threshold() == (*before[:2], idle_memory.NEVER)
    finally:
        gc.set_threshold(*before)


class OwnError(Exception):
    """One that nobody else raises."""


async def never() -> HTTPReceiveMessage:
    """A client that stays."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def nothing(_: Message) -> None:
    """Sends nowhere."""


@pytest.mark.usefixtures("by_hand")
async def test_a_request_whose_work_fails_leaves_no_circle() -> None:
    known: list[weakref.ref[object]] = []

    def made() -> OwnError:
        error = OwnError()
        known.append(weakref.ref(error))
        return error

    def fail() -> None:
        raise made()

    executor = Executor()
    with ClientTimeouts(never, nothing, 10, has_body=False) as client:
        known.append(weakref.ref(client))
        with suppress(OwnError):
            await executor.run_in_thread(Purpose.PROMPT, 1, fail)
    del client
    for _ in range(3):
        await asyncio.sleep(0)
    executor.close()
    await asyncio.sleep(0.05)
    assert [one() for one in known] == [None, None]
