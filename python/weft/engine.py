"""The engine for async Python."""

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Sequence
from importlib.resources import files
from types import TracebackType
from typing import Literal, Self, Unpack

import msgspec

from weft import _native
from weft._native import CachedNode, Completions, Finished, Limits, Model, Prefix, SavedPrefix, Slot, Stats
from weft.completion import Completion
from weft.errors import EngineStopped, InvalidConfig, InvalidRequest
from weft.prefix import PrefixFile
from weft.request import Request, RequestOptions

__all__ = ["DEMO_MODEL", "Engine", "KvType"]

DEMO_MODEL = str(files("weft") / "models" / "storyteller-q8_0.gguf")
"""The model that ships with the package: small enough to start at once, good for short stories."""

KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
"""A number format of the cache."""

ERASE_INTERVAL_S = 0.02
"""Seconds until a slot that is to be erased is looked at again, where a sequence runs in it."""

_PARAMS = {
    "n_gpu_layers": "gpu_layers",
    "n_slots": "slots",
    "n_ctx": "ctx_size",
    "n_batch": "batch_size",
    "n_ubatch": "ubatch_size",
    "n_threads": "threads",
    "n_threads_batch": "threads_batch",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
}
"""The compiled engine's names of settings that have another one here, where they are llama-server's."""


class Engine:
    """One model, one worker thread, one KV cache that all requests share.

    Making one loads nothing; `async with` or `await start()` does:

        async with Engine("model.gguf", slots=8) as engine:
            completion = await engine.complete("Once upon a time,", n=8, max_tokens=64)

    Once it is started, any thread and any event loop may use it, and several engines may live in one process. A forked child may
    not (`ForkedProcess`).

    Args:
        model: A GGUF file (of a split model, its first part); None is the demo model that ships with the package.
        slots: Sequences that run at once; None is 8, each of which may use the whole context.
        ctx_size: Tokens that fit in the KV cache, over all slots; None or 0 lets the model and the free memory decide.
        kv_unified: Whether one slot may use the whole cache, or `ctx_size / slots` of it; None is the former where `slots` is
            None.
        batch_size: Most tokens that llama.cpp takes in one call; None is 2,048.
        ubatch_size: Most tokens of one decode; None is 512.
        threads: Threads of a decode of few tokens; None is the number of physical cores.
        threads_batch: Threads of a decode of many tokens; None is the same as `threads`.
        gpu_layers: Layers that go to the GPU; None is as many as there are.
        flash_attention: Whether attention runs as one fused kernel; "auto" lets llama.cpp decide.
        cache_type_k: Number format of the keys in the cache.
        cache_type_v: Number format of the values in the cache; a quantised one needs flash attention.
        cache_ram: Most MiB of host memory for what is cached and does not run; -1 is no limit, 0 keeps nothing outside of the KV
            cache, None is 8,192 or a quarter of the machine's memory, whichever is less.
        max_queue: Requests that may wait for a slot before further ones are refused with `QueueFull`; None is 1,024.
        max_token_gap_ms: Longest pause in milliseconds between two tokens of a running stream that a prompt being computed beside
            it may cause; None is 200.
        mmap: Maps the file instead of reading it.
        mlock: Keeps the weights from being swapped out.
        on_progress: Called with the fraction that is loaded, 0 to 1, on the event loop that awaits `start`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        slots: int | None = None,
        ctx_size: int | None = None,
        kv_unified: bool | None = None,
        batch_size: int | None = None,
        ubatch_size: int | None = None,
        threads: int | None = None,
        threads_batch: int | None = None,
        gpu_layers: int | None = None,
        flash_attention: Literal["auto", "on", "off"] = "auto",
        cache_type_k: KvType = "f16",
        cache_type_v: KvType = "f16",
        cache_ram: int | None = None,
        max_queue: int | None = None,
        max_token_gap_ms: float | None = None,
        mmap: bool = True,
        mlock: bool = False,
        on_progress: Callable[[float], object] | None = None,
    ) -> None:
        self._path = DEMO_MODEL if model is None else os.fspath(model)
        self._on_progress = on_progress

        def load(on_progress: Callable[[float], object] | None) -> _native.Engine:
            loaded = Model.load(self._path, n_gpu_layers=gpu_layers, use_mmap=mmap, use_mlock=mlock, on_progress=on_progress)
            return _native.Engine(
                loaded,
                n_slots=slots,
                n_ctx=ctx_size or None,
                kv_unified=kv_unified,
                n_batch=batch_size,
                n_ubatch=ubatch_size,
                n_threads=threads,
                n_threads_batch=threads_batch,
                flash_attention=flash_attention,
                type_k=cache_type_k,
                type_v=cache_type_v,
                cache_ram=cache_ram,
                max_queue=max_queue,
                max_token_gap_ms=max_token_gap_ms,
            )

        self._load = load
        self._state: Literal["new", "starting", "running", "closed"] = "new"
        self._native: _native.Engine | None = None

    async def start(self) -> None:
        """Loads the model and starts the worker on another thread; the event loop goes on meanwhile.

        A start that fails or is cancelled closes the engine; what was being loaded goes as soon as it is there.

        Raises:
            ModelLoadError: The file is no model that can be run.
            InvalidConfig: A setting is out of range, or two contradict each other.
            EngineStopped: The engine was closed, before or meanwhile.
            RuntimeError: It was started before.
        """
        if self._is_closed():
            raise EngineStopped
        if self._state != "new":
            raise RuntimeError("the engine was started before")
        self._state = "starting"
        try:
            native = await asyncio.to_thread(self._load, self._report())
        except InvalidConfig as error:
            self._state = "closed"
            name = _PARAMS.get(error.param, error.param)
            raise InvalidConfig(name, error.message.replace(error.param, name)) from None
        except BaseException:
            self._state = "closed"
            raise
        # Runs at the latest when the interpreter exits: its libraries must not be torn down under a running worker.
        self._stop = weakref.finalize(self, _stop, native, os.getpid())
        if self._is_closed():
            await asyncio.to_thread(self._stop)
            raise EngineStopped
        self._native = native
        self._state = "running"

    async def close(self) -> None:
        """Ends the worker and lets the model go. Idempotent; a closed engine does not start again.

        Every open stream ends with `EngineStopped`. Waits, on another thread, for the decode that is running.
        """
        self._state = "closed"
        if self._native is not None:
            self._native = None
            await asyncio.to_thread(self._stop)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, _class: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    def generate(self, prompt: str | Sequence[int] | Request, **options: Unpack[RequestOptions]) -> Completions:
        """Queues a request and returns the stream of its events at once.

            async for event in engine.generate("Once upon a time,", n=8, max_tokens=64):
                match event:
                    case weft.Token(index, _, text): ...
                    case weft.Finished(index, reason): ...

        Whoever stops reading frees the slots: by `break` out of a loop that holds the only reference, as above, by `close()` or
        `aclose()`, by cancelling the task, or by dropping the stream.

        A prompt that is a string is tokenized here, on this thread, at some 0.4 µs per byte.

        Args:
            prompt: What is to be continued, or a whole request.
            **options: The other fields of the request; they replace those of a `Request` that is given as the prompt.

        Raises:
            InvalidRequest: A field has the wrong type or is out of range.
            ContextOverflow: The prompt alone fills the context.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was closed.
        """
        if isinstance(prompt, Request):
            request = msgspec.structs.replace(prompt, **options) if options else prompt
        else:
            request = Request(prompt=prompt, **options)
        return self._running().submit(request)

    async def complete(self, prompt: str | Sequence[int] | Request, **options: Unpack[RequestOptions]) -> Completion:
        """The whole answer: `generate`, read to its end. Cancelling it frees the slots.

        Raises:
            InvalidRequest: A field has the wrong type or is out of range.
            ContextOverflow: The prompt alone fills the context.
            QueueFull: `max_queue` requests wait already.
            DecodeError: The model could not compute a step.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await Completion.collect(self.generate(prompt, **options))

    async def pin(self, prompt: str | Sequence[int]) -> Prefix:
        """Computes a prompt, as far as it is not cached, and keeps it computed until it is unpinned. Cancelling it pins nothing.

        Raises:
            InvalidRequest: The prompt holds no tokens, or is none.
            ContextOverflow: The prompt alone fills the context.
            PinsFull: Pinned prefixes would take more than half of the cache.
            QueueFull: `max_queue` requests wait already.
            DecodeError: The model could not compute a step.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        made = (await _finish(self._running().pin(prompt))).made
        assert isinstance(made, Prefix), "a request to pin makes a pinned prefix"
        return made

    async def unpin(self, prefix: Prefix | int) -> bool:
        """Lets a pinned prefix be evicted again, given itself or its id. False where it is not pinned."""
        return await asyncio.to_thread(self._running().unpin, prefix.id if isinstance(prefix, Prefix) else prefix)

    async def prefixes(self) -> list[Prefix]:
        """Every pinned prefix, in the order of their pinning."""
        return await asyncio.to_thread(self._running().pinned)

    async def cached(self) -> list[CachedNode]:
        """What is cached: the prefix tree, parents before their children. Waits for the step that is running."""
        return await asyncio.to_thread(self._running().cached)

    async def save_prefix(self, prompt: str | Sequence[int], path: str | os.PathLike[str], *, compute: bool = True) -> PrefixFile:
        """Saves the computed state of a prompt to a file, which `load_prefix` of an engine with the same model and cache takes.

        Cancelling it frees the slot; a file that is being written by then is written to its end.

        Args:
            prompt: The prefix; what is not cached of it is computed first.
            path: The file; one that is there is replaced at the end.
            compute: False saves only as much as is cached.

        Raises:
            InvalidRequest: The prompt holds no tokens, or is none, or nothing of it could be copied.
            ContextOverflow: The prompt alone fills the context.
            QueueFull: `max_queue` requests wait already.
            DecodeError: The model could not compute a step.
            EngineStopped: The engine was closed, before or meanwhile.
            OSError: The file cannot be written.
        """
        began = time.perf_counter()
        native = self._running()
        saved = (await _finish(native.save(prompt, compute=compute))).made
        assert isinstance(saved, SavedPrefix), "a request to save makes a saved prefix"
        if saved.n_tokens == 0:
            why = "the cache gave no copy of the prompt" if compute else "nothing of the prompt is cached"
            raise InvalidRequest("prompt", why)
        n_bytes = await asyncio.to_thread(native.write_prefix, saved, path)
        return _file(path, saved, n_bytes, began)

    async def load_prefix(self, path: str | os.PathLike[str], *, slot: int | None = None) -> PrefixFile:
        """Loads what `save_prefix` has saved: a request that begins like it computes only what is new. Cancelling loads nothing.

        Args:
            path: The file.
            slot: Waits for this slot and lets it hold the prefix; None takes any.

        Raises:
            PrefixFileError: The file is of another model or another kind of cache, or it is damaged.
            InvalidRequest: There is no such slot.
            ContextOverflow: The prefix alone fills the context.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was closed, before or meanwhile.
            OSError: The file cannot be read.
        """
        began = time.perf_counter()
        native = self._running()
        saved, n_bytes = await asyncio.to_thread(native.read_prefix, path)
        await _finish(native.load(saved, slot=slot))
        return _file(path, saved, n_bytes, began)

    async def slot_tokens(self, slot: int) -> list[int]:
        """The tokens that a slot holds: those that its sequence has computed, or the last one's that ran there.

        Raises:
            InvalidRequest: There is no such slot.
        """
        return await asyncio.to_thread(self._running().slot_tokens, slot)

    async def erase_slot(self, slot: int) -> int:
        """Forgets the tokens that a slot holds, as far as nothing else that is cached holds them; returns how many they were.

        A slot where a sequence runs is erased when that has ended.

        Raises:
            InvalidRequest: There is no such slot.
        """
        # Asked again and again, so that a caller who gives up leaves no thread behind that waits.
        while (n_tokens := await asyncio.to_thread(self._running().erase_slot, slot)) is None:  # noqa: ASYNC110
            await asyncio.sleep(ERASE_INTERVAL_S)
        return n_tokens

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text; the defaults are how `generate` reads a prompt.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds the tokens that begin and end a text, where the vocabulary asks for them.
            parse_special: Reads the spelling of a control token as that token.
        """
        return self.model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text that token ids stand for: control tokens as they are spelt, U+FFFD for bytes that are no UTF-8.

        Raises:
            InvalidRequest: A token is outside of the vocabulary.
        """
        return self.model.detokenize(tokens)

    @property
    def is_running(self) -> bool:
        """Whether the worker thread lives: it was started, was not stopped and has not died."""
        return self._native is not None and self._native.is_running

    def stats(self) -> Stats:
        """What the engine is doing, as of its last step."""
        return self._running().stats()

    @property
    def slots(self) -> list[Slot]:
        """What each slot is doing, as of the last step."""
        return self.stats().slots

    @property
    def model(self) -> Model:
        """The loaded model."""
        return self._running().model

    @property
    def limits(self) -> Limits:
        """The numbers that were settled when the engine started."""
        return self._running().limits

    def _report(self) -> Callable[[float], object] | None:
        on_progress = self._on_progress
        if on_progress is None:
            return None
        loop = asyncio.get_running_loop()
        return lambda fraction: loop.call_soon_threadsafe(on_progress, fraction)

    def _is_closed(self) -> bool:
        return self._state == "closed"

    def _running(self) -> _native.Engine:
        if self._native is not None:
            return self._native
        if self._is_closed():
            raise EngineStopped
        raise RuntimeError("the engine is not started; use `async with` or `await engine.start()`")


async def _finish(stream: Completions) -> Finished:
    """The end of a request that has one branch, which draws no token. However this ends, the stream is closed."""
    ends: list[Finished] = []
    try:
        while events := await stream.next_batch():
            ends += [event for event in events if isinstance(event, Finished)]
    finally:
        stream.close()
    [end] = ends
    return end


def _file(path: str | os.PathLike[str], saved: SavedPrefix, n_bytes: int, began: float) -> PrefixFile:
    ms = (time.perf_counter() - began) * 1000
    return PrefixFile(path=os.fspath(path), n_tokens=saved.n_tokens, n_bytes=n_bytes, ms=ms)


def _stop(native: _native.Engine, process_id: int) -> None:
    # A forked child runs this at its exit too, and has no worker to stop.
    if os.getpid() == process_id:
        native.stop()
