"""Progress bar for terminals."""

import sys
from collections.abc import Callable


def bar(title: str) -> Callable[[float], object] | None:
    """Returns a callback that draws a fraction, 0 to 1, as a bar; None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        return None

    def draw(fraction: float) -> None:
        filled = round(fraction * 30)
        end = "\n" if fraction >= 1 else ""
        sys.stderr.write(f"\r{title} [{'#' * filled}{' ' * (30 - filled)}] {fraction:4.0%}{end}")
        sys.stderr.flush()

    return draw
