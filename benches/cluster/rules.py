"""Who is sent where: Weft's router, and the rules that it is compared with."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from benches.cluster.engines import SALT
from benches.cluster.loads import Session
from weft.ray.digest import BLOCK, Digest, block_hashes, pack, unpack
from weft.ray.prefix_routing import Candidate, Router

__all__ = ["RULES", "Cells", "Placed", "Rule", "Seen", "routers"]

WRITTEN = 3
"""What a token that is written beside five others weighs, in tokens of a prompt."""


class Seen(Protocol):
    """What a rule sees of a replica."""

    @property
    def n_ongoing(self) -> int:
        """Requests that it has, as far as the rule can know."""

    @property
    def digest(self) -> Digest | None:
        """What it told last."""


class Rule(Protocol):
    """Chooses a replica for one prompt after another."""

    needs_digests: bool

    def choose(self, prompt: Sequence[int], replicas: Sequence[Seen], now: float, key: str) -> int:
        """The place of the replica that the prompt is sent to."""


class _Random:
    needs_digests = False

    def __init__(self) -> None:
        self._draw = random.Random(1)

    def choose(self, _prompt: Sequence[int], replicas: Sequence[Seen], _now: float, _key: str) -> int:
        return self._draw.randrange(len(replicas))


class _RoundRobin:
    needs_digests = False

    def __init__(self) -> None:
        self._n = 0

    def choose(self, _prompt: Sequence[int], replicas: Sequence[Seen], _now: float, _key: str) -> int:
        self._n += 1
        return self._n % len(replicas)


class _LeastLoaded:
    """Those who have fewest requests, one of them drawn."""

    needs_digests = False

    def __init__(self) -> None:
        self._draw = random.Random(1)

    def choose(self, _prompt: Sequence[int], replicas: Sequence[Seen], _now: float, _key: str) -> int:
        return self._least(replicas, range(len(replicas)))

    def _least(self, replicas: Sequence[Seen], among: Sequence[int]) -> int:
        least = min(replicas[nth].n_ongoing for nth in among)
        return self._draw.choice([nth for nth in among if replicas[nth].n_ongoing == least])


class _PowerOfTwo(_LeastLoaded):
    """The one with fewer requests of two that are drawn: what Ray Serve does where nothing else is said."""

    def choose(self, _prompt: Sequence[int], replicas: Sequence[Seen], _now: float, _key: str) -> int:
        return self._least(replicas, self._draw.sample(range(len(replicas)), min(2, len(replicas))))


class _Sent:
    """What was sent to whom, which both of the rules below remember for ever: they are told nothing of what was given up."""

    def __init__(self) -> None:
        self._who: dict[int, set[int]] = {}
        self._n_sent: dict[int, int] = {}

    def match(self, blocks: Sequence[int]) -> tuple[float, set[int]]:
        """How much of the text was sent before, and to whom most of it."""
        n, who = 0, set[int]()
        for block in blocks:
            if not (found := self._who.get(block)):
                break
            n, who = n + 1, found
        return n / max(len(blocks), 1), who

    def smallest(self, n_replicas: int) -> list[int]:
        """Those to whom least was sent."""
        sizes = [self._n_sent.get(nth, 0) for nth in range(n_replicas)]
        return [nth for nth, size in enumerate(sizes) if size == min(sizes)]

    def add(self, blocks: Sequence[int], replica: int) -> None:
        for block in blocks:
            who = self._who.setdefault(block, set())
            self._n_sent[replica] = self._n_sent.get(replica, 0) + (replica not in who)
            who.add(replica)


class _Ray(_PowerOfTwo):
    """As Ray's `PrefixCacheAffinityRouter`, in our words: of its source, `routing_policies/prefix_aware/prefix_aware_router.py`.

    Where the longest queue is longer than the shortest by more than a threshold, the one with fewer requests of two that are
    drawn. Else, where a tenth of the text was sent before, the one with fewest requests of those that got most of it; else
    the one that got least. The threshold is infinite where nobody says otherwise.
    """

    def __init__(self, imbalanced: float) -> None:
        super().__init__()
        self._sent, self._imbalanced = _Sent(), imbalanced

    def choose(self, prompt: Sequence[int], replicas: Sequence[Seen], now: float, key: str) -> int:
        blocks = block_hashes(prompt, salt=SALT)
        loads = [replica.n_ongoing for replica in replicas]
        if max(loads) - min(loads) > self._imbalanced:
            chosen = super().choose(prompt, replicas, now, key)
        else:
            rate, who = self._sent.match(blocks)
            among = sorted(who) if rate >= 0.1 else self._sent.smallest(len(replicas))
            chosen = self._least(replicas, among)
        self._sent.add(blocks, chosen)
        return chosen


class _Sglang(_LeastLoaded):
    """As the cache-aware rule of SGLang's router, in our words: of its source, `sgl-router/src/policies/cache_aware.rs`.

    Where the longest queue is longer than the shortest by more than 64 and 1.5 times as long, the shortest one. Else, where more
    than 0.3 of the text was sent before, who got most of it; else who got least. Of several that got as much, one is drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sent = _Sent()

    def choose(self, prompt: Sequence[int], replicas: Sequence[Seen], now: float, key: str) -> int:
        blocks = block_hashes(prompt, salt=SALT)
        loads = [replica.n_ongoing for replica in replicas]
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            chosen = super().choose(prompt, replicas, now, key)
        else:
            rate, who = self._sent.match(blocks)
            chosen = self._draw.choice(sorted(who) if rate > 0.3 else self._sent.smallest(len(replicas)))
        self._sent.add(blocks, chosen)
        return chosen


class Placed:
    """Every conversation has a replica, which is chosen once by whoever knows all that will be asked.

    The largest are placed first, each where least is to be done. Nothing is computed twice, and nobody moves.
    """

    needs_digests = False

    def __init__(self, sessions: Iterable[Session], n_replicas: int) -> None:
        blocks: dict[str, set[int]] = {}
        work = Counter[str]()
        for session in sessions:
            known = blocks.setdefault(session.key, set())
            for turn in session.turns:
                asked = block_hashes(turn.prompt(), salt=SALT)
                work[session.key] += BLOCK * len(set(asked) - known) + WRITTEN * turn.n_answer
                known.update(asked)
        loads = [0] * n_replicas
        self._places = {}
        for key, own in work.most_common():
            self._places[key] = loads.index(min(loads))
            loads[self._places[key]] += own

    def choose(self, _prompt: Sequence[int], _replicas: Sequence[Seen], _now: float, key: str) -> int:
        """As of `Rule`."""
        return self._places[key]


class _Weft:
    def __init__(self, *, has_digests: bool = True, seed: int = 1) -> None:
        self.needs_digests = has_digests
        self._router = Router(salt=SALT, seed=seed)

    def choose(self, prompt: Sequence[int], replicas: Sequence[Seen], now: float, _key: str) -> int:
        candidates = [Candidate(str(nth), replica.digest, replica.n_ongoing) for nth, replica in enumerate(replicas)]
        chosen = self._router.choose(prompt, candidates, now=now)[0]
        self._router.sent(chosen, prompt, now=now)
        return int(chosen)


RULES: dict[str, Callable[[], Rule]] = {
    "Weft": _Weft,
    "Weft, no digests": lambda: _Weft(has_digests=False),
    "Ray, prefixes": lambda: _Ray(float("inf")),
    "Ray, prefixes, 8": lambda: _Ray(8),
    "SGLang, prefixes": _Sglang,
    "least loaded": _LeastLoaded,
    "two choices": _PowerOfTwo,
    "round robin": _RoundRobin,
    "random": _Random,
}
"""By the names that they have in tables. Ray's threshold is infinite unless somebody sets it; 8 is all slots of a replica."""


class Cells:
    """Two levels: a router chooses a cell of replicas, by what the cell's replicas hold together, and the cell's own the replica.

    A cell tells of every eighth block, which are those whose hashes are divisible by eight: nobody has to agree on more than on
    hashes. It tells how busy its replicas are on average.
    """

    needs_digests = True

    def __init__(self, size: int = 8, sampled: int = 8) -> None:
        self._size, self._sampled = size, sampled
        self._upper = Router(salt=SALT, seed=1)
        self._lower: dict[int, _Weft] = {}
        self._read: dict[bytes, frozenset[int]] = {}
        self._told: dict[int, Digest] = {}

    def choose(self, prompt: Sequence[int], replicas: Sequence[Seen], now: float, key: str) -> int:
        """As of `Rule`."""
        cells = [replicas[first : first + self._size] for first in range(0, len(replicas), self._size)]
        candidates = [
            Candidate(str(nth), self._digest(nth, cell), math.ceil(sum(replica.n_ongoing for replica in cell) / len(cell)))
            for nth, cell in enumerate(cells)
        ]
        chosen = int(self._upper.choose(prompt, candidates, now=now)[0])
        self._upper.sent(str(chosen), prompt, now=now)
        lower = self._lower.setdefault(chosen, _Weft(seed=chosen))
        return self._size * chosen + lower.choose(prompt, cells[chosen], now, key)

    def _digest(self, nth: int, cell: Sequence[Seen]) -> Digest | None:
        told = [replica.digest for replica in cell if replica.digest is not None]
        if len(told) < len(cell):
            return None
        made_at = min(digest.made_at for digest in told)
        if (known := self._told.get(nth)) is None or known.made_at != made_at:
            mean = {
                name: math.ceil(sum(getattr(digest, name) or 0 for digest in told) / len(told))
                for name in ("n_queued", "n_running", "n_slots", "n_free_cells", "n_pending")
            }
            device = pack(block for digest in told for block in self._sample(digest.device))
            host = pack(block for digest in told for block in self._sample(digest.host))
            self._told[nth] = Digest(made_at=made_at, device=device, host=host, **mean)
        return self._told[nth]

    def _sample(self, packed: bytes) -> frozenset[int]:
        if packed not in self._read:
            if len(self._read) > 1_000:
                self._read.clear()
            self._read[packed] = frozenset(block for block in unpack(packed) if not block % self._sampled)
        return self._read[packed]


def routers(n: int) -> list[Rule]:
    """So many of Weft's, each with what it knows itself."""
    return [_Weft(seed=nth) for nth in range(n)]
