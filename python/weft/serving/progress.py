"""A bar on a terminal."""

import sys
from collections.abc import Callable

__all__ = ["bar"]


def bar(title: str) -> Callable[[float], object] | None:
    """Draws how much is done, 0 to 1, each time it is told. None where standard error is no terminal: it would fill a file."""
    if not sys.stderr.isatty():
        return None

    def draw(fraction: float) -> None:
        filled = round(fraction * 30)
        end = "\n" if fraction >= 1 else ""
        sys.stderr.write(f"\r{title} [{'#' * filled}{' ' * (30 - filled)}] {fraction:4.0%}{end}")
        sys.stderr.flush()

    return draw
