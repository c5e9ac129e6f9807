"""Stand-ins for what varies in an otherwise literal response."""

import re
from collections.abc import Callable
from typing import Any

Json = Any
"""What a response holds: a test says what that is by comparing it."""


class Is:
    """Equal to whatever fulfils a condition."""

    def __init__(self, name: str, condition: Callable[[Any], bool]) -> None:
        self._name = name
        self._condition = condition

    def __eq__(self, other: object) -> bool:
        return self._condition(other)

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"<{self._name}>"


def matching(pattern: str) -> Json:
    return Is(f"text like {pattern}", lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


COUNT: Any = Is("a count", lambda value: type(value) is int and value >= 0)
NUMBER: Any = Is("a number that is not negative", lambda value: isinstance(value, int | float) and value >= 0)
LOGPROB: Any = Is("a log-probability", lambda value: isinstance(value, float) and value <= 0)
TEXT: Any = Is("a text", lambda value: isinstance(value, str))
SOME_TEXT: Any = Is("a text that is not empty", lambda value: isinstance(value, str) and value != "")
SEED: Any = Is("a seed", lambda value: type(value) is int and 0 <= value < 2**32)

TIMINGS: Json = {
    "cache_n": COUNT,
    "prompt_n": COUNT,
    "prompt_ms": NUMBER,
    "prompt_per_token_ms": NUMBER,
    "prompt_per_second": NUMBER,
    "predicted_n": COUNT,
    "predicted_ms": NUMBER,
    "predicted_per_token_ms": NUMBER,
    "predicted_per_second": NUMBER,
}
"""What both dialects say of the time."""
