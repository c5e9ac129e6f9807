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
    async def changed(self, new: SystemPrompt) -> AsyncIterator[None]:
        """Computes another one, for the request that brings it, and then lets go of the old one.

        What cannot be computed leaves everything as it was, and so does a request that is refused.

        Raises:
            ContextOverflow: it does not fit.
            PinsFull: it does not fit beside what else is pinned.
            QueueFull: too many requests wait.
            EngineStopped: the engine was stopped.
        """
        async with self._changing:
            before, tokens, old = self.current, self.tokens, None
            if new.prompt != before.prompt:
                self.tokens, (self._prefix, old) = await self._computed(new.prompt)
            self.current = new
            try:
                yield
            except BaseException:
                await self._go_back(before, tokens, old)
                raise
            if old is not None:
                await self._engine.unpin(old)

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
                self._prefix, old = await self._pin(self.tokens)
                if old is not None:
                    await self._engine.unpin(old)
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

    async def _computed(self, text: str) -> tuple[Sequence[int], tuple[Prefix | None, Prefix | None]]:
        """The tokens of a text, and what is pinned of them and of those before."""
        tokens = await self._tokenize(text) if text else ()
        return tokens, await self._pin(tokens)

    async def _pin(self, tokens: Sequence[int]) -> tuple[Prefix | None, Prefix | None]:
        """What is pinned of tokens, and what still is of those before: nothing where there was no room for both."""
        old = self._prefix
        if not tokens:
            return None, old
        try:
            return await self._engine.pin(tokens), old
        except PinsFull:
            if old is None:
                raise
            return await self._pin_in_its_place(tokens, old), None

    async def _go_back(self, before: SystemPrompt, tokens: Sequence[int], old: Prefix | None) -> None:
        """Lets go of the new one. Where the one before cannot be computed again, the new one stays, which is logged."""
        new = self._prefix
        try:
            if before.prompt != self.current.prompt:
                if old is None and tokens and new is not None:
                    self._prefix = await self._pin_in_its_place(tokens, new)
                else:
                    self._prefix = old
                    if new is not None:
                        await self._engine.unpin(new)
            self.current, self.tokens = before, tokens
        except WeftError as error:
            logger.warning("the system prompt before could not be computed again: %s", error)

    async def _pin_in_its_place(self, tokens: Sequence[int], old: Prefix) -> Prefix:
        """There is no room for both."""
        await self._engine.unpin(old)
        try:
            return await self._engine.pin(tokens)
        except WeftError:
            with suppress(WeftError):
                self._prefix = await self._engine.pin(self.tokens)
            raise
