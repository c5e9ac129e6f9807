"""Operations on the cache of an engine: pins, prefix files, queries and slots."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from weft import _native
from weft._native import CachedNode, Prefix, SavedPrefix, Stream
from weft.errors import EngineStoppedError, InvalidRequestError, PrefixFileError, WeftError
from weft.events import Finished
from weft.installed.platform import free_memory_bytes
from weft.prefix import PrefixFile
from weft.work.threads import LONG_TEXT, ThreadPool, Threads

ERASE_INTERVAL_S = 0.02
"""Seconds between two attempts to erase a slot in which a sequence runs."""

MAX_MISFITS = 4
"""Number of copies that may exceed the size limit before the export ends."""


class CacheControl:
    """Cache interface of an engine."""

    _threads: Threads

    def _running(self) -> _native.Engine:
        raise NotImplementedError

    async def pin(self, prompt: str | Sequence[int], *, adapters: Sequence[tuple[int, float]] | None = None) -> Prefix:
        """Computes the part of a prompt that is not cached, and pins it in the cache until it is unpinned.

        Cancelling the call pins nothing. Only requests with the same `adapters` (see `Request`) can reuse the prefix.

        Raises:
            InvalidRequestError: The prompt has no tokens or the wrong type.
            ContextOverflowError: The prompt alone fills the context of a slot.
            PinBudgetError: Pinned prefixes would take more than half of the cache.
            QueueFullError: `max_queue` requests are already waiting.
            DecodeError: The model could not compute a step.
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        made = (await self._finished(partial(self._running().pin, adapters=adapters), prompt)).result
        assert isinstance(made, Prefix), "a request to pin makes a pinned prefix"
        return made

    async def unpin(self, prefix: Prefix | int) -> bool:
        """Unpins a prefix, given itself or its id, so that it may be evicted. Returns False if it is not pinned.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        return await self._threads.run(
            ThreadPool.QUERY, self._running().unpin, prefix.id if isinstance(prefix, Prefix) else prefix
        )

    async def prefixes(self) -> list[Prefix]:
        """Returns every pinned prefix, in pinning order.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        return await self._threads.run(ThreadPool.QUERY, self._running().pinned)

    async def cached(self) -> list[CachedNode]:
        """Returns all nodes of the prefix tree, parents before their children. Waits for the step that is running.

        Running streams pause while the tree is copied; `recently_used` copies only what it returns. The engine bounds the work
        that it spends on such queries between two steps.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        return await self._threads.run(ThreadPool.QUERY, self._running().cached)

    async def recently_used(self, limit: int) -> tuple[list[CachedNode], int]:
        """Returns at most `limit` nodes of the prefix tree, and the total number of nodes. A large cache has tens of thousands.

        The most recently used come first. A node counts as used when one of its descendants is, so parents come before their
        children, and no node is returned without its parent.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
            OverflowError: `limit` is below 0.
        """
        return await self._threads.run(ThreadPool.QUERY, self._running().recently_used, limit)

    async def prefix_digest(self, key: bytes = b"", *, n_max: int = 8_192) -> tuple[bytes, bytes]:
        """Returns hashes of cached prefixes, per 64-token block: those in the device cache, and those only in the host cache.

        Each hash identifies a text from its beginning to the end of a block. Hashes are 8 bytes, little-endian, sorted
        numerically. `weft.ray.digest` computes the same hashes for a prompt. Only prefixes that other requests can reuse are
        included.

        Args:
            key: Key of the hashes, at most 64 bytes; without it, texts cannot be recognized by their hashes.
            n_max: Maximum number of hashes. If there are more, every second block is included, or every fourth, and so on.

        Raises:
            InvalidRequestError: The key is too long.
            EngineStoppedError: The engine was closed, possibly during the call.
            OverflowError: `n_max` is below 0.
        """
        return await self._threads.run(ThreadPool.QUERY, self._running().prefix_digest, key, n_max)

    async def save_prefix(
        self,
        prompt: str | Sequence[int],
        path: str | os.PathLike[str],
        *,
        compute: bool = True,
        adapters: Sequence[tuple[int, float]] | None = None,
        invoked_at: int | None = None,
    ) -> PrefixFile:
        """Saves the computed state of a prompt to a file for `load_prefix`, in an engine with the same model and cache type.

        Cancelling the call frees the slot; a file whose writing has begun is completed.

        Args:
            prompt: The prefix. The part that is not cached is computed first.
            path: Path of the file; an existing file is replaced when the new one is complete.
            compute: False saves only the cached part.
            adapters: Adapters for the computation, as in `Request`. The file serves requests with the same adapters.
            invoked_at: Position from which an activated adapter (aLoRA) applies; None is its last invocation in the prompt.

        Raises:
            InvalidRequestError: The prompt has no tokens or the wrong type, or nothing could be copied.
            ContextOverflowError: The prompt alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            DecodeError: The model could not compute a step.
            EngineStoppedError: The engine was closed, possibly during the call.
            ModelLoadError: The model file is missing, or has changed since it was loaded.
            OSError: The file cannot be written.
        """
        began, native = time.perf_counter(), self._running()
        save = partial(native.save, compute=compute, adapters=adapters, invoked_at=invoked_at)
        saved = (await self._finished(save, prompt)).result
        assert isinstance(saved, SavedPrefix), "a request to save makes a saved prefix"
        if saved.n_tokens == 0:
            raise InvalidRequestError("prompt", "no prefix of the prompt is cached")
        n_bytes = await self._threads.run(ThreadPool.FILE, native.write_prefix, saved, path)
        return _file(path, saved, n_bytes, began)

    async def load_prefix(self, path: str | os.PathLike[str], *, slot: int | None = None) -> PrefixFile:
        """Loads a file of `save_prefix`, so that requests with this prefix compute only the rest. Cancelling loads nothing.

        Args:
            path: Path of the file.
            slot: Slot to load the prefix into, once it is free; None is any.

        Raises:
            PrefixFileError: The file is damaged, or is of another model, cache type or an adapter that is not loaded.
            InvalidRequestError: There is no such slot.
            ContextOverflowError: The prefix alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was closed, possibly during the call.
            ModelLoadError: The model file is missing, or has changed since it was loaded.
            OSError: The file cannot be read.
        """
        began, native = time.perf_counter(), self._running()
        saved, n_bytes = await self._threads.run(ThreadPool.FILE, native.read_prefix, path)
        try:
            await _last_event(native.load(saved, slot=slot))
        except PrefixFileError as error:
            # The file is valid but incompatible with this model's memory. The engine does not have the path for its error.
            raise PrefixFileError(path, error.reason) from None
        return _file(path, saved, n_bytes, began)

    async def export_cache(self, *, should_continue: Callable[[], bool] = lambda: True) -> list[SavedPrefix]:
        """Returns copies of the host cache, for `import_cache` after the engine has slept and woken.

        Each is a complete prompt, most recently used first. Together they use at most the memory of the host cache and at most
        half of the free memory, so not all prompts are copied if they share much. Prompts with other adapters than the default,
        and prompts with media, are skipped.

        Args:
            should_continue: Called before each copy; returning False ends the export with the copies made so far.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        native = self._running()
        max_bytes = min(native.stats().host_cache.n_bytes, free_memory_bytes() // 2)
        nodes = await self._threads.run(ThreadPool.QUERY, native.cached)
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
                copy = (await _last_event(native.save(tokens, compute=False))).result
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
        """Loads the copies of `export_cache`, so that requests with these prefixes compute only the rest.

        Raises:
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        load = self._running().load
        for copy in reversed(copies):
            try:
                await _last_event(load(copy))
            except EngineStoppedError:
                raise
            except WeftError:
                # It no longer fits.
                continue

    async def slot_tokens(self, slot: int) -> list[int]:
        """Returns the tokens in a slot that its running sequence, or else the last one, has computed.

        Prompts that are pinned, saved, or loaded without a slot run in a free slot and do not change its tokens.

        Raises:
            InvalidRequestError: There is no such slot.
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        tokens, _, _ = await self.slot_state(slot)
        return tokens

    async def slot_state(self, slot: int) -> tuple[list[int], list[tuple[int, float]], int | None]:
        """Returns the tokens of `slot_tokens`, the adapters that they were computed with (as in `Request`), and `invoked_at`.

        The last is the position from which an activated adapter (aLoRA) applies, as in `save_prefix`, or None.

        Raises:
            InvalidRequestError: There is no such slot.
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        return await self._threads.run(ThreadPool.QUERY, self._running().slot_state, slot)

    async def erase_slot(self, slot: int) -> int:
        """Evicts the tokens in a slot, once it is idle, and returns their number. Other cached prefixes are unaffected.

        Raises:
            InvalidRequestError: There is no such slot.
            EngineStoppedError: The engine was closed, possibly during the call.
        """
        erase = self._running().erase_slot
        # Polls, so that a cancelled caller leaves no waiting thread behind.
        while (n_tokens := await self._threads.run(ThreadPool.ERASE, erase, slot)) is None:  # noqa: ASYNC110
            await asyncio.sleep(ERASE_INTERVAL_S)
        return n_tokens

    async def _finished(self, submit: Callable[[str | Sequence[int]], Stream], prompt: str | Sequence[int]) -> Finished:
        """Queues a request and returns its last event. If the caller is cancelled meanwhile, its stream is dropped."""
        is_long = isinstance(prompt, str) and len(prompt) > LONG_TEXT
        return await _last_event(await self._threads.run(ThreadPool.TEXT, submit, prompt) if is_long else submit(prompt))


def _path(nodes: Sequence[CachedNode], place: int | None) -> list[int]:
    """Returns the tokens from the root to the end of a node."""
    stretches: list[list[int]] = []
    while place is not None:
        stretches.append(nodes[place].tokens)
        place = nodes[place].parent
    return [token for stretch in reversed(stretches) for token in stretch]


async def _last_event(stream: Stream) -> Finished:
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
