"""Prefix-aware routing: sends a prompt to the replica that has most of it cached, unless that replica is overloaded.

Each replica has a cost, in tokens of a prompt to compute: the part of this prompt that it does not have, a little for the part
that it must reload from its host cache, and its pending work. The cheapest replica is selected. Ties are resolved by the prompt,
so that independent routers select the same replica. For an unknown prompt, two replicas are sampled and the less busy one is
selected. Replicas that are far busier than the least busy one come last, regardless of their cache.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from weft.ray.digest import BLOCK, MAX_HASHES, Digest, block_hashes, unpack

MAX_AGE_S = 10.0
"""Maximum age of a usable digest, in seconds: ten later ones should have arrived."""

SETTLED_S = 5.0
"""Seconds after which a digest has priority over the router's own record of a prompt that it sent."""

MAX_REPLICAS = 1_024
"""Maximum number of replicas that the router records; the least recently seen one is dropped."""

MAX_SENT = MAX_HASHES
"""Maximum number of hashes that are recorded per replica; the oldest are dropped."""

USUAL_SLOTS = 4
"""Assumed number of slots of a replica without a digest."""

RESTORING = 2 / 1_800
"""Cost of a reloaded token relative to a computed token: measured at 1 to 3 µs per 1,800 µs."""

COMPUTING = 2.0
"""Cost of a computed token relative to a token of waiting time, since it also delays other requests."""

WAITING, MOST_COMPUTING = 4.0, 16.0
"""Increase of this cost per prompt that waits at a replica, on average, and its maximum."""

WRITING = 500.0
"""Cost of each request that must end before this one gets a slot, in tokens of a prompt."""

SHARING = 16.0
"""Cost of each request that runs concurrently, in tokens of a prompt."""

MAX_PROMPTS = 256
"""Maximum number of sent prompts that are recorded per replica; waiting ones are the most recent."""

GUARD_RATIO, GUARD_SLOTS = 1.5, 2
"""Limits of a replica's requests relative to the least busy one: factor of the load, and additional requests per slot."""

_SMOOTHING = 1 / 64
"""Weight of a new prompt in the moving average of computed tokens per prompt."""


class Candidate(msgspec.Struct, frozen=True):
    """A replica that a request may be sent to."""

    replica_id: str
    digest: Digest | None
    """Its last digest; `None` before the first one."""
    n_ongoing: int
    """Requests that the sender has sent to it and that have not ended."""


class _Text(NamedTuple):
    """Hashed blocks of a prompt."""

    n_tokens: int
    places: dict[int, int]
    """Position of each block, from 1, in order."""


class _ReplicaRecord:
    """The router's record of a replica."""

    __slots__ = ("device", "host", "made_at", "packed", "prompts", "sent")

    def __init__(self) -> None:
        self.sent: dict[int, float] = {}
        """Time when each block was last sent, the oldest first."""
        self.prompts: deque[tuple[float, float]] = deque(maxlen=MAX_PROMPTS)
        """Time of each recent prompt and its number of tokens to compute, the oldest first."""
        self.forget()

    def forget(self) -> None:
        """Discards the last digest."""
        self.made_at = float("-inf")
        self.packed = b"", b""
        self.device: set[int] = set()
        self.host: set[int] = set()

    def read(self, digest: Digest) -> None:
        """Records a new digest, and drops older records of sent blocks, which it supersedes."""
        if digest.made_at == self.made_at:
            return
        self.made_at = digest.made_at
        if self.packed != (digest.device, digest.host):
            self.packed = digest.device, digest.host
            self.device, self.host = unpack(digest.device), unpack(digest.host)
        # Prompts are started in the order in which they were sent, so waiting and running ones are the most recent.
        n_open = digest.n_queued + self.n_since(digest.made_at) + (digest.n_running if digest.n_pending else 0)
        first_open = self.prompts[-min(n_open, len(self.prompts))][0] if n_open and self.prompts else float("inf")
        for block, sent_at in list(self.sent.items()):
            if sent_at >= min(digest.made_at - SETTLED_S, first_open):
                break
            del self.sent[block]

    def remember(self, blocks: Iterable[int], own: float, now: float) -> None:
        self.prompts.append((now, own))
        self.hold(blocks, now)

    def hold(self, blocks: Iterable[int], now: float) -> None:
        for block in blocks:
            self.sent.pop(block, None)
            self.sent[block] = now
        while len(self.sent) > MAX_SENT:
            del self.sent[next(iter(self.sent))]

    def n_since(self, made_at: float) -> int:
        """Returns the number of prompts that were sent after this time."""
        return sum(1 for _ in takewhile(lambda prompt: prompt[0] > made_at, reversed(self.prompts)))

    def pending(self, n: int, typical: float) -> float:
        """Returns the tokens to compute of the last `n` prompts; prompts of other routers are estimated as `typical`."""
        return sum(own for _, own in islice(reversed(self.prompts), n)) + typical * max(n - len(self.prompts), 0)


class _Estimate(msgspec.Struct):
    """Estimate for a prompt at one replica."""

    replica_id: str
    own: float
    """Tokens of the prompt to compute."""
    pending: float
    """Tokens to compute before the prompt."""
    n_requests: int
    n_slots: int
    n_free_cells: int
    next_block: int | None
    """First block of the prompt that the replica does not have; `None` if it has all."""

    @property
    def load(self) -> float:
        """Requests per slot."""
        return self.n_requests / self.n_slots

    def price(self, computing: float) -> float:
        """Returns the cost in tokens of waiting time, for a cost of `computing` per computed token."""
        return computing * self.own + self.waiting + SHARING * min(self.n_requests, self.n_slots)

    @property
    def waiting(self) -> float:
        """Waiting time until the prompt starts, in tokens of a prompt."""
        return self.pending + WRITING * max(self.n_requests + 1 - self.n_slots, 0)

    def busy(self) -> tuple[float, float, int]:
        return (self.load, self.pending, -self.n_free_cells)


class Router:
    """Ranks replicas for prompts.

    Must be used from one thread. Deterministic apart from its random generator: the time is an argument.

    Args:
        salt: Default key of the hashes for `choose` and `sent`.
        seed: Seed of the random generator, for reproducible results.
    """

    def __init__(self, *, salt: bytes = b"", seed: int | None = None) -> None:
        self._salt = salt
        self._random = random.Random(seed)
        self._records: dict[str, _ReplicaRecord] = {}
        self._typical = float(BLOCK)

    def choose(
        self, tokens: Sequence[int] | None, candidates: Sequence[Candidate], *, now: float, salt: bytes | None = None
    ) -> list[str]:
        """Returns the ids of the candidates, the best first.

        Args:
            tokens: Prompt; `None` if it is unknown.
            candidates: Available replicas, without duplicates.
            now: Seconds since the epoch, as in the digests.
            salt: Key of this prompt's hashes; `None` is the router's default.
        """
        text = _text(tokens or (), self._salt if salt is None else salt)
        estimates = [self._estimate(candidate, text, now) for candidate in candidates]
        if not estimates:
            return []
        least_busy = min(estimates, key=_Estimate.busy)
        deprioritized = {estimate.replica_id for estimate in estimates if _is_far_busier(estimate, least_busy)}
        self._random.shuffle(estimates)
        if not tokens:
            open_to_all = [estimate for estimate in estimates if estimate.replica_id not in deprioritized]
            first = min(open_to_all[:2], key=_Estimate.busy)
            estimates.sort(key=lambda estimate: (estimate is not first, estimate.replica_id in deprioritized, estimate.busy()))
            return [estimate.replica_id for estimate in estimates]
        # Computation delays all requests that arrive before it ends, so its cost grows with the pending work.
        waiting = sum(estimate.waiting for estimate in estimates) / len(estimates) / max(self._typical, BLOCK)
        computing = min(COMPUTING + WAITING * waiting, MOST_COMPUTING)

        def rank(estimate: _Estimate) -> tuple[bool, float, int]:
            # For a tie, all routers select the same replica, so that a common prefix is not computed on several of them.
            weight = 0 if estimate.next_block is None else _weight(str(estimate.next_block), estimate.replica_id)
            return estimate.replica_id in deprioritized, estimate.price(computing), -weight

        estimates.sort(key=rank)
        return [estimate.replica_id for estimate in estimates]

    def sent(self, replica_id: str, tokens: Sequence[int] | None, *, now: float, salt: bytes | None = None) -> None:
        """Records that a prompt was sent to a replica, which has it cached, or will have, before its next digest.

        Args:
            replica_id: Id of the replica.
            tokens: Prompt; `None` if it is unknown.
            now: Seconds since the epoch.
            salt: Key of its hashes; `None` is the router's default.
        """
        if not tokens:
            return
        text = _text(tokens, self._salt if salt is None else salt)
        record = self._record(replica_id)
        own = _n_to_compute(text, *_cached_lengths(record, text))
        self._typical += _SMOOTHING * (own - self._typical)
        record.remember(text.places, own, now)

    def wrote(self, replica_id: str, tokens: Sequence[int], *, now: float, salt: bytes | None = None) -> None:
        """Records that a replica has computed a text, a prompt with its completion, before its next digest.

        Args:
            replica_id: Id of the replica.
            tokens: Tokens of the text.
            now: Seconds since the epoch.
            salt: Key of its hashes; `None` is the router's default.
        """
        self._record(replica_id).hold(_text(tokens, self._salt if salt is None else salt).places, now)

    def _record(self, replica_id: str) -> _ReplicaRecord:
        record = self._records.pop(replica_id, None) or _ReplicaRecord()
        self._records[replica_id] = record
        if len(self._records) > MAX_REPLICAS:
            del self._records[next(iter(self._records))]
        return record

    def _estimate(self, candidate: Candidate, text: _Text, now: float) -> _Estimate:
        record = self._record(candidate.replica_id)
        digest = candidate.digest
        if digest is None or now - digest.made_at > MAX_AGE_S:
            record.forget()
            n_requests, n_slots, n_free_cells = candidate.n_ongoing, USUAL_SLOTS, 0
            # Assumes that half of the open prompts have been computed.
            pending = record.pending(candidate.n_ongoing, self._typical) / 2
        else:
            record.read(digest)
            n_requests = max(candidate.n_ongoing, digest.n_queued + digest.n_running)
            n_slots, n_free_cells = max(digest.n_slots, 1), digest.n_free_cells
            running = self._typical * digest.n_running / 2 if digest.n_pending is None else digest.n_pending
            n_waiting = min(digest.n_queued + record.n_since(digest.made_at), n_requests)
            pending = running + record.pending(n_waiting, self._typical)
        in_device, in_host = _cached_lengths(record, text)
        next_block = next(islice(text.places, (in_device + in_host) // BLOCK, None), None)
        own = _n_to_compute(text, in_device, in_host)
        return _Estimate(candidate.replica_id, own, pending, n_requests, n_slots, n_free_cells, next_block)


def _text(tokens: Sequence[int], salt: bytes) -> _Text:
    hashes = block_hashes(tokens, salt=salt)
    return _Text(len(tokens), {block: place for place, block in enumerate(hashes, start=1)})


def _cached_lengths(record: _ReplicaRecord, text: _Text) -> tuple[int, int]:
    """Returns the length of the prefix in a replica's device cache, and of its continuation in the host cache, in tokens."""
    in_device = max(_depth(text, record.device), _depth(text, record.sent.keys()))
    in_host = _depth(text, record.host)
    return BLOCK * in_device, BLOCK * max(in_host - in_device, 0)


def _depth(text: _Text, cached: AbstractSet[int]) -> int:
    """Returns the number of leading blocks that are cached: each hash also represents all previous blocks."""
    # CPython's `&` iterates over the smaller of a view of keys and a `set`, but over all of a `frozenset`.
    return max(map(text.places.__getitem__, text.places.keys() & cached), default=0)


def _n_to_compute(text: _Text, in_device: int, in_host: int) -> float:
    return text.n_tokens - in_device - in_host + RESTORING * in_host


def _is_far_busier(estimate: _Estimate, least_busy: _Estimate) -> bool:
    return (
        estimate.n_requests > least_busy.n_requests + GUARD_SLOTS * estimate.n_slots
        and estimate.load > GUARD_RATIO * least_busy.load
    )


def _weight(key: str, replica_id: str) -> int:
    """Rendezvous hashing: the replica with the highest weight for a key keeps it, regardless of changes to other replicas."""
    weight = blake2b(replica_id.encode(), key=blake2b(key.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(weight, "little")
