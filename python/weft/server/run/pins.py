"""The prefixes that stay computed, by numbers that stay theirs when the model is let go and loaded again."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from weft import Engine, EngineStopped, Prefix, WeftError

__all__ = ["Pinned", "Pins"]

logger = logging.getLogger(__name__)

Adapters = Sequence[tuple[int, float]] | None


class Pinned(NamedTuple):
    """A prefix and its number."""

    id: int
    prefix: Prefix


class Pins:
    """What is pinned in one engine, which counts its prefixes anew whenever it wakes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offset = 0
        """What the numbers here are greater by than the engine's, of prefixes that were pinned since it has woken."""
        self._again: dict[int, int] = {}
        """The numbers here of those that were pinned again, by the engine's."""
        self._highest = 0
        self._adapters: dict[int, Adapters] = {}
        """What each was computed with, by its number here; of one that is not listed, it is what the server has set."""
        self._asleep: list[Pinned] = []
        """Those that are to be pinned again."""

    def _number(self, prefix: Prefix) -> int:
        number = self._again.get(prefix.id, prefix.id + self._offset)
        self._highest = max(self._highest, number)
        return number

    async def pin(self, tokens: Sequence[int], adapters: Adapters) -> Pinned:
        """As the engine's `pin`."""
        prefix = await self._engine.pin(tokens, adapters=adapters)
        number = self._number(prefix)
        self._adapters[number] = adapters
        return Pinned(number, prefix)

    async def all(self) -> list[Pinned]:
        """As the engine's `prefixes`."""
        return [Pinned(self._number(prefix), prefix) for prefix in await self._engine.prefixes()]

    async def unpin(self, number: int) -> bool:
        """As the engine's `unpin`."""
        self._adapters.pop(number, None)
        engines = {again: own for own, again in self._again.items()}.get(number, number - self._offset)
        if engines < 0 or self._again.get(engines, number) != number:
            return False
        return await self._engine.unpin(engines)

    def has(self, number: int) -> bool:
        """Whether what was pinned here under that number is pinned, or is to be again."""
        return number in self._adapters

    async def remember(self) -> None:
        """To be called before the engine sleeps.

        Raises:
            EngineStopped: The engine was closed, or has died.
        """
        self._asleep = await self.all()

    async def again(self) -> dict[int, Prefix]:
        """Pins again what was pinned, in the same order; to be called when the engine has woken, before anything else is pinned.

        Returns what stands now for each prefix that was there, by the engine's number for that; what there is no room for any
        more is left out, and logged.

        Raises:
            EngineStopped: The engine was closed, or has died.
        """
        self._offset, self._again = self._highest + 1, {}
        now: dict[int, Prefix] = {}
        for number, before in self._asleep:
            try:
                prefix = await self._engine.pin(before.tokens, adapters=self._adapters.get(number))
            except EngineStopped:
                raise
            except WeftError as error:
                logger.warning("the pinned prefix %d could not be computed again: %s", number, error)
                self._adapters.pop(number, None)
                continue
            self._again[prefix.id] = number
            now[before.id] = prefix
        self._asleep = []
        return now
