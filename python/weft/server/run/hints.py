"""Beginnings of prompts that clients say will come again: pinned for a while, and so few that they push nobody else's out."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context

import msgspec

from weft import Engine, WeftError
from weft.server.auth import current_owner
from weft.server.errors import TextsWaitingError
from weft.server.run.pins import Pins
from weft.server.run.sleep import Sleep
from weft.server.run.turns import Turns

__all__ = ["MAX_HINTS", "SHARE", "Hints"]

logger = logging.getLogger(__name__)

MAX_HINTS = 8
"""Most beginnings that are pinned so at a time: of more, the one that was asked for least recently is let go."""

SHARE = 8
"""All of them together have no more tokens than this part of the context."""

RETRY_S = 60.0
"""How long a beginning whose time is over stays, where it cannot be let go now, until it is looked at again."""


class _Hint(msgspec.Struct):
    """A beginning that is pinned."""

    number: int
    tokens: Sequence[int]
    adapters: Sequence[tuple[int, float]] | None
    until_s: float
    """By the event loop's clock."""
    owners: set[str | None]
    """Whose requests had it."""

    @property
    def n_tokens(self) -> int:
        """How long it is."""
        return len(self.tokens)


class _Wish(msgspec.Struct):
    """For how long a beginning is to be kept, and by whom."""

    seconds: float
    owners: set[str | None]


class Hints:
    """The beginnings that are pinned, by what tells them apart."""

    def __init__(self, engine: Engine, pins: Pins, sleep: Sleep, looks: Turns) -> None:
        self._engine = engine
        self._pins = pins
        self._sleep = sleep
        self._looks = looks
        self._hints: OrderedDict[bytes, _Hint] = OrderedDict()
        """Those that were asked for most recently last."""
        self._pending: dict[bytes, asyncio.Task[None]] = {}
        self._wanted: dict[bytes, _Wish] = {}
        """What is wanted of those that are pending."""
        self._too_long: OrderedDict[bytes, int] = OrderedDict()
        """Tokens of those that were too long most recently: nobody needs to count them again."""
        self._one = asyncio.Lock()
        """Pins are made and let go one at a time, so that they are counted right."""
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    def keep(
        self,
        key: bytes,
        seconds: float,
        prefix: Callable[[], Awaitable[Sequence[int]]],
        adapters: Sequence[tuple[int, float]] | None,
    ) -> None:
        """Pins a beginning for so long from now on, soon: nobody waits for it, and what cannot be pinned is not.

        Args:
            key: The same for the same beginning alone.
            seconds: How long; it counts anew whenever the beginning is asked for.
            prefix: Makes its tokens, where it is not pinned yet; what it raises of ours is as good as none.
            adapters: What it is computed with.
        """
        now, owner = asyncio.get_running_loop().time(), current_owner()
        if (wish := self._wanted.get(key)) is not None:
            wish.seconds = max(wish.seconds, seconds)
            wish.owners.add(owner)
        elif (hint := self._hints.get(key)) is not None and self._pins.has(hint.number):
            hint.until_s = max(hint.until_s, now + seconds)
            hint.owners.add(owner)
            self._hints.move_to_end(key)
        elif len(self._pending) < MAX_HINTS and self._too_long.get(key, 0) <= self._most:
            # No part of the request, whose client may leave.
            task = asyncio.get_running_loop().create_task(self._pin(key, prefix, adapters), context=Context())
            self._pending[key], self._wanted[key] = task, _Wish(seconds, {owner})
            task.add_done_callback(lambda _: self._settle(key))

    def hidden_from(self, owner: str | None) -> set[int]:
        """The numbers of what is pinned here that none of an owner's requests had."""
        return {hint.number for hint in self._hints.values() if owner not in hint.owners}

    def close(self) -> None:
        """Pins nothing more."""
        for task in [*self._pending.values(), *([] if self._ending is None else [self._ending])]:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _settle(self, key: bytes) -> None:
        del self._pending[key], self._wanted[key]

    @property
    def _most(self) -> int:
        return self._engine.limits.n_ctx // SHARE

    async def _pin(
        self,
        key: bytes,
        prefix: Callable[[], Awaitable[Sequence[int]]],
        adapters: Sequence[tuple[int, float]] | None,
    ) -> None:
        try:
            async with self._sleep.work():
                tokens = await prefix()
                if len(tokens) > self._most:
                    self._remember_too_long(key, len(tokens))
                if not 0 < len(tokens) <= self._most:
                    return
                async with self._one:
                    self._forget_unpinned()
                    hint = self._take_same(tokens, adapters) or await self._new(tokens, adapters)
                    wish = self._wanted[key]
                    hint.until_s = max(hint.until_s, asyncio.get_running_loop().time() + wish.seconds)
                    hint.owners |= wish.owners
                    self._hints[key] = hint
        except (WeftError, TextsWaitingError) as error:
            logger.debug("a beginning that was marked is not pinned: %s", error)
        else:
            self._set_timer()

    def _remember_too_long(self, key: bytes, n_tokens: int) -> None:
        self._too_long[key] = n_tokens
        if len(self._too_long) > MAX_HINTS:
            self._too_long.popitem(last=False)

    def _take_same(self, tokens: Sequence[int], adapters: Sequence[tuple[int, float]] | None) -> _Hint | None:
        """The hint of the same tokens, which other fields had become: it is no longer theirs."""
        for key, hint in self._hints.items():
            if hint.tokens == tokens and hint.adapters == adapters:
                return self._hints.pop(key)
        return None

    async def _new(self, tokens: Sequence[int], adapters: Sequence[tuple[int, float]] | None) -> _Hint:
        while self._is_full(len(tokens)):
            await self._let_go(*next(iter(self._hints.items())))
        pinned = await self._pins.pin(tokens, adapters)
        return _Hint(pinned.id, tokens, adapters, 0.0, set())

    def _is_full(self, n_more: int) -> bool:
        if not self._hints:
            return False
        return len(self._hints) >= MAX_HINTS or sum(hint.n_tokens for hint in self._hints.values()) + n_more > self._most

    def _forget_unpinned(self) -> None:
        """Counts no longer what somebody else has unpinned, or what there was no room for when the model was loaded again."""
        for key in [key for key, hint in self._hints.items() if not self._pins.has(hint.number)]:
            del self._hints[key]

    async def _let_go(self, key: bytes, hint: _Hint) -> None:
        async with self._looks.one():
            await self._pins.unpin(hint.number)
        del self._hints[key]

    def _set_timer(self, earliest_s: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._hints:
            first_s = max(earliest_s, min(hint.until_s for hint in self._hints.values()))
            self._timer = asyncio.get_running_loop().call_at(first_s, self._end_in_time)

    def _end_in_time(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._end(), context=Context())

    async def _end(self) -> None:
        """Lets those go whose time is over."""
        now = asyncio.get_running_loop().time()
        if not self._sleep.is_awake:
            # Nobody wakes the model for this.
            self._set_timer(now + RETRY_S)
            return
        try:
            async with self._sleep.work(), self._one:
                for key, hint in list(self._hints.items()):
                    # It may be asked for while others are let go.
                    if hint.until_s <= now:
                        await self._let_go(key, hint)
        except (WeftError, TextsWaitingError) as error:
            logger.debug("a beginning that was marked stays pinned for now: %s", error)
            self._set_timer(now + RETRY_S)
        else:
            self._set_timer()
