"""Who is sent where: Weft's router, and the rules that it is compared with."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from benches.cluster.engines import SALT
from weft.ray.digest import Digest, block_hashes
from weft.ray.routing import Candidate, Router

__all__ = ["RULES", "Rule", "Seen"]


class Seen(Protocol):
    """What a rule sees of a replica."""

    n_ongoing: int
    digest: Digest | None


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


class _Weft:
    def __init__(self, *, has_digests: bool = True) -> None:
        self.needs_digests = has_digests
        self._router = Router(salt=SALT, seed=1)

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
