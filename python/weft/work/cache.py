"""Cache operations of an engine: pins, prefix files and slots."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from weft import _native
from weft._native import CachedNode, Prefix, SavedPrefix, Stream
from weft.errors import EngineStoppedError, InvalidRequestError, PrefixFileError, WeftError
from weft.events import Finished
from weft.prefix import PrefixFile
from weft.work.threads import LONG_TEXT, ThreadPool, Threads

Prompt = str | Sequence[int]

Adapters = Sequence[tuple[int, float]] | None

ERASE_INTERVAL_S = 0.02
"""Seconds between two attempts to erase a slot in which a sequence runs."""

MAX_MISFITS = 4
"""Number of copies that may exceed the size limit before the export ends."""


class CacheOperations:
    """Cache operations of one running engine."""

    def __init__(self, native: _native.Engine, threads: Threads) -> None:
        self._native = native
        self._threads = threads

    async def pin(self, prompt: Prompt, adapters: Adapters) -> Prefix:
        """Computes and pins a prompt."""
        made = (await _finish(await self._submit(partial(self._native.pin, adapters=adapters), prompt))).result
        assert isinstance(made, Prefix), "a request to pin makes a pinned prefix"
        return made

    async def save(
        self, prompt: Prompt, path: str | os.PathLike[str], *, compute: bool, adapters: Adapters, invoked_at: int | None
    ) -> PrefixFile:
        """Writes the computed state of a prompt to a file; without `compute`, only the cached part."""
        began = time.perf_counter()
        submit = partial(self._native.save, compute=compute, adapters=adapters, invoked_at=invoked_at)
        saved = (await _finish(await self._submit(submit, prompt))).result
        assert isinstance(saved, SavedPrefix), "a request to save makes a saved prefix"
        if saved.n_tokens == 0:
            raise InvalidRequestError("prompt", "nothing of the prompt is cached")
        n_bytes = await self._threads.run(ThreadPool.FILE, self._native.write_prefix, saved, path)
        return _file(path, saved, n_bytes, began)

    async def load(self, path: str | os.PathLike[str], slot: int | None) -> PrefixFile:
        """Loads a prefix file into the cache, and into a slot if one is given."""
        began = time.perf_counter()
        saved, n_bytes = await self._threads.run(ThreadPool.FILE, self._native.read_prefix, path)
        try:
            await _finish(self._native.load(saved, slot=slot))
        except PrefixFileError as error:
            # The file is valid but incompatible with this model's memory. The engine does not have the path for its error.
            raise PrefixFileError(path, error.reason) from None
        return _file(path, saved, n_bytes, began)

    async def erase(self, slot: int) -> int:
        """Evicts the tokens in a slot, once it is idle."""
        # Polls, so that a cancelled caller leaves no waiting thread behind.
        while (n_tokens := await self._threads.run(ThreadPool.ERASE, self._native.erase_slot, slot)) is None:  # noqa: ASYNC110
            await asyncio.sleep(ERASE_INTERVAL_S)
        return n_tokens

    async def copies(self, max_bytes: int, should_continue: Callable[[], bool]) -> list[SavedPrefix]:
        """Returns copies of cached prompts, the most recently used first, of at most `max_bytes` in total.

        Ends early if `should_continue` returns False. Each copy is of a whole prompt, so common prefixes are copied repeatedly.
        """
        nodes = await self._threads.run(ThreadPool.QUERY, self._native.cached)
        inner = {node.parent for node in nodes}
        last = sorted((node.last_used, place) for place, node in enumerate(nodes) if place not in inner)
        copies: list[SavedPrefix] = []
        n_bytes = n_misfits = 0
        # The remaining space only shrinks, so prompts at least as long as a misfit are skipped.
        n_too_long: int | None = None
        for _, place in reversed(last):
            if n_bytes >= max_bytes or n_misfits == MAX_MISFITS or not should_continue():
                break
            if n_too_long is not None and nodes[place].start + nodes[place].n_tokens >= n_too_long:
                continue
            tokens = _path(nodes, place)
            if min(tokens) < 0:  # Media, whose content the ids do not identify.
                continue
            try:
                copy = (await _finish(self._native.save(tokens, compute=False))).result
            except EngineStoppedError:
                raise
            except WeftError:
                continue
            assert isinstance(copy, SavedPrefix), "a request to save makes a saved prefix"
            if n_bytes + copy.n_bytes > max_bytes:
                n_misfits += 1
                n_too_long = len(tokens)
            elif copy.n_tokens:
                copies.append(copy)
                n_bytes += copy.n_bytes
        return copies

    async def import_cache(self, copies: Sequence[SavedPrefix]) -> None:
        """Loads copies into the cache; skips copies that no longer fit."""
        for copy in reversed(copies):
            try:
                await _finish(self._native.load(copy))
            except EngineStoppedError:
                raise
            except WeftError:
                continue

    async def _submit(self, submit: Callable[[Prompt], Stream], prompt: Prompt) -> Stream:
        """Queues a request. If the caller is cancelled meanwhile, its stream is dropped."""
        is_long = isinstance(prompt, str) and len(prompt) > LONG_TEXT
        return await self._threads.run(ThreadPool.TEXT, submit, prompt) if is_long else submit(prompt)


def _path(nodes: Sequence[CachedNode], place: int | None) -> list[int]:
    """Returns the tokens from the root to the end of a node."""
    stretches: list[list[int]] = []
    while place is not None:
        stretches.append(nodes[place].tokens)
        place = nodes[place].parent
    return [token for stretch in reversed(stretches) for token in stretch]


async def _finish(stream: Stream) -> Finished:
    """Returns the last event of a request with one branch that generates no tokens. Always closes the stream."""
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
