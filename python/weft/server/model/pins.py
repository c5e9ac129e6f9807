"""Pinned prefixes, with ids that survive unloading and reloading the model."""

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from weft import Engine, EngineStoppedError, Prefix, WeftError

logger = logging.getLogger(__name__)

Adapters = Sequence[tuple[int, float]] | None


class Pinned(NamedTuple):
    """A pinned prefix and its stable id."""

    id: int
    prefix: Prefix


class Pins:
    """The pinned prefixes of an engine whose own ids restart after each wake-up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offset = 0
        """Stable id minus the engine's id, for prefixes pinned since the last wake-up."""
        self._stable_ids: dict[int, int] = {}
        """Stable ids, by the engine's ids, of prefixes that were pinned again at the last wake-up."""
        self._highest = 0
        self._adapters: dict[int, Adapters] = {}
        """Adapter set of each prefix, by stable id. Unlisted prefixes use the server's adapters."""
        self._readers: dict[int, set[str | None]] = {}
        """Owners who may read the text of a prefix, by stable id. Everyone may read unlisted prefixes."""
        self._to_restore: list[Pinned] = []
        """Prefixes to pin again."""

    def _number(self, prefix: Prefix) -> int:
        number = self._stable_ids.get(prefix.id, prefix.id + self._offset)
        self._highest = max(self._highest, number)
        return number

    async def pin(
        self, tokens: Sequence[int], adapters: Adapters = None, readers: Collection[str | None] | None = None
    ) -> Pinned:
        """Pins a prefix, as [`weft.Engine.pin`] does. Only `readers` may read its text; None is everyone."""
        prefix = await self._engine.pin(tokens, adapters=adapters)
        number = self._number(prefix)
        self._adapters[number] = adapters
        if readers is not None:
            self._readers[number] = set(readers)
        return Pinned(number, prefix)

    def add_readers(self, number: int, readers: Collection[str | None]) -> None:
        """Permits further owners to read the text of a prefix that was pinned with `readers`."""
        self._readers[number].update(readers)

    def hidden_ids(self, reader: str | None) -> set[int]:
        """Returns the ids of prefixes whose text this owner may not read."""
        return {number for number, readers in self._readers.items() if reader not in readers}

    async def all(self) -> list[Pinned]:
        """Returns all pinned prefixes, as [`weft.Engine.prefixes`] does."""
        return [Pinned(self._number(prefix), prefix) for prefix in await self._engine.prefixes()]

    async def unpin(self, number: int) -> bool:
        """Unpins a prefix, as [`weft.Engine.unpin`] does."""
        self._forget(number)
        engine_ids = {stable: engine_id for engine_id, stable in self._stable_ids.items()}
        engine_id = engine_ids.get(number, number - self._offset)
        if engine_id < 0 or self._stable_ids.get(engine_id, number) != number:
            return False
        return await self._engine.unpin(engine_id)

    def _forget(self, number: int) -> None:
        self._adapters.pop(number, None)
        self._readers.pop(number, None)

    def has(self, number: int) -> bool:
        """Returns whether the prefix pinned here under this id is still pinned, or will be after the engine wakes."""
        return number in self._adapters

    async def save_pinned(self) -> None:
        """Stores the pinned prefixes. Must be called before the engine sleeps.

        Raises:
            EngineStoppedError: The engine was closed or has died.
        """
        self._to_restore = await self.all()

    async def pin_again(self) -> None:
        """Pins the stored prefixes again, in the same order. Must be called after the engine woke, before any other pin.

        Prefixes for which there is no room any more are dropped with a warning.

        Raises:
            EngineStoppedError: The engine was closed or has died.
        """
        self._offset, self._stable_ids = self._highest + 1, {}
        for number, before in self._to_restore:
            try:
                prefix = await self._engine.pin(before.tokens, adapters=self._adapters.get(number))
            except EngineStoppedError:
                raise
            except WeftError as error:
                logger.warning("the pinned prefix %d could not be computed again: %s", number, error)
                self._forget(number)
                continue
            self._stable_ids[prefix.id] = number
        self._to_restore = []
