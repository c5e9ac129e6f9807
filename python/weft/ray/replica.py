"""A replica: one engine with an interface for other processes. Independent of Ray."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from weft._native import Stream
from weft.config import EngineConfig
from weft.engine import Engine
from weft.errors import EngineStoppedError, WeftError
from weft.events import CacheExplanation, Event, Finished, Token
from weft.ray.copies import N_ENDS, NodeCopy, PrefixCopy, attributes, plain_copy
from weft.ray.digest import digest_of
from weft.ray.errors import ReplicaLostError
from weft.ray.messages import Call, MethodCall, ReplicaInfo, ReplicaReport, RequestAccepted, Sent, portable, unpacked

GAP_S = 0.02
"""Minimum seconds between two messages of a stream, except its first: a message costs each process a millisecond."""


LIVES_EVERY_S = 5.0
"""Seconds without events after which a stream sends an empty message as a sign of life."""

EXPLAINS_WITHIN_S = 0.25
"""Interval in seconds at which a requested explanation of cache misses is checked."""


class Replica:
    """An engine that is addressed by its replica id.

    Args:
        replica_id: Id of the replica.
        model: Path of a GGUF file; None is the demo model.
        config: Settings of the engine.
        key: Secret key of the digests.
    """

    def __init__(self, replica_id: str, model: str | None, config: EngineConfig, key: bytes) -> None:
        self._id = replica_id
        self._engine = Engine(model, config=config)
        self._key = key
        self._streams: dict[str, Stream] = {}

    async def start(self) -> None:
        """Loads the model; raises the errors of `Engine.start`."""
        await self._engine.start()

    async def close(self) -> None:
        """Closes the engine; open streams end with an error."""
        await self._engine.close()

    def check_health(self) -> None:
        """Checks that the engine is running.

        Raises:
            EngineStoppedError: The engine is not running.
        """
        if not self._engine.is_running:
            raise EngineStoppedError

    async def generate(self, call: Call) -> AsyncGenerator[Sent]:
        """Yields the messages of a response. Closing the generator frees the slots."""
        if call.only not in (None, self._id):
            yield ReplicaLostError(call.only or "")
            return
        try:
            stream = self._engine.stream(msgspec.structs.replace(call.request, prompt=unpacked(call.tokens)))
        except WeftError as error:
            yield error
            return
        self._streams[call.id] = stream
        try:
            yield RequestAccepted(self._id, stream.request_id)
            n_open = len(call.request.branches) or call.request.n
            explained: CacheExplanation | None = None
            needs_explanation = call.request.explain_cache
            while n_open:
                events = await _next_events(stream, needs_explanation=needs_explanation and explained is None)
                # Sent before the first token, which may have changed it; later events do not change it.
                if needs_explanation and (why := stream.explanation) is not None and why != explained:
                    explained = why
                    yield why
                elif events is None:
                    yield []
                if events is None:
                    continue
                if not events:
                    break
                yield [portable(event) for event in events]
                needs_explanation = needs_explanation and not any(isinstance(event, Token | Finished) for event in events)
                n_open -= sum(isinstance(event, Finished) for event in events)
                if n_open:
                    await asyncio.sleep(GAP_S)
        except WeftError as error:
            yield error
        finally:
            stream.close()
            del self._streams[call.id]

    async def answer(self, method: MethodCall) -> Any:  # noqa: ANN401 (the method's result)
        """Returns the result of a method of the replica, or else of its engine; or the method's WeftError."""
        if method.only not in (None, self._id):
            return ReplicaLostError(method.only or "")
        try:
            target = self if hasattr(self, method.method) else self._engine
            return await getattr(target, method.method)(*method.given)
        except WeftError as error:
            return error

    async def cancel(self, call_id: str, index: int) -> None:
        """Cancels one branch of a call, if it has not ended."""
        if (stream := self._streams.get(call_id)) is not None:
            stream.cancel(index)

    async def info(self) -> ReplicaInfo:
        """Returns the constant properties of the replica."""
        engine, model = self._engine, self._engine.model
        names = ("n_params", "size_bytes", "n_ctx_train", "n_embd", "description", "is_encoder", "is_repacked", "is_layout_open")
        return ReplicaInfo(
            limits=plain_copy(engine.limits),
            compute=plain_copy(engine.compute),
            is_repeatable=engine.is_repeatable,
            no_speculation_reason=engine.no_speculation_reason,
            draft_type=engine.draft_type,
            embeddings_are_repeatable=engine.embeddings_are_repeatable,
            adapters=plain_copy(engine.adapters),
            stats=plain_copy(engine.stats()),
            embedding_stats=plain_copy(engine.embedding_stats()),
            model={name: getattr(model, name) for name in names},
        )

    async def report(self) -> ReplicaReport:
        """Returns the current report of the replica."""
        engine = self._engine
        digest = await digest_of(engine, self._key)
        stats = engine.stats()
        return ReplicaReport(digest=digest, stats=plain_copy(stats), embedding_stats=plain_copy(engine.embedding_stats()))

    def pressure(self) -> dict[str, float]:
        """Returns the fractions that determine the number of replicas."""
        stats = self._engine.stats()
        n_running = sum(slot.is_processing for slot in stats.slots)
        return {
            "busy_slots": (n_running + stats.n_waiting) / len(stats.slots),
            "busy_cells": (stats.n_cells_used - stats.n_cells_idle) / stats.n_cells,
        }

    async def pin(self, prompt: Sequence[int], adapters: Sequence[tuple[int, float]] | None) -> PrefixCopy:
        """See `Engine.pin`."""
        return PrefixCopy(**attributes(await self._engine.pin(prompt, adapters=adapters)))

    async def unpin(self, tokens: Sequence[int]) -> bool:
        """Unpins every prefix with these tokens; returns whether there was one."""
        ids = [prefix.id for prefix in await self._engine.prefixes() if prefix.tokens == list(tokens)]
        return any([await self._engine.unpin(each) for each in ids])

    async def nodes(self, limit: int) -> tuple[str, list[NodeCopy], int]:
        """See `Engine.recently_used`; also returns the replica's id."""
        nodes, n_nodes = await self._engine.recently_used(limit)
        copies = [NodeCopy(**attributes(node, without="tokens"), ends=node.excerpt(N_ENDS)) for node in nodes]
        return self._id, copies, n_nodes


async def _next_events(stream: Stream, *, needs_explanation: bool) -> list[Event] | None:
    """Returns the result of `next_batch`; None after a timeout, or when a requested explanation is available."""
    began = time.monotonic()
    while (left_s := began + LIVES_EVERY_S - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, EXPLAINS_WITHIN_S) if needs_explanation else left_s):
                return await stream.next_batch(compact=True)
        if needs_explanation and stream.explanation is not None:
            break
    return None
