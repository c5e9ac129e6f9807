"""Synchronous engine, for scripts and notebooks."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack

from weft.config import EngineConfig
from weft.engine import Engine
from weft.engine_options import EngineOptions
from weft.request.sampling import SamplingParams

if TYPE_CHECKING:
    from weft.chat.request import ChatOptions, Messages
    from weft.chat.stream import ChatDelta

__all__ = ["SyncEngine", "SyncStream"]

_T = TypeVar("_T")
_P = ParamSpec("_P")
_EventT = TypeVar("_EventT")
_EventT_co = TypeVar("_EventT_co", covariant=True)


class _AsyncStream(Protocol[_EventT_co]):
    """Stream of an engine."""

    def next_batch(self) -> Awaitable[Sequence[_EventT_co]]:
        """Returns the next events, or none at the end."""

    def close(self) -> None:
        """Cancels the request."""

    def cancel(self, index: int) -> None:
        """Cancels one branch."""


class _LoopThread:
    """Event loop on a separate thread, so that calls work while the caller's event loop runs, as in a notebook."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="weft-sync", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Returns the result of `work`, awaited on the loop. An interrupted call is cancelled."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a SyncEngine cannot be called from its own event loop; use its `engine` there")
        future = asyncio.run_coroutine_threadsafe(_awaited(work), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def is_stopped(self) -> bool:
        """True after `stop`."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """Stops the loop and its thread. Idempotent."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _awaited(work: Callable[[], Awaitable[_T]]) -> _T:
    return await work()


class SyncStream(Generic[_EventT]):
    """Iterator of the events of a request. `close()`, leaving its `with` block, and dropping it cancel the request."""

    def __init__(self, loop: _LoopThread, stream: _AsyncStream[_EventT]) -> None:
        self._loop = loop
        self._stream = stream
        self._ready: deque[_EventT] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _EventT:
        """Returns the next event; waits for it.

        Raises:
            WeftError: As the stream of the asynchronous engine.
        """
        if not self._ready:
            self._ready.extend(self._loop.run(self._stream.next_batch))
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def cancel(self, index: int) -> None:
        """Cancels one branch; the others continue."""
        self._stream.cancel(index)

    def close(self) -> None:
        """Cancels the request. Idempotent."""
        self._ready.clear()
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _blocking(
    method: Callable[Concatenate[Engine, _P], Coroutine[Any, Any, _T]],
) -> "Callable[Concatenate[SyncEngine, _P], _T]":
    """Returns the method of `SyncEngine` for a coroutine method of `Engine`, with its signature."""

    @wraps(method)
    def call(self: "SyncEngine", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.call(lambda engine: method(engine, *args, **kwargs))

    return call


def _iterated(
    method: Callable[Concatenate[Engine, _P], _AsyncStream[_EventT]],
) -> "Callable[Concatenate[SyncEngine, _P], SyncStream[_EventT]]":
    """Returns the method of `SyncEngine` for a method of `Engine` that returns a stream, with its signature."""

    @wraps(method)
    def call(self: "SyncEngine", /, *args: _P.args, **kwargs: _P.kwargs) -> SyncStream[_EventT]:
        return SyncStream(self._loop, method(self.engine, *args, **kwargs))

    return call


class SyncEngine:
    """Engine whose methods block instead of being awaited; streams are iterators.

        with weft.SyncEngine("model.gguf", n_slots=8) as engine:
            print(engine.complete("Once upon a time,", max_tokens=64).text)
            for event in engine.stream("Once upon a time,", n=8, max_tokens=64):
                print(event)

    Runs an `Engine` on an event loop in a separate thread, so it works while another event loop is running, as in a notebook.
    Several threads may call it concurrently: their requests are computed together. Interrupting a call (Ctrl-C) cancels it.
    `complete`, `stream`, `chat`, `stream_chat`, `infill`, `stream_infill`, `score`, `embed` and `rerank` have the arguments of
    `Engine`'s methods of the same names, and raise the same errors.

    Args:
        model: Path of a GGUF file; None is the demo model that ships with the package.
        config: Settings of the engine; None is the default.
        on_progress: Called with the loaded fraction, 0 to 1, on the thread of the event loop.
        **options: Fields of `EngineConfig`, with priority over `config`.

    Raises:
        TypeError: There is no setting of that name; the message suggests the nearest.
        InvalidConfigError: A setting has the wrong type or is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        config: EngineConfig | None = None,
        on_progress: Callable[[float], object] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.engine = Engine(model, config=config, on_progress=on_progress, **options)
        """The asynchronous engine. Its properties and the methods that are not coroutines may be used directly."""
        self._loop = _LoopThread()

    def call(self, method: Callable[[Engine], Coroutine[Any, Any, _T]]) -> _T:
        """Returns the result of a coroutine of the asynchronous engine: `engine.call(lambda engine: engine.pin(prompt))`."""
        return self._loop.run(lambda: method(self.engine))

    def start(self) -> None:
        """Loads the model and starts the worker; `with` does so too.

        Raises:
            WeftError: As `Engine.start`.
        """
        self.call(Engine.start)

    def close(self) -> None:
        """Stops the worker, unloads the model and stops the event loop. Idempotent; ends every open stream."""
        if self._loop.is_stopped:
            return
        self.call(Engine.close)
        self._loop.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    complete = _blocking(Engine.complete)
    chat = _blocking(Engine.chat)
    infill = _blocking(Engine.infill)
    score = _blocking(Engine.score)
    embed = _blocking(Engine.embed)
    rerank = _blocking(Engine.rerank)
    stream = _iterated(Engine.stream)
    stream_infill = _iterated(Engine.stream_infill)

    def stream_chat(
        self, messages: "Messages", *, sampling: SamplingParams | None = None, **options: "Unpack[ChatOptions]"
    ) -> "SyncStream[ChatDelta]":
        """Queues a chat and returns an iterator of its deltas, as `Engine.stream_chat`.

        Raises:
            WeftError: As `Engine.stream_chat`.
        """
        return SyncStream(self._loop, self.call(lambda engine: engine.stream_chat(messages, sampling=sampling, **options)))
