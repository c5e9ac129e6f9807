"""Which replica a prompt is sent to: where most of it is computed already, unless too much waits there.

Every replica is given a price, in tokens of a prompt that have to be computed: those of this prompt that it does not hold, a
little for those that it must bring back from its store, and what it has to do for others first. The cheapest one is taken; of
several that are as good, the prompt decides, so that routers that know nothing of each other take the same one. Where the prompt
is not known, two are drawn and the less busy one is taken. A replica that is far busier than the least busy one is passed over,
whatever it holds.
"""

import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from itertools import islice, takewhile
from typing import NamedTuple

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

COMPUTING = 2.0
"""What a token costs that is computed, in tokens that are waited for: it is waited for, and makes others wait."""

WAITING, MOST_COMPUTING = 4.0, 16.0
"""By how much that is more for each prompt that waits at a replica, on average, and what it is at most."""

WRITING = 500.0
"""What a request waits for each one that must end before it gets a slot, in tokens of a prompt."""

SHARING = 16.0
"""What it waits for each one that runs beside it, likewise."""

MAX_PROMPTS = 256
"""Most prompts that are remembered of those that were sent to a replica: those that wait there are the last of them."""

GUARD_RATIO, GUARD_SLOTS = 1.5, 2
"""A replica is passed over that has so many times as many requests as the least busy one, and so many times its slots more."""

_SMOOTHING = 1 / 64
"""The weight of one more prompt in the mean of what is computed of one."""


class Candidate(msgspec.Struct, frozen=True):
    """A replica that a request may be sent to."""

    replica_id: str
    digest: Digest | None
    """What it told last; `None` where it has told nothing yet."""
    n_ongoing: int
    """Requests that were sent to it and have not ended, as far as the sender knows."""


class _Text(NamedTuple):
    """The blocks of a prompt."""

    n_tokens: int
    blocks: frozenset[int]
    places: Mapping[int, int]
    """That of each block, from 1 on."""
    order: Sequence[int]


class _Known:
    """What the router remembers of a replica."""

    __slots__ = ("made_at", "packed", "pool", "prompts", "sent", "stored")

    def __init__(self) -> None:
        self.sent: dict[int, float] = {}
        """When each block was sent last, the oldest first."""
        self.prompts: deque[tuple[float, float]] = deque(maxlen=MAX_PROMPTS)
        """When each of the last prompts was sent, and what of it had to be computed, the oldest first."""
        self.forget()

    def forget(self) -> None:
        """What it has told is not believed."""
        self.made_at = float("-inf")
        self.packed = b"", b""
        self.pool: frozenset[int] = frozenset()
        self.stored: frozenset[int] = frozenset()

    def read(self, digest: Digest) -> None:
        """A digest is read once. What was sent long before it was made is told by it, or is not held any more."""
        if digest.made_at == self.made_at:
            return
        self.made_at = digest.made_at
        if self.packed != (digest.pool, digest.stored):
            self.packed = digest.pool, digest.stored
            self.pool, self.stored = unpack(digest.pool), unpack(digest.stored)
        # Prompts begin in the order in which they were sent: those that wait, or are computed, are the last ones.
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
        """How many prompts were sent after that time."""
        return sum(1 for _ in takewhile(lambda prompt: prompt[0] > made_at, reversed(self.prompts)))

    def pending(self, n: int, typical: float) -> float:
        """What has to be computed of the last `n` prompts that a replica was sent; those of others are as most are."""
        return sum(own for _, own in islice(reversed(self.prompts), n)) + typical * max(n - len(self.prompts), 0)


class _Offer(msgspec.Struct):
    """What a replica would do for a prompt."""

    replica_id: str
    own: float
    """What of the prompt must be computed there."""
    pending: float
    """What must be computed before it."""
    n_requests: int
    n_slots: int
    n_free_cells: int
    next_block: int | None
    """The first of the prompt's that it does not hold; `None` where it holds all of them."""

    @property
    def load(self) -> float:
        """Requests that it has, for each slot."""
        return self.n_requests / self.n_slots

    def price(self, computing: float) -> float:
        """What it costs, in tokens that are waited for, where one that is computed is worth so many."""
        return computing * self.own + self.waiting + SHARING * min(self.n_requests, self.n_slots)

    @property
    def waiting(self) -> float:
        """What is waited for before it begins, in tokens of a prompt."""
        return self.pending + WRITING * max(self.n_requests + 1 - self.n_slots, 0)

    def busy(self) -> tuple[float, float, int]:
        return (self.load, self.pending, -self.n_free_cells)


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
        known_text = tokens if tokens and sticky is None else ()
        text = _text(known_text, self._salt if salt is None else salt)
        offers = [self._offer(candidate, text, now) for candidate in candidates]
        if not offers:
            return []
        least = min(offers, key=_Offer.busy)
        passed_over = {offer.replica_id for offer in offers if _is_far_busier(offer, least)}
        if sticky is not None:
            weights = {offer.replica_id: _weight(sticky, offer.replica_id) for offer in offers}
            offers.sort(key=lambda offer: (offer.replica_id in passed_over, -weights[offer.replica_id]))
            return [offer.replica_id for offer in offers]
        self._random.shuffle(offers)
        if not tokens:
            open_to_all = [offer for offer in offers if offer.replica_id not in passed_over]
            first = min(open_to_all[:2], key=_Offer.busy)
            offers.sort(key=lambda offer: (offer is not first, offer.replica_id in passed_over, offer.busy()))
            return [offer.replica_id for offer in offers]
        # What is computed makes all wait that come before it is done: the more, the more there is to do.
        waiting = sum(offer.waiting for offer in offers) / len(offers) / max(self._typical, BLOCK)
        computing = min(COMPUTING + WAITING * waiting, MOST_COMPUTING)

        def rank(offer: _Offer) -> tuple[bool, float, int]:
            # Of those that are as good, all routers take the same: what begins alike is not computed elsewhere by each of them.
            weight = 0 if offer.next_block is None else _weight(str(offer.next_block), offer.replica_id)
            return offer.replica_id in passed_over, offer.price(computing), -weight

        offers.sort(key=rank)
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
        text = _text(tokens, self._salt if salt is None else salt)
        known = self._seen(replica_id)
        own = _own(text, *_held(known, text))
        self._typical += _SMOOTHING * (own - self._typical)
        known.remember(text.places, own, now)

    def wrote(self, replica_id: str, tokens: Sequence[int], *, now: float, salt: bytes | None = None) -> None:
        """A replica has computed a text, a prompt with its answer, and holds it, though no digest tells of it yet.

        Args:
            replica_id: Which.
            tokens: The text.
            now: Seconds since the epoch.
            salt: The key of its hashes; `None` is the router's own.
        """
        self._seen(replica_id).hold(_text(tokens, self._salt if salt is None else salt).places, now)

    def _seen(self, replica_id: str) -> _Known:
        known = self._known.pop(replica_id, None) or _Known()
        self._known[replica_id] = known
        if len(self._known) > MAX_REPLICAS:
            del self._known[next(iter(self._known))]
        return known

    def _offer(self, candidate: Candidate, text: _Text, now: float) -> _Offer:
        known = self._seen(candidate.replica_id)
        digest = candidate.digest
        if digest is None or now - digest.made_at > MAX_AGE_S:
            known.forget()
            n_requests, n_slots, n_free_cells = candidate.n_ongoing, USUAL_SLOTS, 0
            # Of those that have not ended, some have been computed.
            pending = known.pending(candidate.n_ongoing, self._typical) / 2
        else:
            known.read(digest)
            n_requests = max(candidate.n_ongoing, digest.n_queued + digest.n_running)
            n_slots, n_free_cells = max(digest.n_slots, 1), digest.n_free_cells
            told = self._typical * digest.n_running / 2 if digest.n_pending is None else digest.n_pending
            n_waiting = min(digest.n_queued + known.n_since(digest.made_at), n_requests)
            pending = told + known.pending(n_waiting, self._typical)
        in_pool, in_store = _held(known, text)
        n_blocks = (in_pool + in_store) // BLOCK
        next_block = text.order[n_blocks] if n_blocks < len(text.order) else None
        own = _own(text, in_pool, in_store)
        return _Offer(candidate.replica_id, own, pending, n_requests, n_slots, n_free_cells, next_block)


def _text(tokens: Sequence[int], salt: bytes) -> _Text:
    order = block_hashes(tokens, salt=salt)
    places = {block: place for place, block in enumerate(order, start=1)}
    return _Text(len(tokens), frozenset(places), places, order)


def _held(known: _Known, text: _Text) -> tuple[int, int]:
    """How many of the first tokens a replica holds in cells, and how many after them in its store."""
    in_pool = max(_depth(text, known.pool), _depth(text, known.sent.keys()))
    in_store = _depth(text, known.stored)
    return BLOCK * in_pool, BLOCK * max(in_store - in_pool, 0)


def _depth(text: _Text, held: AbstractSet[int]) -> int:
    """How many of the blocks are held, as the last of them tells that is: a hash names all before it."""
    # In this order it costs what the text has, however much is held.
    return max(map(text.places.__getitem__, held & text.blocks), default=0)


def _own(text: _Text, in_pool: int, in_store: int) -> float:
    return text.n_tokens - in_pool - in_store + RESTORING * in_store


def _is_far_busier(offer: _Offer, least: _Offer) -> bool:
    return offer.n_requests > least.n_requests + GUARD_SLOTS * offer.n_slots and offer.load > GUARD_RATIO * least.load


def _weight(key: str, replica_id: str) -> int:
    """Rendezvous hashing: whoever has the highest weight for a key has it until it goes, whoever else comes or goes."""
    weight = blake2b(replica_id.encode(), key=blake2b(key.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(weight, "little")
