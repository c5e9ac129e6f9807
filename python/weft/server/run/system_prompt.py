"""What every prompt of `/completion` follows: one text for all clients, computed once and kept."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

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

    async def change(self, new: SystemPrompt) -> None:
        """Computes another one and lets go of the old one. What cannot be computed leaves everything as it was.

        Raises:
            ContextOverflow: it does not fit.
            PinsFull: it does not fit beside what else is pinned.
            QueueFull: too many requests wait.
            EngineStopped: the engine was stopped.
        """
        async with self._changing:
            if new.prompt != self.current.prompt:
                tokens = await self._tokenize(new.prompt) if new.prompt else ()
                self._prefix = await self._pin_instead(tokens)
                self.tokens = tokens
            self.current = new

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
                self._prefix = await self._pin_instead(self.tokens)
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

    async def _pin_instead(self, tokens: Sequence[int]) -> Prefix | None:
        old = self._prefix
        if not tokens:
            new = None
        else:
            try:
                new = await self._engine.pin(tokens)
            except PinsFull:
                if old is None:
                    raise
                return await self._pin_in_its_place(tokens, old)
        if old is not None:
            await self._engine.unpin(old)
        return new

    async def _pin_in_its_place(self, tokens: Sequence[int], old: Prefix) -> Prefix:
        """There is no room for both."""
        await self._engine.unpin(old)
        try:
            return await self._engine.pin(tokens)
        except WeftError:
            with suppress(WeftError):
                self._prefix = await self._engine.pin(self.tokens)
            raise
