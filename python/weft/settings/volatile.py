"""Lines of system messages that change from one request to the next, and what is done with them."""

import re
from dataclasses import dataclass

__all__ = ["MAX_PATTERN", "MAX_RULES", "PRESETS", "LineRule", "all_rules", "rules"]

MAX_RULES = 16
"""Most rules."""

MAX_PATTERN = 200
"""Most characters of a pattern."""

MAX_UNBOUNDED = 2
"""Most parts of a pattern that may repeat without a bound: what a line costs grows with its length as often as that."""

DROP = "drop:"

_REPEATS = re.compile(r"(?<!\\)(?:[*+]|\{\d*,\})")
_NESTED = re.compile(r"(?<!\\)[*+}][^()]*\)(?:[*+]|\{\d*,\d*\})|\\[1-9]|\(\?[=!<P#]")


@dataclass(frozen=True)
class LineRule:
    """Lines that a pattern matches from end to end move to the end of the message, or are left out."""

    pattern: str
    drops: bool = False

    def __str__(self) -> str:
        return f"{DROP * self.drops}{self.pattern}"


PRESETS = {
    # The header of each request, which no model is meant to read, and what its system prompt says of the day.
    "claude-code": (LineRule(r"x-anthropic-billing-header:.*", drops=True), LineRule(r"\s*Today's date(?:: | is ).*")),
    "opencode": (LineRule(r"\s*Today's date(?:: | is ).*"),),
}
"""Rules by the client whose lines they are."""


def rules(text: str) -> tuple[LineRule, ...]:
    """The rules of a preset, or the one of a pattern.

    Raises:
        ValueError: the pattern is none, is too long, or might take long on some line.
    """
    if (known := PRESETS.get(text)) is not None:
        return known
    pattern = text.removeprefix(DROP)
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern has {len(pattern)} characters; it must have 1 to {MAX_PATTERN}")
    if _NESTED.search(pattern) or len(_REPEATS.findall(pattern)) > MAX_UNBOUNDED:
        limits = f"it may repeat at most {MAX_UNBOUNDED} parts without a bound, none in another, and not look around or back"
        raise ValueError(f"the pattern {pattern!r} might take long: {limits}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern, and none of {', '.join(PRESETS)}: {error}") from None
    return (LineRule(pattern, drops=text.startswith(DROP)),)


def all_rules(first: tuple[LineRule, ...], second: tuple[LineRule, ...]) -> tuple[LineRule, ...]:
    """Both, each rule once.

    Raises:
        ValueError: they are too many.
    """
    both = tuple(dict.fromkeys([*first, *second]))
    if len(both) > MAX_RULES:
        raise ValueError(f"there are {len(both)} rules; there may be at most {MAX_RULES}")
    return both
