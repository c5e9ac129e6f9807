"""Rules for lines of system messages that change with every request: they are moved to the end, or removed."""

import re
from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

import msgspec

# The standard library's regular-expression parser, which has no public name.
_parser, _constants = import_module("re._parser"), import_module("re._constants")

MAX_RULES = 16
"""Maximum number of rules."""

MAX_PATTERN = 200
"""Maximum characters of a pattern."""

MAX_LINE = 300
"""Maximum characters of a line; a longer line never matches."""

MAX_WAYS = 250_000
"""Maximum number of ways in which a pattern may match a line. A failing match may try all of them. Two unbounded repetitions have
about 90,000."""

UNCOUNTED = 10**12
"""Upper bound of the count."""

DROP = "drop:"


class LineRule(msgspec.Struct, frozen=True):
    """Moves lines that a pattern matches completely to the end of the message, or removes them."""

    pattern: str
    drops: bool = False

    def __str__(self) -> str:
        return f"{DROP * self.drops}{self.pattern}"


PRESETS = {
    # A header of each request that is not meant for the model, and the date in its system prompt.
    "claude-code": (LineRule(r"x-anthropic-billing-header:.*", drops=True), LineRule(r"\s*Today's date(?:: | is ).*")),
    "opencode": (LineRule(r"\s*Today's date(?:: | is ).*"),),
}
"""Predefined rules by client."""


def rules(text: str) -> tuple[LineRule, ...]:
    """Returns the rules of a preset, or the single rule of a pattern.

    Raises:
        ValueError: The pattern is invalid, too long, or can match a line in too many ways.
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
        raise ValueError(f"{pattern!r} is neither a valid regular expression nor one of {', '.join(PRESETS)}: {error}") from None
    if (n_ways := _n_ways(parsed)) > MAX_WAYS:
        found = "more than can be counted" if n_ways == UNCOUNTED else f"{n_ways:,}"
        most = f"at most {MAX_WAYS:,} are allowed, about two parts that repeat without a bound"
        raise ValueError(f"the pattern {pattern!r} can match a line in too many ways ({found}); {most}")
    return (LineRule(pattern, drops=text.startswith(DROP)),)


def _n_ways(parsed: Sequence[tuple[Any, Any]]) -> int:
    """Returns an upper bound for the ways in which a pattern can match a line, which bounds the cost of a failing match.

    Raises:
        ValueError: The pattern has lookarounds or backreferences.
    """
    return min(UNCOUNTED, prod(_n_ways_of(kind, about) for kind, about in parsed))


def _n_ways_of(kind: Any, about: Any) -> int:  # noqa: ANN401 (an operation and argument of the standard library's parser)
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
            # If alternatives begin with different letters, the next character selects one.
            return max(each) if _are_told_apart(about[1]) else sum(each)
        case _constants.ASSERT | _constants.ASSERT_NOT | _constants.GROUPREF | _constants.GROUPREF_EXISTS:
            raise ValueError("a pattern may not use lookaround or backreferences, whose running time is unbounded")
    return 1


def _are_told_apart(ways: Sequence[Sequence[tuple[Any, Any]]]) -> bool:
    letters = {chr(way[0][1]).lower() for way in ways if way and way[0][0] is _constants.LITERAL and way[0][1] < ord("\x80")}
    return len(letters) == len(ways)


def all_rules(first: tuple[LineRule, ...], second: tuple[LineRule, ...]) -> tuple[LineRule, ...]:
    """Combines two sets of rules without duplicates.

    Raises:
        ValueError: There are too many.
    """
    both = tuple(dict.fromkeys([*first, *second]))
    if len(both) > MAX_RULES:
        raise ValueError(f"there are {len(both)} rules; at most {MAX_RULES} are allowed")
    return both
