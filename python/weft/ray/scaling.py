"""How many replicas there should be."""

import math
from collections.abc import Mapping, Sequence

__all__ = ["BUSY", "FULL", "wanted"]

BUSY = 0.75
"""The share of all slots that is to be busy, requests that wait counted as busy ones."""

FULL = 0.75
"""The share of all cells that running sequences may hold before another replica is wanted."""


def wanted(n_now: int, pressure: Mapping[str, Sequence[float]]) -> int:
    """How many replicas bring both shares, as they are told by each that runs now, to what they are to be.

    Args:
        n_now: How many run.
        pressure: What each told, by name: `busy_slots` and `busy_cells`, as `Replica.pressure` names them.

    Returns:
        None where nothing runs or waits; as many as now where nothing is told.
    """
    shares = [sum(told) / len(told) / limit for name, limit in _LIMITS.items() if (told := pressure.get(name))]
    return math.ceil(n_now * max(shares) - 1e-9) if shares else n_now


_LIMITS = {"busy_slots": BUSY, "busy_cells": FULL}
