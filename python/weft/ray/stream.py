"""Streams of requests that replicas compute."""

import asyncio
import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from weft._native import Model
from weft.errors import EngineStoppedError, NotSupportedError, SlowConsumerError, WeftError
from weft.events import CacheExplanation, Event, Finished, Token
from weft.fields.validation import check_range
from weft.ray.errors import NoReplicaError, ReplicaLostError
from weft.ray.fleet import Fleet
from weft.ray.messages import Call, RequestAccepted, received, unpacked

MAX_TRIES = 3
"""Maximum number of replicas that a request is sent to, one after the other, while no part of its response has arrived."""

MAX_BEHIND = 10_000
"""Maximum unread events per branch of a consumer that reads nothing."""

PATIENCE_S = 30.0
"""Seconds after which a consumer that reads nothing and has reached that limit is too slow."""


SILENT_S = 20.0
"""Seconds without a message after which a replica that has accepted a request is presumed dead."""


@dataclass(eq=False)
class Feed:
    """Buffer of the messages from a replica. A task on the engine's event loop fills it, and a `RemoteStream` reads it.

    Attributes:
        fleet: Replicas.
        call: Request to send.
        n: Number of branches.
        taken_within_s: Seconds within which a replica must accept the request.
        on_end: Called when no more messages will arrive.
    """

    fleet: Fleet
    call: Call
    n: int
    accept_timeout_s: float
    on_end: Callable[[], object]
    accepted: RequestAccepted | None = None
    events: deque[Event] = field(default_factory=deque)
    error: Exception | None = None
    explanation: CacheExplanation | None = None
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._arrived = asyncio.Event()
        self._n_open = self.n
        self._written: list[int] = []
        """Generated tokens of branch 0; with the prompt, the likely prefix of a later request."""
        self._read_at = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sends the request. Must be called on the event loop."""
        if not self.is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Cancels the request. Must be called on the event loop. Idempotent."""
        self.is_closed = True
        self.on_end()
        self.events.clear()
        if self._task is not None:
            self._task.cancel()
        self._arrived.set()

    async def cancel(self, index: int) -> None:
        """Cancels one branch."""
        if self.accepted is not None and not self.is_ended:
            with contextlib.suppress(ReplicaLostError):
                await self.fleet.call_replica(self.accepted.replica_id, "cancel", self.call.id, index)

    async def wait(self) -> None:
        """Waits for an event, an error or the end."""
        while not (self.events or self.error is not None or self.is_ended):
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> list[Event]:
        """Returns all events, or raises the error once; returns an empty list at the end."""
        self._read_at = time.monotonic()
        if self.events:
            events = list(self.events)
            self.events.clear()
            return events
        error, self.error = self.error, None
        if error is not None:
            self.is_closed = True
            raise error
        return []

    @property
    def is_ended(self) -> bool:
        """True if no more events will arrive."""
        return self.is_closed or not self._n_open

    async def _run(self) -> None:
        try:
            await self._read_with_retries()
        except Exception as error:  # noqa: BLE001 (raised by the consumer)
            self.error = error
        finally:
            self.on_end()
            self._arrived.set()

    async def _read_with_retries(self) -> None:
        call, n_tries = self.call, 0
        began = time.monotonic()
        while True:
            n_tries += 1
            try:
                await self._read(call)
            except (ReplicaLostError, TimeoutError) as lost:
                if isinstance(lost, TimeoutError):
                    if self.accepted is None:
                        raise NoReplicaError(round(time.monotonic() - began, 1)) from None
                    lost = ReplicaLostError(self.accepted.replica_id)
                replica_id = lost.replica_id or (self.accepted.replica_id if self.accepted is not None else "")
                # Text that was delivered cannot be withdrawn, and another replica might continue it differently.
                if self._n_open < self.n or self._written or n_tries == MAX_TRIES or call.only is not None:
                    raise ReplicaLostError(replica_id, n_tries) from None
                call = msgspec.structs.replace(call, avoid=(*call.avoid, replica_id))
                self.accepted = self.explanation = None
            else:
                return

    async def _read(self, call: Call) -> None:
        async with contextlib.aclosing(self.fleet.begin(call)) as messages:
            async with asyncio.timeout(self.accept_timeout_s) as waiting:
                async for message in messages:
                    # From here on the replica sends a message every few seconds, even if it has no events.
                    waiting.reschedule(asyncio.get_running_loop().time() + SILENT_S)
                    if isinstance(message, RequestAccepted):
                        self.accepted = message
                    elif isinstance(message, CacheExplanation):
                        self.explanation = message
                    elif isinstance(message, EngineStoppedError) and not isinstance(message, ReplicaLostError):
                        break
                    elif isinstance(message, WeftError):
                        raise message
                    elif isinstance(message, list):
                        self._add(message)
                        if not self._n_open:
                            break
            if self._n_open:
                raise ReplicaLostError("" if self.accepted is None else self.accepted.replica_id)
            if self.accepted is not None:
                # A continuation should be routed to this replica, even before its next digest.
                tokens = [*unpacked(call.tokens), *self._written]
                self.fleet.remember(self.accepted.replica_id, tokens, call.salt)

    def _add(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Finished):
                self._n_open -= 1
                self.explanation = event.explanation or self.explanation
            elif isinstance(event, Token) and event.index == 0:
                self._written.append(event.token)
        self.events += events
        self._arrived.set()
        limit = MAX_BEHIND * self.n
        if len(self.events) > limit and time.monotonic() - self._read_at > PATIENCE_S:
            n_behind = len(self.events)
            self.events.clear()
            raise SlowConsumerError(n_behind, limit)


@dataclass(eq=False, kw_only=True)
class RemoteStream:
    """Counterpart of the compiled engine's `Stream` for remote requests, bound to one event loop.

    Attributes:
        feed: Buffer to read.
        loop: Event loop on which it is read.
        model: Vocabulary for the spelling of tokens.
        seed: See `Stream`.
        n_prompt: See `Stream`.
        request_id: See `Stream`.
        slots_before: Returns the offset of a replica's slots in the list of all slots.
    """

    feed: Feed
    loop: asyncio.AbstractEventLoop
    model: Model
    seed: int
    n_prompt: int
    request_id: int
    slots_before: Callable[[str], int]

    def __post_init__(self) -> None:
        self._ready: deque[Event] = deque()
        # The task that fills the feed has no reference to this object, so dropping the last one cancels the request.
        self._dropped = weakref.finalize(self, _close, self.loop, self.feed)
        self._dropped.atexit = False

    @property
    def explanation(self) -> CacheExplanation | None:
        """See `Stream.explanation`; it arrives up to 250 ms late, and changes with the next event."""
        return self.feed.explanation

    def __aiter__(self) -> "RemoteStream":
        return self

    async def __anext__(self) -> Event:
        """Returns the next event of any branch; raises the errors of `next_batch`."""
        if not self._ready:
            self._ready += await self.next_batch()
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def next_batch(self, *, compact: bool = False) -> list[Event]:
        """Returns the next events in order, at least one, or an empty list at the end.

        Raises:
            WeftError: Any error of the replica's engine, including errors that its `generate` raises immediately.
            ReplicaLostError: The replica has died.
            NoReplicaError: No replica accepted the request in time.
        """
        await self.feed.wait()
        events = self.feed.take()
        if not events or self.feed.accepted is None:
            return events
        n_before = self.slots_before(self.feed.accepted.replica_id)
        return [_numbered(received(event, self.model, compact=compact), n_before) for event in events]

    async def readable(self) -> None:
        """Waits until `next_batch` would return immediately."""
        await self.feed.wait()

    def cancel(self, index: int) -> None:
        """Sends a request to cancel one branch.

        Raises:
            InvalidRequestError: `index` is not a branch number.
        """
        check_range("index", index, 0)
        asyncio.run_coroutine_threadsafe(self.feed.cancel(index), self.loop)

    async def fork(self, index: int, **options: object) -> NoReturn:  # noqa: ARG002 (as of `Stream`)
        """Raises NotSupportedError.

        Raises:
            NotSupportedError: Always, because branches of replicas cannot be forked.
        """
        what = "send its prompt and text as a new prompt, of which only new tokens are computed"
        raise NotSupportedError(f"branch {index} runs on a replica and cannot be forked; {what}")

    def fork_boundary(self, index: int) -> tuple[str, int]:
        """Returns "" and 0, since no branch is a fork.

        Raises:
            InvalidRequestError: `index` is not a branch number.
        """
        check_range("index", index, 0)
        return "", 0

    def forked_at(self, index: int) -> tuple[int, int] | None:
        """Returns None, since no branch is a fork.

        Raises:
            InvalidRequestError: `index` is not a branch number.
        """
        check_range("index", index, 0)
        return None

    def close(self) -> None:
        """Cancels the request. Idempotent."""
        self._dropped()

    async def aclose(self) -> None:
        """Does the same as `close`."""
        self.close()


def _numbered(event: Event, n_before: int) -> Event:
    """Returns the event with its slot renumbered for the list of all slots."""
    if n_before and isinstance(event, Token | Finished) and event.slot is not None:
        return msgspec.structs.replace(event, slot=event.slot + n_before)
    return event


def _close(loop: asyncio.AbstractEventLoop, feed: Feed) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(feed.close)
