"""Which replica a prompt is sent to: where most of it is computed already, unless too much waits there.

Every replica is given a price, in tokens of a prompt that have to be computed: those of this prompt that it does not hold, a
little for those that it must bring back from its store, and what it has to do for others first. The cheapest one is taken. Where
no replica knows more of the prompt than another, two are drawn and the less busy one is taken. A replica that is far busier than
the least busy one is passed over, whatever it holds.
"""

import random
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from weft.ray.digest import BLOCK, MAX_HASHES, Digest, block_hashes, unpack

__all__ = ["MAX_AGE_S", "MAX_REPLICAS", "MAX_SENT", "SETTLED_S", "Candidate", "Router"]

MAX_AGE_S = 10.0
"""A digest older than this, in seconds, is not believed: of ten that should have followed it none has come."""

SETTLED_S = 5.0
"""So many seconds after a prompt was sent, a digest knows better than the router whether it is held."""

MAX_REPLICAS = 1_024
"""Replicas that the router remembers; the one that it has not seen for longest is forgotten first."""

MAX_SENT = MAX_HASHES
"""Most hashes of what was sent to a replica that are remembered; the oldest are forgotten first."""

USUAL_SLOTS = 4
"""Slots that a replica is taken to have that has not told."""

RESTORING = 2 / 1_800
"""What a token costs that is brought back from the store, in tokens that are computed: 1 to 3 µs for each 1,800, as measured."""

WRITING = 128.0
"""What a request costs others at its replica beside its prompt, in tokens of a prompt."""

GUARD_RATIO = 1.5
"""A replica is passed over that has so many times as much to do as the least busy one, and as many requests more as it has
slots."""

_SMOOTHING = 1 / 64
"""The weight of one more prompt in the mean of what is computed of one."""


class Candidate(msgspec.Struct, frozen=True):
    """A replica that a request may be sent to."""

    replica_id: str
    digest: Digest | None
    """What it told last; `None` where it has told nothing yet."""
    n_ongoing: int
    """Requests that were sent to it and have not ended, as far as the sender knows."""


class _Known:
    """What the router remembers of a replica."""

    __slots__ = ("made_at", "packed", "pool", "sent", "stored")

    def __init__(self) -> None:
        self.made_at = float("-inf")
        self.packed = b"", b""
        self.pool: frozenset[int] = frozenset()
        self.stored: frozenset[int] = frozenset()
        self.sent: dict[int, float] = {}
        """When each was sent last, the oldest first."""

    def read(self, digest: Digest) -> None:
        """A digest is read once. What was sent long before it was made is told by it, or is not held any more."""
        if digest.made_at == self.made_at:
            return
        self.made_at = digest.made_at
        if self.packed != (digest.pool, digest.stored):
            self.packed = digest.pool, digest.stored
            self.pool, self.stored = unpack(digest.pool), unpack(digest.stored)
        for block, sent_at in list(self.sent.items()):
            if sent_at + SETTLED_S > digest.made_at:
                break
            del self.sent[block]

    def forget(self) -> None:
        """What it has told is not believed."""
        self.made_at, self.packed = float("-inf"), (b"", b"")
        self.pool = self.stored = frozenset()

    def remember(self, blocks: Sequence[int], now: float) -> None:
        for block in blocks:
            self.sent.pop(block, None)
            self.sent[block] = now
        while len(self.sent) > MAX_SENT:
            del self.sent[next(iter(self.sent))]


class _Offer(msgspec.Struct):
    """What a replica would do for a prompt."""

    replica_id: str
    own: float
    """What of the prompt must be computed there."""
    load: float
    """Requests that it has, for each slot."""
    n_requests: int
    n_slots: int
    n_free_cells: int

    def price(self, typical: float) -> float:
        return self.own + self.n_requests * typical

    def busy(self) -> tuple[float, int]:
        return (self.load, -self.n_free_cells)


class Router:
    """Ranks replicas for one prompt after another.

    It belongs to one thread. It asks for no time and waits for nothing: what it knows, it is told.

    Args:
        salt: The key of the hashes where `choose` and `sent` are given none.
        seed: Of the draws; the same calls are then answered in the same way.
    """

    def __init__(self, *, salt: bytes = b"", seed: int | None = None) -> None:
        self._salt = salt
        self._random = random.Random(seed)
        self._known: dict[str, _Known] = {}
        self._typical = float(BLOCK)

    def choose(
        self,
        tokens: Sequence[int] | None,
        candidates: Sequence[Candidate],
        *,
        now: float,
        sticky: str | None = None,
        salt: bytes | None = None,
    ) -> list[str]:
        """The ids of the candidates, the best first.

        Args:
            tokens: The prompt; `None` where it is not known.
            candidates: Those who can be sent to, each once.
            now: Seconds since the epoch, as those of the digests.
            sticky: A key whose requests all go to the same replica as long as it lives and is not far busier than others.
            salt: The key of this prompt's hashes; `None` is the router's own.
        """
        blocks = block_hashes(tokens, salt=self._salt if salt is None else salt) if tokens else []
        offers = [self._offer(candidate, blocks, len(tokens or ()), now) for candidate in candidates]
        if not offers:
            return []
        least = min(offers, key=_Offer.busy)
        passed_over = {offer.replica_id for offer in offers if _is_far_busier(offer, least)}
        if sticky is not None:
            weights = {offer.replica_id: _weight(sticky, offer.replica_id) for offer in offers}
            offers.sort(key=lambda offer: (offer.replica_id in passed_over, -weights[offer.replica_id]))
            return [offer.replica_id for offer in offers]
        self._random.shuffle(offers)
        offers.sort(key=lambda offer: (offer.replica_id in passed_over, offer.price(self._typical), -offer.n_free_cells))
        open_to_all = [offer for offer in offers if offer.replica_id not in passed_over]
        if max(offer.own for offer in open_to_all) - offers[0].own < BLOCK and len(open_to_all) > 1:
            first = min(self._random.sample(open_to_all, 2), key=_Offer.busy)
            offers.remove(first)
            offers.insert(0, first)
        return [offer.replica_id for offer in offers]

    def sent(self, replica_id: str, tokens: Sequence[int] | None, *, now: float, salt: bytes | None = None) -> None:
        """A prompt was sent to a replica: it is held there, or will be, though no digest tells of it yet.

        Args:
            replica_id: Where.
            tokens: The prompt; `None` where it is not known.
            now: Seconds since the epoch.
            salt: The key of its hashes; `None` is the router's own.
        """
        if not tokens:
            return
        blocks = block_hashes(tokens, salt=self._salt if salt is None else salt)
        known = self._seen(replica_id)
        in_pool, in_store = _held(known, blocks)
        self._typical += _SMOOTHING * (_own(len(tokens), in_pool, in_store) + WRITING - self._typical)
        known.remember(blocks, now)

    def _seen(self, replica_id: str) -> _Known:
        known = self._known.pop(replica_id, None) or _Known()
        self._known[replica_id] = known
        if len(self._known) > MAX_REPLICAS:
            del self._known[next(iter(self._known))]
        return known

    def _offer(self, candidate: Candidate, blocks: Sequence[int], n_tokens: int, now: float) -> _Offer:
        known = self._seen(candidate.replica_id)
        digest = candidate.digest
        if digest is None or now - digest.made_at > MAX_AGE_S:
            known.forget()
            n_requests, n_slots, n_free_cells = candidate.n_ongoing, USUAL_SLOTS, 0
        else:
            known.read(digest)
            n_requests = max(candidate.n_ongoing, digest.n_queued + digest.n_running)
            n_slots, n_free_cells = max(digest.n_slots, 1), digest.n_free_cells
        own = _own(n_tokens, *_held(known, blocks))
        return _Offer(candidate.replica_id, own, n_requests / n_slots, n_requests, n_slots, n_free_cells)


def _held(known: _Known, blocks: Sequence[int]) -> tuple[int, int]:
    """How many of the first tokens a replica holds in cells, and how many after them in its store."""
    in_pool = _depth(blocks, known.pool, known.sent)
    in_store = _depth(blocks, known.stored)
    return BLOCK * in_pool, BLOCK * max(in_store - in_pool, 0)


def _depth(blocks: Sequence[int], *held: frozenset[int] | dict[int, float]) -> int:
    """How many of the blocks are held, since the last one of them that is: a hash names all that is before it."""
    if all(set_.isdisjoint(blocks) if isinstance(set_, frozenset) else set_.keys().isdisjoint(blocks) for set_ in held):
        return 0
    return next(n for n in range(len(blocks), 0, -1) if any(blocks[n - 1] in set_ for set_ in held))


def _own(n_tokens: int, in_pool: int, in_store: int) -> float:
    return n_tokens - in_pool - in_store + RESTORING * in_store


def _is_far_busier(offer: _Offer, least: _Offer) -> bool:
    return offer.n_requests > least.n_requests + offer.n_slots and offer.load > GUARD_RATIO * least.load


def _weight(key: str, replica_id: str) -> int:
    """Rendezvous hashing: whoever has the highest weight for a key has it until it goes, whoever else comes or goes."""
    weight = blake2b(replica_id.encode(), key=blake2b(key.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(weight, "little")
