"""What a choice costs the process that makes it; `python -m benches.cluster.costs` in the repository's root.

Sixty-four replicas have told full digests. The least of several times is told: the others had something beside them.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import random
import time
from collections.abc import Callable

from weft.ray.digest import MAX_HASHES, Digest, block_hashes, pack, unpack
from weft.ray.prefix_routing import Candidate, Router

N_REPLICAS = 64
TIMES = 20


def least_ms(do: Callable[[], object], times: int = TIMES) -> float:
    """The least time of several, in milliseconds."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        took.append(time.perf_counter() - began)
    return 1_000 * min(took)


def candidates(seed: int, prompt: list[int]) -> list[Candidate]:
    """Replicas that hold other things, and of which one holds the prompt's first half."""
    draw = random.Random(seed)
    told = []
    for nth in range(N_REPLICAS):
        known = block_hashes(prompt[: len(prompt) // 2]) if nth == 5 else []
        device = pack([*known, *(draw.getrandbits(64) for _ in range(MAX_HASHES - len(known)))])
        digest = Digest(made_at=float(seed), n_queued=0, n_running=4, n_slots=8, n_free_cells=0, n_pending=0, device=device)
        told.append(Candidate(str(nth), digest, 4))
    return told


def main() -> None:
    """Measures and prints."""
    for n_tokens in (300, 6_000, 131_072):
        draw = random.Random(n_tokens)
        prompt = [draw.randrange(100_000) for _ in range(n_tokens)]
        router = Router(seed=1)
        told = candidates(1, prompt)
        chosen_ms = least_ms(lambda: router.choose(prompt, told, now=1.0))  # noqa: B023 (called at once)
        print(f"{chosen_ms:.2f} ms a choice among {N_REPLICAS} for {n_tokens:,} tokens")
    digest = candidates(1, [])[0].digest
    assert digest is not None
    print(f"{least_ms(lambda: unpack(digest.device)):.2f} ms to read a full digest")


if __name__ == "__main__":
    main()
