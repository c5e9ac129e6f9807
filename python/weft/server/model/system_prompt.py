"""The system prompt, which is prepended to every prompt of `/completion` and stays pinned."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from weft import EngineStoppedError, PinBudgetError, WeftError
from weft.server.model.pins import Pins
from weft.settings.system_prompt import NO_SYSTEM_PROMPT, SystemPrompt

logger = logging.getLogger(__name__)


class CommonPrompt:
    """The system prompt of a server, pinned so that requests do not compute it again."""

    def __init__(self, pins: Pins, tokenize: Callable[[str], Awaitable[Sequence[int]]]) -> None:
        self.current = NO_SYSTEM_PROMPT
        self.tokens: Sequence[int] = ()
        """Tokens of the text with the model's opening tokens; empty if there is no text."""
        self._pins = pins
        self._tokenize = tokenize
        self._pinned: int | None = None
        """Id of the pinned prefix, if it was pinned."""
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def changed(self, new: SystemPrompt) -> AsyncIterator[Sequence[int]]:
        """Computes a new system prompt, and yields its tokens to the request that sets it.

        It takes effect when the block is left. If computing or the block fails, the previous one stays.

        Raises:
            ContextOverflowError: It does not fit.
            PinBudgetError: It does not fit together with the other pinned prefixes.
            QueueFullError: Too many requests are queued.
            EngineStoppedError: The engine was stopped.
        """
        async with self._changing:
            if new.prompt == self.current.prompt:
                await self._pin_again()
                yield self.tokens
                self.current = new
                return
            tokens = await self._tokenize(new.prompt) if new.prompt else ()
            pinned = await self._pin(tokens)
            try:
                yield tokens
            except BaseException:
                with suppress(EngineStoppedError):
                    await self._unpin(pinned)
                await self._pin_again()
                raise
            self.current, self.tokens = new, tokens
            await self._replace(pinned)

    async def follow_adapters(self) -> None:
        """Computes the system prompt for the current adapter set and unpins the previous version.

        On failure the previous version stays pinned, for when those adapters are set again, and the reason is logged.

        Raises:
            EngineStoppedError: The engine was stopped.
        """
        async with self._changing:
            if not self.tokens:
                return
            try:
                await self._replace(await self._pin(self.tokens))
            except EngineStoppedError:
                raise
            except WeftError as error:
                logger.warning("the system prompt could not be computed for the adapters that are set now: %s", error)

    @property
    def _is_pinned(self) -> bool:
        return self._pinned is not None and self._pins.has(self._pinned)

    async def _pin(self, tokens: Sequence[int]) -> int | None:
        """Pins tokens. If there is no room for both, unpins the current prefix first."""
        if not tokens:
            return None
        try:
            return (await self._pins.pin(tokens)).id
        except PinBudgetError:
            if not self._is_pinned:
                raise
        try:
            await self._replace(None)
            return (await self._pins.pin(tokens)).id
        except BaseException:
            await self._pin_again()
            raise

    async def _replace(self, pinned: int | None) -> None:
        """Replaces the pinned prefix."""
        old, self._pinned = self._pinned, pinned
        await self._unpin(old)

    async def _unpin(self, pinned: int | None) -> None:
        if pinned is not None:
            await self._pins.unpin(pinned)

    async def _pin_again(self) -> None:
        """Pins the current prefix again if it had to make room. On failure, requests still use it, unpinned."""
        if self._is_pinned or not self.tokens:
            return
        try:
            self._pinned = (await self._pins.pin(self.tokens)).id
        except EngineStoppedError:
            pass
        except WeftError as error:
            logger.warning("the system prompt is still used, but could not be pinned again: %s", error)
