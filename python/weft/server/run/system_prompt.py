"""What every prompt of `/completion` follows: one text for all clients, computed once and kept."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from weft import Engine, EngineStopped, PinsFull, Prefix, WeftError
from weft.settings.system_prompt import NO_SYSTEM_PROMPT, SystemPrompt

__all__ = ["CommonPrompt"]

logger = logging.getLogger(__name__)


class CommonPrompt:
    """The system prompt of a server. It is a pinned prefix: whoever begins with it computes nothing of it."""

    def __init__(self, engine: Engine, tokenize: Callable[[str], Awaitable[Sequence[int]]]) -> None:
        self.current = NO_SYSTEM_PROMPT
        self.tokens: Sequence[int] = ()
        """The text's, with those that begin every prompt; none where there is no text."""
        self._engine = engine
        self._tokenize = tokenize
        self._prefix: Prefix | None = None
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def changed(self, new: SystemPrompt) -> AsyncIterator[Sequence[int]]:
        """Computes another one, and yields its tokens to the request that brings it: once that has begun, all follow it.

        Until then they follow the old one. What cannot be computed changes nothing, and so does a request that is refused.

        Raises:
            ContextOverflow: it does not fit.
            PinsFull: it does not fit beside what else is pinned.
            QueueFull: too many requests wait.
            EngineStopped: the engine was stopped.
        """
        async with self._changing:
            if new.prompt == self.current.prompt:
                await self._pin_again()
                yield self.tokens
                self.current = new
                return
            tokens = await self._tokenize(new.prompt) if new.prompt else ()
            prefix = await self._pin(tokens)
            try:
                yield tokens
            except BaseException:
                await self._go_back(prefix)
                raise
            self.current, self.tokens = new, tokens
            await self._take(prefix)

    async def follow_adapters(self) -> None:
        """Computes it for the adapters that are set now, and lets go of what was computed for others.

        Where that cannot be, what was pinned stays, which serves when those adapters are set again, and the reason is logged.

        Raises:
            EngineStopped: the engine was stopped.
        """
        async with self._changing:
            if not self.tokens:
                return
            try:
                await self._take(await self._pin(self.tokens))
            except EngineStopped:
                raise
            except WeftError as error:
                logger.warning("the system prompt could not be computed for the adapters that are set now: %s", error)

    @property
    def prefix(self) -> Prefix | None:
        """What is pinned of it; None where there is no text, or no room for it."""
        return self._prefix

    def stands_in(self, prefix: Prefix | None) -> None:
        """What is pinned of it since the engine has woken."""
        self._prefix = prefix

    async def _pin(self, tokens: Sequence[int]) -> Prefix | None:
        """Computes tokens and keeps them beside what is kept or, where there is no room for both, in its place."""
        if not tokens:
            return None
        try:
            return await self._engine.pin(tokens)
        except PinsFull:
            if self._prefix is None:
                raise
        try:
            await self._take(None)
            return await self._engine.pin(tokens)
        except BaseException:
            await self._pin_again()
            raise

    async def _take(self, prefix: Prefix | None) -> None:
        """Lets go of what was pinned for this."""
        old, self._prefix = self._prefix, prefix
        if old is not None:
            await self._engine.unpin(old)

    async def _go_back(self, new: Prefix | None) -> None:
        """Lets go of a new one that nobody is to follow."""
        with suppress(EngineStopped):
            if new is not None:
                await self._engine.unpin(new)
        await self._pin_again()

    async def _pin_again(self) -> None:
        """Pins the one that all follow, where it had to make room. Where that cannot be, it is followed all the same."""
        if self._prefix is not None or not self.tokens:
            return
        try:
            self._prefix = await self._engine.pin(self.tokens)
        except EngineStopped:
            pass
        except WeftError as error:
            logger.warning("the system prompt is followed, but no longer kept computed: %s", error)
