"""Lines of system messages that change from one request to the next, and what is done with them."""

import re
from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

import msgspec

__all__ = ["MAX_LINE", "MAX_PATTERN", "MAX_RULES", "MAX_WAYS", "PRESETS", "LineRule", "all_rules", "rules"]

# Where patterns are parsed, which has no other name.
_parser, _constants = import_module("re._parser"), import_module("re._constants")

MAX_RULES = 16
"""Most rules."""

MAX_PATTERN = 200
"""Most characters of a pattern."""

MAX_LINE = 300
"""Characters of a line; a longer one matches nothing."""

MAX_WAYS = 250_000
"""Most ways in which a pattern may match a line. Each of them may have to be tried before it is known that the line does not
match: two parts that may repeat without a bound are about 90,000."""

UNCOUNTED = 10**12
"""Ways are not counted further."""

DROP = "drop:"


class LineRule(msgspec.Struct, frozen=True):
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
        ValueError: the pattern is none, is too long, or can match a line in too many ways.
    """
    if (known := PRESETS.get(text)) is not None:
        return known
    pattern = text.removeprefix(DROP)
    if not pattern or len(pattern) > MAX_PATTERN:
        raise ValueError(f"a pattern has {len(pattern)} characters; it must have 1 to {MAX_PATTERN}")
    try:
        parsed = _parser.parse(pattern)
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no pattern, and none of {', '.join(PRESETS)}: {error}") from None
    if (n_ways := _n_ways(parsed)) > MAX_WAYS:
        found = "more than can be counted" if n_ways == UNCOUNTED else f"{n_ways:,}"
        why = f"each of them may have to be tried; there may be at most {MAX_WAYS:,}, about two parts that repeat without a bound"
        raise ValueError(f"the pattern {pattern!r} can match one line in many ways ({found}), and {why}")
    return (LineRule(pattern, drops=text.startswith(DROP)),)


def _n_ways(parsed: Sequence[tuple[Any, Any]]) -> int:
    """In how many ways a pattern can match a line at most: what one that does not match may cost, whatever stands in it.

    Raises:
        ValueError: it looks around or back.
    """
    return min(UNCOUNTED, prod(_n_ways_of(kind, about) for kind, about in parsed))


def _n_ways_of(kind: Any, about: Any) -> int:  # noqa: ANN401 (what the parser of patterns makes)
    match kind:
        case _constants.MAX_REPEAT | _constants.MIN_REPEAT | _constants.POSSESSIVE_REPEAT:
            fewest, most, repeated = about
            fewest, most = (min(int(n), MAX_LINE) for n in (fewest, most))
            ways = _n_ways(repeated)
            return most - fewest + 1 if ways == 1 else sum(ways**n for n in range(fewest, most + 1))
        case _constants.SUBPATTERN:
            return _n_ways(about[-1])
        case _constants.ATOMIC_GROUP:
            return _n_ways(about)
        case _constants.BRANCH:
            each = [_n_ways(way) for way in about[1]]
            # Where each begins with another letter, the next one tells which of them it is.
            return max(each) if _are_told_apart(about[1]) else sum(each)
        case _constants.ASSERT | _constants.ASSERT_NOT | _constants.GROUPREF | _constants.GROUPREF_EXISTS:
            raise ValueError("a pattern may not look around or back: nobody can tell how long that takes")
    return 1


def _are_told_apart(ways: Sequence[Sequence[tuple[Any, Any]]]) -> bool:
    letters = {chr(way[0][1]).lower() for way in ways if way and way[0][0] is _constants.LITERAL and way[0][1] < ord("\x80")}
    return len(letters) == len(ways)


def all_rules(first: tuple[LineRule, ...], second: tuple[LineRule, ...]) -> tuple[LineRule, ...]:
    """Both, each rule once.

    Raises:
        ValueError: they are too many.
    """
    both = tuple(dict.fromkeys([*first, *second]))
    if len(both) > MAX_RULES:
        raise ValueError(f"there are {len(both)} rules; there may be at most {MAX_RULES}")
    return both
