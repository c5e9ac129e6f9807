"""Bodies that real clients send, a little wrong: as JSON, or as bytes. The same number always makes the same body."""

import copy
import json
import random
import re
from collections.abc import Callable
from typing import NamedTuple

from tests.server.client_bodies import SENT
from tests.server.matchers import Json

__all__ = ["Mutation", "mutation"]

MOST_BRANCHES = 8
MOST_PROBS = 32
"""What is beyond these and still allowed takes minutes, so it becomes them; what is not allowed is sent as it is."""

COSTLY = {
    "n": (MOST_BRANCHES, 256),
    "n_cmpl": (MOST_BRANCHES, 256),
    "n_probs": (MOST_PROBS, 1000),
    "logprobs": (MOST_PROBS, 1000),
    "top_logprobs": (MOST_PROBS, 1000),
}
"""What each of the fields becomes, up to which value."""

WRITTEN = {
    "1e400": "1e400",
    "-1e400": "-1e400",
    "huge": "9" * 400,
    "long": "0." + "3" * 2000,
    "nan": "NaN",
    "infinity": "-Infinity",
    "lists": "[" * 1200 + "]" * 1200,
    "objects": '{"a":' * 1200 + "1" + "}" * 1200,
    "some lists": "[" * 100 + "]" * 100,
    "surrogate": '"\\ud800"',
    "control": '"\x01"',
}
"""What `json` writes never, or does not survive: a value is named `@@name@@`, and put in its place at last."""

VALUES: list[Json] = [
    *(None, True, False, 0, 1, -1, 2, 7, 255, 256, 257, 1000, 1001, 0.5, -0.5, -0.0, 1.0, 2.5, 5e-324, 1e308, -1e308),
    *(2**bits + beside for bits in (31, 32, 53, 63, 64) for beside in (-1, 0)),
    *(-(2**31), -(2**31) - 1, -(2**63), -(2**63) - 1, 10**20),
    *("", " ", "a", "1", "true", "null", "\0", "é🙂", "\ufeff", "\u2028", "a" * 5000, "<s>" * 500, "../a", "a\nb\tc", '"', "\\"),
    *([], [[]], [None], [0], [-1], [2**31], [""], ["a"] * 20, [1.5], [True], [[1, 2]], [{}], list(range(300))),
    *({}, {"": None}, {"a": {}}, {"type": "json_object"}, {"type": "text"}, {"1": 1}, {"prompt_string": "a"}),
    *(f"@@{name}@@" for name in WRITTEN),
]

BYTES = [
    *(
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xf0\x9f",
        b"\\u0000",
        b"\\ud83d",
        b"\\",
        b'"',
        b"'",
        b"\r\n",
        b"//",
        b"/**/",
    ),
    *(b"[" * 2000, b"]" * 2000, b'{"a":' * 2000, b"9" * 400, b"-", b"e999", b".", b",", b":", b"{", b"}", b"null", b"NaN"),
]
"""What is put in."""


class Mutation(NamedTuple):
    """One body to send. As text it says how to send it again."""

    number: int
    sent: str
    route: str
    how: str
    body: bytes

    def __str__(self) -> str:
        return f"mutation({self.number}), {self.sent} by {self.how} to {self.route}: {self.body[:2000]!r}"


def mutation(number: int) -> Mutation:
    """The body of a number, 0 or more."""
    draw = random.Random(number)
    name = draw.choice(list(SENT))
    route, body = SENT[name]
    if draw.random() < 0.5:
        changes = draw.choices(list(JSON_CHANGES), k=draw.choice((1, 1, 2, 3)))
        mutated = copy.deepcopy(body)
        for change in changes:
            JSON_CHANGES[change](draw, mutated)
        return Mutation(number, name, route, ", ".join(changes), _written(mutated))
    changes = draw.choices(list(BYTE_CHANGES), k=draw.choice((1, 1, 2, 3)))
    data = _written(body)
    for change in changes:
        data = BYTE_CHANGES[change](draw, data)
    return Mutation(number, name, route, ", ".join(changes), data)


def _written(body: Json) -> bytes:
    text = json.dumps(_capped(body), ensure_ascii=False)
    # A name with a mark behind it is there twice.
    text = text.replace("@@twice@@", "")
    return re.sub(r'"@@([\w -]+)@@"', lambda found: WRITTEN[found[1]], text).encode()


def _capped(value: Json, name: str | None = None) -> Json:
    if isinstance(value, dict):
        return {name: _capped(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_capped(inner) for inner in value]
    most, allowed = COSTLY.get(name or "", (0, 0))
    return most if type(value) in (int, float) and most < value <= allowed else value


def _containers(value: Json) -> list[Json]:
    """All lists and objects that hold something; those that hold much are as likely as others."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if inner else []) + [found for part in inner for found in _containers(part)]


def _place(draw: random.Random, body: Json) -> tuple[Json, Json]:
    """A list or an object of a body, and the place of a value in it."""
    # Half of the changes are in the body itself, where the fields of all clients are.
    container = body if draw.random() < 0.5 and body else draw.choice(_containers(body) or [{"": None}])
    return container, draw.choice(list(container) if isinstance(container, dict) else range(len(container)))


def _replace(draw: random.Random, body: Json) -> None:
    container, place = _place(draw, body)
    container[place] = copy.deepcopy(draw.choice(VALUES))


def _negate(draw: random.Random, body: Json) -> None:
    container, place = _place(draw, body)
    if type(container[place]) in (int, float):
        container[place] *= draw.choice((-1, 0, 1000, 1e9, 0.001))


def _remove(draw: random.Random, body: Json) -> None:
    container, place = _place(draw, body)
    del container[place]


def _double(draw: random.Random, body: Json) -> None:
    container, place = _place(draw, body)
    if isinstance(container, list):
        container += container[place:] * draw.choice((1, 2, 20))
    else:
        container[f"{place}@@twice@@"] = copy.deepcopy(draw.choice([container[place], *VALUES]))


def _rename(draw: random.Random, body: Json) -> None:
    container, place = _place(draw, body)
    if isinstance(container, dict):
        others = [name for _, other in SENT.values() for name in other]
        name = draw.choice([place.upper(), place + " ", "", "\0", *draw.sample(others, 3)])
        container[name] = container.pop(place)


def _wrap(draw: random.Random, body: Json) -> None:
    container, place = _place(draw, body)
    container[place] = draw.choice(([container[place]], {"a": container[place]}, str(container[place]), [container[place]] * 3))


def _borrow(draw: random.Random, body: Json) -> None:
    _, other = draw.choice(list(SENT.values()))
    if other:
        name = draw.choice(list(other))
        body[name] = copy.deepcopy(other[name])


JSON_CHANGES: dict[str, Callable[[random.Random, Json], None]] = {
    "another value": _replace,
    "another number": _negate,
    "a value removed": _remove,
    "a value doubled": _double,
    "a name changed": _rename,
    "a value wrapped": _wrap,
    "another client's field": _borrow,
}


def _span(draw: random.Random, data: bytes) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + draw.choice((1, 2, 8, 64, 1000)))


def _flip(draw: random.Random, data: bytes) -> bytes:
    flipped = bytearray(data)
    for _ in range(draw.choice((1, 2, 8)) if data else 0):
        flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(flipped)


def _cut(draw: random.Random, data: bytes) -> bytes:
    start, end = _span(draw, data)
    return draw.choice((data[:start], data[start:], data[:start] + data[end:]))


def _duplicate(draw: random.Random, data: bytes) -> bytes:
    start, end = _span(draw, data)
    return data[:end] + data[start:end] * draw.choice((1, 2, 50)) + data[end:]


def _insert(draw: random.Random, data: bytes) -> bytes:
    start, _ = _span(draw, data)
    return data[:start] + draw.choice([*BYTES, draw.randbytes(8)]) + data[start:]


def _splice(draw: random.Random, data: bytes) -> bytes:
    _, other = draw.choice(list(SENT.values()))
    return data[: draw.randrange(len(data) + 1)] + (written := _written(other))[draw.randrange(len(written)) :]


BYTE_CHANGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "flipped bits": _flip,
    "a cut": _cut,
    "a stretch doubled": _duplicate,
    "bytes put in": _insert,
    "a splice": _splice,
}
