"""The system prompt, which is prepended to every prompt of `/completion` and stays pinned."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from weft import Engine, EngineStoppedError, PinBudgetError, Prefix, WeftError
from weft.settings.system_prompt import NO_SYSTEM_PROMPT, SystemPrompt

logger = logging.getLogger(__name__)


class CommonPrompt:
    """The system prompt of a server, pinned so that requests do not compute it again."""

    def __init__(self, engine: Engine, tokenize: Callable[[str], Awaitable[Sequence[int]]]) -> None:
        self.current = NO_SYSTEM_PROMPT
        self.tokens: Sequence[int] = ()
        """Tokens of the text with the model's opening tokens; empty if there is no text."""
        self._engine = engine
        self._tokenize = tokenize
        self._prefix: Prefix | None = None
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
            prefix = await self._pin(tokens)
            try:
                yield tokens
            except BaseException:
                await self._discard(prefix)
                raise
            self.current, self.tokens = new, tokens
            await self._take(prefix)

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
                await self._take(await self._pin(self.tokens))
            except EngineStoppedError:
                raise
            except WeftError as error:
                logger.warning("the system prompt could not be computed for the adapters that are set now: %s", error)

    @property
    def prefix(self) -> Prefix | None:
        """The pinned prefix; None if there is no text or no room for it."""
        return self._prefix

    def set_prefix(self, prefix: Prefix | None) -> None:
        """Sets the pinned prefix after the engine woke."""
        self._prefix = prefix

    async def _pin(self, tokens: Sequence[int]) -> Prefix | None:
        """Pins tokens. If there is no room for both, unpins the current prefix first."""
        if not tokens:
            return None
        try:
            return await self._engine.pin(tokens)
        except PinBudgetError:
            if self._prefix is None:
                raise
        try:
            await self._take(None)
            return await self._engine.pin(tokens)
        except BaseException:
            await self._pin_again()
            raise

    async def _take(self, prefix: Prefix | None) -> None:
        """Replaces the pinned prefix."""
        old, self._prefix = self._prefix, prefix
        if old is not None:
            await self._engine.unpin(old)

    async def _discard(self, new: Prefix | None) -> None:
        """Unpins a prefix that does not take effect."""
        with suppress(EngineStoppedError):
            if new is not None:
                await self._engine.unpin(new)
        await self._pin_again()

    async def _pin_again(self) -> None:
        """Pins the current prefix again if it had to make room. On failure, requests still use it, unpinned."""
        if self._prefix is not None or not self.tokens:
            return
        try:
            self._prefix = await self._engine.pin(self.tokens)
        except EngineStoppedError:
            pass
        except WeftError as error:
            logger.warning("the system prompt is still used, but could not be pinned again: %s", error)
