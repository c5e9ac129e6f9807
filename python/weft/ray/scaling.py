"""Number of replicas as a function of the load."""

import math
from collections.abc import Mapping, Sequence

BUSY = 0.75
"""Target fraction of busy slots, in which waiting requests count as busy."""

FULL = 0.75
"""Fraction of cells used by running sequences above which another replica is started."""


def wanted(n_now: int, pressure: Mapping[str, Sequence[float]]) -> int:
    """Returns the number of replicas that brings both fractions to their targets.

    Args:
        n_now: Number of running replicas.
        pressure: Values reported by each replica, by name: `busy_slots` and `busy_cells` of `Replica.pressure`.

    Returns:
        0 if nothing runs or waits; `n_now` if nothing is reported.
    """
    shares = [sum(values) / len(values) / limit for name, limit in _LIMITS.items() if (values := pressure.get(name))]
    return math.ceil(n_now * max(shares) - 1e-9) if shares else n_now


_LIMITS = {"busy_slots": BUSY, "busy_cells": FULL}
