"""Pins prompt prefixes that clients mark for reuse, temporarily and within a small share of the context."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

import msgspec

from weft import Engine, WeftError
from weft.server.auth import current_owner
from weft.server.errors import TextsWaitingError
from weft.server.keyed_lock import KeyedLock
from weft.server.model.idle_unloader import IdleUnloader
from weft.server.model.pins import Adapters, Pins

logger = logging.getLogger(__name__)

MAX_AUTO_PINS = 8
"""Maximum prefixes that are pinned this way. Beyond it, the least recently requested one is unpinned."""

SHARE = 8
"""Divisor of the context size that gives the maximum total tokens of these prefixes."""

RETRY_S = 60.0
"""Seconds until the next attempt to unpin expired prefixes that cannot be unpinned now."""


Tokenize = Callable[[], Awaitable[Sequence[int]]]


class _AutoPin(msgspec.Struct):
    """A pinned prefix."""

    number: int
    tokens: Sequence[int]
    adapters: Adapters
    until_s: float
    """Expiry, on the event loop's clock."""

    @property
    def n_tokens(self) -> int:
        """Length of the prefix in tokens."""
        return len(self.tokens)


class _PinRequest(msgspec.Struct):
    """Requested lifetime and owners of a prefix that is being pinned."""

    seconds: float
    owners: set[str | None]


class AutoPinner:
    """Pins prefixes by key, and unpins them when they expire."""

    def __init__(self, engine: Engine, pins: Pins, sleep: IdleUnloader, cache_lock: KeyedLock) -> None:
        self._engine = engine
        self._pins = pins
        self._sleep = sleep
        self._cache_lock = cache_lock
        self._pins_by_key: OrderedDict[bytes, _AutoPin] = OrderedDict()
        """From least to most recently requested."""
        self._pending: dict[bytes, asyncio.Task[None]] = {}
        self._requested: dict[bytes, _PinRequest] = {}
        """Requested lifetimes of the prefixes in `_pending`."""
        self._too_long: OrderedDict[bytes, int] = OrderedDict()
        """Token counts of recent prefixes that were too long, so that they are not tokenized again."""
        self._lock = asyncio.Lock()
        """Serializes pinning and unpinning, so that the limits hold."""
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    def keep(self, key: bytes, seconds: float, prefix: Tokenize, adapters: Adapters) -> None:
        """Pins a prefix in the background, if possible, or extends its lifetime.

        Args:
            key: Identifies the prefix.
            seconds: Lifetime from now on; each call restarts it.
            prefix: Returns the prefix's tokens; called only if it is not pinned yet. If it raises a WeftError, nothing is pinned.
            adapters: Adapter set that the prefix is computed with.
        """
        now, owner = asyncio.get_running_loop().time(), current_owner()
        if (requested := self._requested.get(key)) is not None:
            requested.seconds = max(requested.seconds, seconds)
            requested.owners.add(owner)
        elif (pin := self._pins_by_key.get(key)) is not None and self._pins.has(pin.number):
            pin.until_s = max(pin.until_s, now + seconds)
            self._pins.add_readers(pin.number, [owner])
            self._pins_by_key.move_to_end(key)
        elif len(self._pending) < MAX_AUTO_PINS and self._too_long.get(key, 0) <= self._max_tokens:
            # Runs in its own context, independent of the request, whose client may disconnect.
            task = asyncio.get_running_loop().create_task(self._pin(key, prefix, adapters), context=Context())
            self._pending[key], self._requested[key] = task, _PinRequest(seconds, {owner})
            task.add_done_callback(lambda _: (self._pending.pop(key), self._requested.pop(key)))

    def close(self) -> None:
        """Cancels pending work."""
        for task in [*self._pending.values(), *([] if self._expiring is None else [self._expiring])]:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _max_tokens(self) -> int:
        return self._engine.limits.n_ctx // SHARE

    async def _pin(self, key: bytes, prefix: Tokenize, adapters: Adapters) -> None:
        try:
            async with self._sleep.work():
                tokens = await prefix()
                if len(tokens) > self._max_tokens:
                    self._too_long[key] = len(tokens)
                    if len(self._too_long) > MAX_AUTO_PINS:
                        self._too_long.popitem(last=False)
                if not 0 < len(tokens) <= self._max_tokens:
                    return
                async with self._lock:
                    self._drop_unpinned()
                    pin = self._take_same(tokens, adapters) or await self._new(tokens, adapters)
                    requested = self._requested[key]
                    pin.until_s = max(pin.until_s, asyncio.get_running_loop().time() + requested.seconds)
                    self._pins.add_readers(pin.number, requested.owners)
                    self._pins_by_key[key] = pin
        except (WeftError, TextsWaitingError) as error:
            logger.debug("a marked prefix was not pinned: %s", error)
        else:
            self._set_timer()

    def _take_same(self, tokens: Sequence[int], adapters: Adapters) -> _AutoPin | None:
        """Removes and returns the pin with the same tokens under another key, or None."""
        for key, pin in self._pins_by_key.items():
            if pin.tokens == tokens and pin.adapters == adapters:
                return self._pins_by_key.pop(key)
        return None

    async def _new(self, tokens: Sequence[int], adapters: Adapters) -> _AutoPin:
        while self._is_full(len(tokens)):
            await self._unpin(*next(iter(self._pins_by_key.items())))
        pinned = await self._pins.pin(tokens, adapters, readers=())
        return _AutoPin(pinned.id, tokens, adapters, 0.0)

    def _is_full(self, n_more: int) -> bool:
        n_tokens = sum(pin.n_tokens for pin in self._pins_by_key.values())
        return bool(self._pins_by_key) and (len(self._pins_by_key) >= MAX_AUTO_PINS or n_tokens + n_more > self._max_tokens)

    def _drop_unpinned(self) -> None:
        """Drops pins that were unpinned through the API, or could not be pinned again after the model was reloaded."""
        for key in [key for key, pin in self._pins_by_key.items() if not self._pins.has(pin.number)]:
            del self._pins_by_key[key]

    async def _unpin(self, key: bytes, pin: _AutoPin) -> None:
        async with self._cache_lock.acquire():
            await self._pins.unpin(pin.number)
        del self._pins_by_key[key]

    def _set_timer(self, earliest_s: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pins_by_key:
            first_s = max(earliest_s, min(pin.until_s for pin in self._pins_by_key.values()))
            self._timer = asyncio.get_running_loop().call_at(first_s, self._start_expiry)

    def _start_expiry(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self._expire(), context=Context())

    async def _expire(self) -> None:
        """Unpins expired prefixes."""
        now = asyncio.get_running_loop().time()
        if not self._sleep.is_awake:
            # Expiry alone does not reload the model.
            self._set_timer(now + RETRY_S)
            return
        try:
            async with self._sleep.work(), self._lock:
                for key, pin in list(self._pins_by_key.items()):
                    # Another request may have extended the lifetime meanwhile.
                    if pin.until_s <= now:
                        await self._unpin(key, pin)
        except (WeftError, TextsWaitingError) as error:
            logger.debug("an expired prefix could not be unpinned yet: %s", error)
            self._set_timer(now + RETRY_S)
        else:
            self._set_timer()
