"""Texts of the branches of one stream, also before forks."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from weft._native import Stream
from weft.events import Event, Finished, Token


class _Fork(NamedTuple):
    """Origin of a forked branch."""

    source: int
    n_source_tokens: int
    """Tokens of the source branch that precede the fork."""
    appended: str
    """Text inserted between the source's text and the fork's own."""
    hidden: str = ""
    """Text of the source at the fork position that neither branch emits."""
    n_shown_again: int = 0
    """Characters at the end of the source's text that the fork emits again."""


class BranchTexts:
    """Texts of the branches of one stream of `n` branches. The reader of the stream adds its events and forks."""

    def __init__(self, n: int) -> None:
        self._known = set(range(n))
        self._n_registering = 0
        self._are_registered = asyncio.Event()
        self._texts: dict[int, list[str]] = {}
        """Texts of each branch: one for each token, then the text withheld until its end."""
        self._forks: dict[int, _Fork] = {}

    def add(self, event: Token | Finished) -> None:
        """Appends the text of an event."""
        if (texts := self._texts.get(event.index)) is not None:
            texts.append(event.text)
        else:
            self._texts[event.index] = [event.text]

    @contextmanager
    def registering_forks(self) -> Iterator[None]:
        """Holds up `wait_for_forks` while the block forks the stream and adds the forks."""
        self._n_registering += 1
        self._are_registered.clear()
        try:
            yield
        finally:
            self._n_registering -= 1
            if not self._n_registering:
                self._are_registered.set()

    async def wait_for_forks(self, events: Sequence[Event]) -> None:
        """Waits until the forks that these events are of were added."""
        if self._n_registering and any(
            isinstance(event, Token | Finished) and event.index not in self._known for event in events
        ):
            await self._are_registered.wait()

    def add_forks(self, stream: Stream, indices: Sequence[int], appended: str) -> None:
        """Adds branches that `stream.fork` has returned; `appended` precedes their own text."""
        self._known.update(indices)
        for index in indices:
            if (position := stream.forked_at(index)) is not None:
                self._forks[index] = _Fork(*position, appended, *stream.fork_boundary(index))

    def text(self, index: int) -> str:
        """Returns the text of a branch so far, without the text before a fork."""
        return "".join(self._texts.get(index, ()))

    def before(self, index: int) -> str:
        """Returns the text between the prompt and a branch's own text, which is empty except for forks."""
        parts: list[str] = []
        while (fork := self._forks.get(index)) is not None:
            shown = "".join(self._texts.get(fork.source, [])[: fork.n_source_tokens])
            parts += [fork.appended, fork.hidden, shown[: len(shown) - fork.n_shown_again]]
            index = fork.source
        return "".join(reversed(parts))
