"""Reading a stream branch by branch."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from weft._native import Stream
from weft.events import Finished, Token

__all__ = ["BranchStream", "Branches"]

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Branches:
    """Iterates over the branches of a stream as they appear, including branches that forks add.

    It reads the stream on behalf of all branches, so nothing else may read it. Tokens are queued per branch until they are read.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._branches: dict[int, BranchStream] = {}
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

    async def _until(self, is_ready: Callable[[], bool]) -> None:
        """Reads until `is_there()` is true or the stream has ended. If several tasks wait, one of them reads for all."""
        while not is_ready() and not self._is_over:
            async with self._reading:
                if is_ready() or self._is_over:
                    return
                try:
                    events = await self._stream.next_batch()
                except Exception:
                    self._is_over = True
                    raise
                self._is_over = not events
                for event in events:
                    if isinstance(event, Token | Finished):
                        self._branch(event.index)._take(event)  # noqa: SLF001 (both classes share the reading)

    def _branch(self, index: int) -> "BranchStream":
        if index not in self._branches:
            self._branches[index] = BranchStream(self._stream, index, self._until)
            self._new.append(self._branches[index])
        return self._branches[index]


def _of_branch(method: Callable[Concatenate[Stream, int, _P], _T]) -> "Callable[Concatenate[BranchStream, _P], _T]":
    """Returns the method of a branch for a method of its stream that takes the branch's index."""

    def call(self: "BranchStream", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        result: _T = getattr(self._stream, method.__name__)(self.index, *args, **kwargs)
        return result

    return call


class BranchStream:
    """Asynchronous iterator over the tokens of one branch. Sets `finished` at its end."""

    def __init__(self, stream: Stream, index: int, until: Callable[[Callable[[], bool]], Any]) -> None:
        self.index = index
        """Index of the branch in its stream."""
        self.finished: Finished | None = None
        """The branch's last event, once all its tokens have been read."""
        self._end: Finished | None = None
        self._stream = stream
        self._until = until
        self._tokens: deque[Token] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        """Returns the next token.

        Raises:
            StopAsyncIteration: The branch has ended, or the stream was closed.
            WeftError: Any error of the stream.
        """
        await self._until(lambda: bool(self._tokens) or self._end is not None)
        if self._tokens:
            return self._tokens.popleft()
        self.finished = self._end
        raise StopAsyncIteration

    async def text(self) -> str:
        """Returns the rest of the branch's text, when it has ended."""
        text = "".join([token.text async for token in self])
        return text if self.finished is None else text + self.finished.text

    cancel = _of_branch(Stream.cancel)
    """Cancels the branch; see `Stream.cancel`."""
    fork = _of_branch(Stream.fork)
    """Adds forks of the branch to its stream; see `Stream.fork`."""
    fork_stream = _of_branch(Stream.fork_stream)
    """Returns forks of the branch as a separate stream; see `Stream.fork_stream`."""

    def _take(self, event: Token | Finished) -> None:
        if isinstance(event, Finished):
            self._end = event
        else:
            self._tokens.append(event)
