"""Engine whose requests are computed by replicas in other processes."""

import asyncio
import contextlib
import itertools
import math
import random
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NoReturn, cast

import msgspec

from weft import _native
from weft._native import Adapter, CachedNode, CompactEmbeddings, EmbeddingStats, Limits, Model, Prefix, Stats, Stream
from weft.config import EngineConfig
from weft.engine import Engine
from weft.errors import ContextOverflowError, EngineStoppedError, InvalidRequestError, NotSupportedError, WeftError
from weft.ray.copies import NodeCopy, PrefixCopy, changed, combined
from weft.ray.digest import salt_of
from weft.ray.errors import NoReplicaError, ReplicaLostError
from weft.ray.fleet import Fleet
from weft.ray.messages import Call, ReplicaInfo, packed, portable_request, tokens_of
from weft.ray.stream import Feed, RemoteStream
from weft.request import Prompt, Request
from weft.work.threads import ThreadPool

ACCEPT_TIMEOUT_S = 60.0
"""Seconds within which a replica must accept a request."""


class RemoteEngine(Engine):
    """A `weft.Engine` whose worker is a fleet of replicas; tokenization is local.

    Bound to the event loop that starts it, on which streams are read. Metrics of all replicas are up to a second old.

    Args:
        fleet: The replicas.
        model: Path of their GGUF file, of which the vocabulary is loaded; None is the demo model.
        config: Settings of their engines.
        key: Secret key of the digests.
    """

    def __init__(self, fleet: Fleet, model: str | None, config: EngineConfig, key: bytes) -> None:
        super().__init__(model, config=config)
        self._fleet = fleet
        self._key = key
        self._replica_info: ReplicaInfo | None = None
        self._scales: list[tuple[int, float]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._request_ids = itertools.count()
        self._feeds: dict[int, Feed] = {}
        """Feeds of open requests, by request number."""
        self._position_of: dict[str, int] = {}
        """Position of each replica in the list of all: the first free one when it appeared."""
        self._pins: dict[int, PrefixCopy] = {}
        """Pinned prefixes by their number."""

    async def start(self) -> None:
        """Loads the vocabulary, and waits for the first replica.

        Raises:
            ModelLoadError: The file is not a model that Weft can run.
            InvalidConfigError: Settings contradict each other, or do not fit the model.
            RuntimeError: The engine was started before.
        """
        if self._state != "new":
            raise RuntimeError("the engine was already started")
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        overrides = self._config.kv_overrides or None
        vocabulary = await self._threads.run(ThreadPool.LIFE, lambda: Model.load_vocabulary(self._path, kv_overrides=overrides))
        self._replica_info = await self._first_info()
        self._scales = [(adapter.id, adapter.scale) for adapter in self._replica_info.adapters]
        self._native = cast("_native.Engine", _ReplicaProperties(self._replica_info, vocabulary))
        self._vocabulary = vocabulary
        self._state = "running"

    async def _first_info(self) -> ReplicaInfo:
        """Returns the properties of the first running replica, without a limit for the time that it takes to load its model."""
        while not self._is_closed():
            with contextlib.suppress(NoReplicaError, ReplicaLostError):
                return cast("ReplicaInfo", await self._fleet.call_replica(None, "info"))
        raise EngineStoppedError

    async def close(self) -> None:
        """Ends every open stream; replicas keep running. Idempotent."""
        self._native, self._state = None, "closed"
        for feed in list(self._feeds.values()):
            feed.error = EngineStoppedError()
            feed.close()

    async def sleep(self) -> None:
        """Raises NotSupportedError: the number of replicas follows the load instead."""
        raise NotSupportedError("replicas do not sleep; set a range of replicas that starts at 0 instead")

    async def wake(self) -> None:
        """See `sleep`."""
        raise NotSupportedError("replicas do not sleep")

    def _submit(self, request: Request) -> Stream:
        """Sends a request to a replica. Errors of the replica are raised when the stream is read.

        Raises:
            ContextOverflowError: The prompt alone fills the context of a slot.
            NotSupportedError: The prompt has images or audio.
            EngineStoppedError: The engine was closed.
        """
        info = self._info()
        tokens = tokens_of(request.prompt, self._vocabulary)
        if len(tokens) >= info.limits.n_ctx_slot:
            raise ContextOverflowError(len(tokens), info.limits.n_ctx_slot)
        return self._send(request, tokens)

    def _send(self, request: Request, tokens: list[int]) -> Stream:
        assert self._loop is not None, "it was started"
        seed = random.getrandbits(32) if request.seed is None else request.seed
        adapters = request.adapters
        if adapters is None and self._info().adapters:
            adapters = self._scales
        only, slot = self._locate_slot(request.slot)
        portable = msgspec.structs.replace(portable_request(request), seed=seed, adapters=adapters, slot=slot)
        call = Call(
            id=uuid.uuid4().hex, request=portable, tokens=packed(tokens), salt=salt_of(self._key, adapters or ()), only=only
        )
        request_id = next(self._request_ids)
        n = len(request.branches) or request.n
        feed = Feed(self._fleet, call, n, ACCEPT_TIMEOUT_S, on_end=lambda: self._feeds.pop(request_id, None))
        stream = RemoteStream(
            feed=feed,
            loop=self._loop,
            model=self._vocabulary,
            seed=seed,
            n_prompt=len(tokens),
            request_id=request_id,
            slots_before=self._slots_before,
        )
        self._feeds[request_id] = feed
        self._loop.call_soon_threadsafe(feed.start)
        return cast("Stream", stream)

    def _locate_slot(self, slot: int | None) -> tuple[str | None, int | None]:
        """Returns the replica of a slot in the list of all slots, and the slot's index there."""
        if slot is None:
            return None, None
        place, own = divmod(slot, self._info().limits.n_slots)
        replica_id = next((name for name, at in self._positions().items() if at == place), None)
        if replica_id is None:
            raise InvalidRequestError("slot", f"slot is {slot}; no replica has this slot")
        return replica_id, own

    def _slots_before(self, replica_id: str) -> int:
        return self._positions().get(replica_id, 0) * cast("int", self._info().limits.n_slots)

    def _positions(self) -> dict[str, int]:
        alive = self._fleet.reports()
        self._position_of = {name: place for name, place in self._position_of.items() if name in alive}
        for name in alive:
            if name not in self._position_of:
                taken = set(self._position_of.values())
                self._position_of[name] = next(place for place in range(len(taken) + 1) if place not in taken)
        return self._position_of

    def begin_embedding(
        self, texts: Sequence[Prompt], normalize: int, dimensions: int | None
    ) -> Coroutine[Any, Any, CompactEmbeddings]:
        """See `Engine`; runs on any replica."""
        read = [tokens_of(text, self._vocabulary) for text in texts]
        return self._fleet.call_replica(None, "begin_embedding", read, normalize, dimensions)

    def begin_ranking(self, query: str, texts: Sequence[str]) -> Coroutine[Any, Any, CompactEmbeddings]:
        """See `Engine`; runs on any replica."""
        return self._fleet.call_replica(None, "begin_ranking", query, list(texts))

    def embedding_stats(self) -> EmbeddingStats:
        """Returns the combined metrics of all replicas."""
        reports = [one.embedding_stats for one in self._fleet.reports().values()] or [self._info().embedding_stats]
        return cast("EmbeddingStats", combined(reports))

    @property
    def adapters(self) -> list[Adapter]:
        """Loaded adapters, which are the same in all replicas."""
        scales = dict(self._scales)
        return [changed(adapter, scale=scales.get(adapter.id, 0.0)) for adapter in self._info().adapters]

    def set_adapters(self, adapters: Sequence[tuple[int, float]]) -> None:
        """See `Engine`; every request sends the scales to its replica."""
        loaded = {adapter.id for adapter in self._info().adapters}
        for number, scale in adapters:
            if number not in loaded:
                raise InvalidRequestError("adapters", f"adapters has {number}; there are {len(loaded)}, counted from 0")
            if not math.isfinite(scale):
                raise InvalidRequestError("adapters", f"adapters has the scale {scale}; it must be a finite number")
        self._scales = [(number, scale) for number, scale in adapters if scale]

    async def pin(self, prompt: str | Sequence[int], *, adapters: Sequence[tuple[int, float]] | None = None) -> Prefix:
        """See `Engine`; pins the prefix on every current replica. Later replicas compute it when it is requested."""
        tokens = tokens_of(prompt, self._vocabulary)
        scales = list(self._scales if adapters is None else adapters) or None
        try:
            made: list[PrefixCopy] = await self._fleet.call_replicas("pin", tokens, scales)
        except WeftError:
            await self._fleet.call_replicas("unpin", tokens)
            raise
        if not made:
            raise ReplicaLostError("")
        prefix = made[0]
        prefix.id = max(self._pins, default=-1) + 1
        prefix.n_bytes = sum(each.n_bytes for each in made)
        self._pins[prefix.id] = prefix
        return cast("Prefix", prefix)

    async def unpin(self, prefix: Prefix | int) -> bool:
        """See `Engine`; unpins the prefix on every replica."""
        number = prefix if isinstance(prefix, int) else prefix.id
        pinned = self._pins.pop(number, None)
        if pinned is None:
            return False
        others = [each for each in self._pins.values() if (each.tokens, each.adapters) == (pinned.tokens, pinned.adapters)]
        if not others:
            await self._fleet.call_replicas("unpin", pinned.tokens)
        return True

    async def prefixes(self) -> list[Prefix]:
        """Returns the prefixes that were pinned by this engine, in order."""
        return [cast("Prefix", prefix) for prefix in self._pins.values()]

    async def recently_used(self, limit: int) -> tuple[list[CachedNode], int]:
        """See `Engine`; returns the trees of all replicas, one after the other, each with an equal share of `limit`."""
        alive = max(len(self._fleet.reports()), 1)
        trees: list[tuple[str, list[NodeCopy], int]] = await self._fleet.call_replicas("nodes", limit // alive)
        nodes: list[NodeCopy] = []
        for replica_id, own, _ in trees:
            for node in own:
                node.move(len(nodes), self._slots_before(replica_id))
            nodes += own
        return cast("list[CachedNode]", nodes), sum(n for _, _, n in trees)

    async def slot_state(self, slot: int) -> tuple[list[int], list[tuple[int, float]], int | None]:
        """See `Engine`; `slot` is an index in the list of all slots."""
        replica_id, own = self._locate_slot(slot)
        state = await self._fleet.call_replica(replica_id, "slot_state", own)
        return cast("tuple[list[int], list[tuple[int, float]], int | None]", state)

    async def erase_slot(self, slot: int) -> int:
        """See `Engine`; `slot` is an index in the list of all slots."""
        replica_id, own = self._locate_slot(slot)
        return cast("int", await self._fleet.call_replica(replica_id, "erase_slot", own))

    def stats(self) -> Stats:
        """Returns the combined last stats of all replicas: concatenated slots, and sums of all else."""
        reports = self._fleet.reports()
        places = self._positions()
        if not reports:
            return cast("Stats", self._info().stats)
        numbers = {
            (feed.accepted.replica_id, feed.accepted.request_id): number
            for number, feed in list(self._feeds.items())
            if feed.accepted is not None
        }
        each = []
        for name in sorted(reports, key=places.__getitem__):
            n_before, slots = self._slots_before(name), reports[name].stats.slots
            # The request is -1 if it is not known here.
            own = [None if slot.request_id is None else numbers.get((name, slot.request_id), -1) for slot in slots]
            slots = [changed(slot, id=slot.id + n_before, request_id=request) for slot, request in zip(slots, own, strict=True)]
            each.append(changed(reports[name].stats, slots=slots))
        return cast("Stats", combined(each))

    @property
    def limits(self) -> Limits:
        """Limits of one replica, with the total number of slots and queued requests."""
        own = self._info().limits
        n = max(max(self._positions().values(), default=0) + 1, 1)
        return cast("Limits", changed(own, n_slots=n * own.n_slots, max_queue=n * own.max_queue))

    def _info(self) -> ReplicaInfo:
        self._running()
        assert self._replica_info is not None, "the replicas are known once the engine runs"
        return self._replica_info


class _ReplicaProperties:
    """The properties of one replica, in place of the compiled engine. They hold for all, since equal machines compute equally."""

    is_running = True
    """Dead replicas are restarted by the fleet's infrastructure."""

    def __init__(self, info: ReplicaInfo, vocabulary: Model) -> None:
        self.model = _Vocabulary(vocabulary, info.model)
        self.compute = info.compute
        self.is_repeatable = info.is_repeatable
        self.no_speculation_reason = info.no_speculation_reason
        self.draft_type = info.draft_type
        self.embeddings_are_repeatable = info.embeddings_are_repeatable

    def __getattr__(self, name: str) -> NoReturn:
        raise NotSupportedError(
            "state files, cache exports and single steps belong to one engine; they are not supported with replicas"
        )


class _Vocabulary:
    """A vocabulary with properties of the weights from a replica."""

    def __init__(self, vocabulary: Model, weights: Mapping[str, Any]) -> None:
        self._vocabulary = vocabulary
        vars(self).update(weights)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any attribute of a model)
        return getattr(self._vocabulary, name)
