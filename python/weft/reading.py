"""One stream, read branch by branch."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from weft.events import Finished, Token

if TYPE_CHECKING:
    from weft._native import Stream
    from weft.request import ForkOptions

__all__ = ["BranchStream", "Branches"]


class Branches:
    """The branches of a stream, each when it is first heard of: those that were asked for, and those that forks add.

    Reads the stream for all of them, so that nobody else may. What one of them writes waits until it is read there.
    """

    def __init__(self, stream: "Stream") -> None:
        self._stream = stream
        self._known: dict[int, BranchStream] = {}
        self._new: deque[BranchStream] = deque()
        self._reading = asyncio.Lock()
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "BranchStream":
        await self._until(lambda: bool(self._new))
        if not self._new:
            raise StopAsyncIteration
        return self._new.popleft()

    async def _until(self, is_there: Callable[[], bool]) -> None:
        """Reads until something is there, or the stream is over. Of several tasks that wait, one reads for all."""
        while not is_there() and not self._is_over:
            async with self._reading:
                if is_there() or self._is_over:
                    return
                try:
                    events = await self._stream.next_batch()
                except Exception:
                    self._is_over = True
                    raise
                self._is_over = not events
                for event in events:
                    if isinstance(event, Token | Finished):
                        self._branch(event.index)._take(event)  # noqa: SLF001 (both are one reader)

    def _branch(self, index: int) -> "BranchStream":
        if index not in self._known:
            self._known[index] = BranchStream(self._stream, index, self._until)
            self._new.append(self._known[index])
        return self._known[index]


class BranchStream:
    """The tokens of one branch as they come; its end is in `finished` then."""

    def __init__(self, stream: "Stream", index: int, until: Callable[[Callable[[], bool]], Any]) -> None:
        self.index = index
        """Which one, as its stream counts them."""
        self.finished: Finished | None = None
        """Its end, once it was told and every token before it was read."""
        self._end: Finished | None = None
        self._stream = stream
        self._until = until
        self._tokens: deque[Token] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        """The next token.

        Raises:
            StopAsyncIteration: it has ended, or the stream was closed.
            WeftError: what reading the stream raises.
        """
        await self._until(lambda: bool(self._tokens) or self._end is not None)
        if self._tokens:
            return self._tokens.popleft()
        self.finished = self._end
        raise StopAsyncIteration

    async def text(self) -> str:
        """Its text from here to its end."""
        text = "".join([token.text async for token in self])
        return text if self.finished is None else text + self.finished.text

    def cancel(self) -> None:
        """Cancels it; see `Stream.cancel`."""
        self._stream.cancel(self.index)

    @overload
    async def fork(
        self,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | list[int] | None = None,
        own_stream: Literal[False] = False,
        **options: "Unpack[ForkOptions]",
    ) -> list[int]: ...

    @overload
    async def fork(
        self,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | list[int] | None = None,
        own_stream: Literal[True],
        **options: "Unpack[ForkOptions]",
    ) -> "Stream": ...

    async def fork(self, **arguments: Any) -> "list[int] | Stream":
        """Forks it; see `Stream.fork`."""
        made: list[int] | Stream = await self._stream.fork(self.index, **arguments)
        return made

    def _take(self, event: Token | Finished) -> None:
        if isinstance(event, Finished):
            self._end = event
        else:
            self._tokens.append(event)
