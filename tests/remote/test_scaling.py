"""How many replicas there should be, and what the application makes of its arguments."""

import pytest

from weft.ray.scaling import wanted


@pytest.mark.parametrize(
    ("n_now", "slots", "cells", "n"),
    [
        (2, [0.0, 0.0], [0.0, 0.0], 0),
        (2, [0.125, 0.0], [0.0, 0.0], 1),
        (2, [0.75, 0.75], [0.1, 0.1], 2),
        (2, [1.5, 1.5], [0.1, 0.1], 4),
        (4, [0.1, 0.1, 0.1, 0.1], [0.75, 0.75, 0.75, 0.75], 4),
        (4, [0.1, 0.1, 0.1, 0.1], [1.0, 1.0, 1.0, 1.0], 6),
        (4, [0.375, 0.375, 0.375, 0.375], [0.0, 0.0, 0.0, 0.0], 2),
        (1, [12.0], [0.5], 16),
    ],
)
def test_replicas_follow_what_is_busiest(n_now: int, slots: list[float], cells: list[float], n: int) -> None:
    assert wanted(n_now, {"busy_slots": slots, "busy_cells": cells}) == n


def test_as_many_stay_where_nothing_is_told() -> None:
    assert wanted(3, {}) == wanted(3, {"busy_slots": [], "busy_cells": []}) == 3
