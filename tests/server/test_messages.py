"""What HTTP clients are told of bodies that are wrong: JSON's values and types, and the paths of fields."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.client_bodies import SENT
from tests.server.conftest import answers
from tests.server.matchers import Json
from weft.fields.excerpt import MAX_EXCERPT, excerpt
from weft.fields.validation import message_with_path
from weft.server import create_app
from weft.server.gateway import Gateway
from weft.server.json_errors import why_not_json
from weft.settings import Settings

VALUES: list[Json] = [None, True, 2**70, "x", [None], [{"type": True}], {"a": {"b": None}}]
"""What takes the place of each value of a body."""

PYTHON = re.compile(
    r"\b(None|True|False|inf|nan)\b|\$[.\[]|`\$|<class|0x|'\w+': |\((\w+,|\d+\))|`[^`]*\b(int|float|bool|str)\b[^`]*`"
)
"""Python's values, containers and types, and the schema paths of msgspec."""

MOST_BRANCHES = 4


def places(body: Json, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each value in a body; of a list only the first one."""
    yield at
    if isinstance(body, dict):
        for name, value in body.items():
            yield from places(value, (*at, name))
    elif isinstance(body, list) and body:
        yield from places(body[0], (*at, 0))


def with_value(body: Json, at: tuple[str | int, ...], value: Json) -> Json:
    """The body with another value at a path."""
    if not at:
        return value
    body = copy.deepcopy(body)
    target = body
    for step in at[:-1]:
        target = target[step]
    target[at[-1]] = value
    for name in ("n", "n_cmpl", "best_of"):
        if isinstance(body, dict) and isinstance(body.get(name), int):
            body[name] = min(body[name], MOST_BRANCHES)
    return body


def struct_of(app: Gateway, path: str) -> type[msgspec.Struct] | None:
    """The schema of the body that is sent to a path."""
    for route in app.litestar.routes:
        if route.path == path:
            handler, _ = route.route_handler_map["POST"]  # type: ignore[union-attr]
            field = handler.parsed_data_field
            kinds = () if field is None else (field.annotation, *get_args(field.annotation))
            return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)), None)
    return None


def wrong_bodies(app: Gateway) -> Iterator[tuple[str, Json]]:
    """Bodies that clients send with one value replaced, and with one field more: each field of each schema.

    Most dialects share the fields of a completion: a field by the same name and of the same type is taken once.
    """
    seen: set[Any] = set()
    for route, body in SENT.values():
        struct = struct_of(app, route.partition("?")[0])
        types = {} if struct is None else {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        further = [(name,) for name in types] if isinstance(body, dict) else []
        for at in dict.fromkeys((*places(body), *further)):
            key = (at, str(types.get(str(at[0])))) if len(at) == 1 else (at, route)
            if key not in seen:
                seen.add(key)
                for value in VALUES:
                    yield route, with_value(body, at, value)


@pytest.mark.timeout(300)
async def test_no_message_holds_pythons_values_or_schema_paths() -> None:
    settings = Settings(props_endpoint=True, n_predict=1)
    app = create_app(weft.Engine(n_slots=4, n_ctx=512, kv_unified=True, n_threads=1), settings)
    async with AsyncTestClient(app, raise_server_exceptions=False) as client:
        await answers(client, 200)
        wrong: dict[str, tuple[str, Json]] = {}
        n_refused = 0
        for route, body in wrong_bodies(app):
            answer = await client.post(route, content=json.dumps(body))
            if answer.status_code >= 400:
                n_refused += 1
                message = message_of(answer)
                if PYTHON.search(message) or answer.status_code == 500:
                    wrong.setdefault(message, (route, body))
    assert wrong == {}
    assert n_refused > 1000


def message_of(answer: httpx.Response) -> str:
    """What is wrong, in the shape of any dialect."""
    error = answer.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


SURROGATE = "is half of a surrogate pair, which stands for no character"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (rb'{"prompt": "\ud800"}', rf"the body is no JSON in UTF-8: the escape \ud800 at byte 12 {SURROGATE}"),
        (rb'{"prompt": "\ud83d\ud83d"}', rf"the body is no JSON in UTF-8: the escape \ud83d at byte 12 {SURROGATE}"),
        (rb'{"prompt": "\\ud800 \ude00 and more"}', rf"the body is no JSON in UTF-8: the escape \ude00 at byte 20 {SURROGATE}"),
        (rb'{"prompt": "\u12', r"the body is no JSON in UTF-8: the escape \u at byte 12 must have four hexadecimal digits"),
        (rb'{"prompt": "\u1"}', r"the body is no JSON in UTF-8: the escape \u at byte 12 must have four hexadecimal digits"),
        (
            rb'{"prompt": "C:\x"}',
            r"the body is no JSON in UTF-8: the backslash at byte 14 begins no escape; write \\ for a backslash",
        ),
        (b'{"prompt": "a"', "the body is no JSON in UTF-8: it ends at byte 14, within a value"),
        (b"tru", "the body is no JSON in UTF-8: it ends at byte 3, within a value"),
        (b'{"prompt": "a"}}', "the body is no JSON in UTF-8: trailing characters (byte 16)"),
        (b'{"prompt": 1e999}', "the body has the number 1e999, which is out of range"),
        (b'{"prompt": "a", "x": [{"y": -1E999}]}', "the body has the number -1E999, which is out of range"),
        (b'{"x": "1e999", "y": 1e400}', "the body has the number 1e400, which is out of range"),
        (b"", "the body is empty; it must be JSON"),
        (b" \n", "the body is empty; it must be JSON"),
        (b'\xef\xbb\xbf{"prompt": "a"}', "the body begins with a byte order mark; send UTF-8 without one"),
        ('{"prompt": "a"}'.encode("utf-16"), "the body begins with a byte order mark; send UTF-8 without one"),
    ],
)
async def test_a_body_that_is_not_json_says_why_and_where(body: bytes, message: str, client: httpx.AsyncClient) -> None:
    answer = await client.post("/completion", content=body)
    assert (answer.status_code, message_of(answer)) == (400, message)


@pytest.mark.parametrize(("number", "padding"), [("1e999", 0), ("1e999", 70_000)])
async def test_a_number_that_is_out_of_range_is_a_400_in_a_large_body_too(
    number: str, padding: int, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/completion", content=f'{{"temperature": {number}}}{" " * padding}')
    assert (answer.status_code, message_of(answer)) == (400, "the body has the number 1e999, which is out of range")


async def test_half_of_a_surrogate_pair_in_a_large_body_says_where(client: httpx.AsyncClient) -> None:
    answer = await client.post("/completion", content=b'{"prompt": "' + b"a" * 70_000 + rb'\udc00"}')
    expected = rf"the body is no JSON in UTF-8: the escape \udc00 at byte 70012 {SURROGATE}"
    assert (answer.status_code, message_of(answer)) == (400, expected)


def test_an_error_that_has_no_special_case_keeps_its_words() -> None:
    assert why_not_json(b"[1,]", ValueError("odd")) == "the body is no JSON in UTF-8: odd"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        ("it's", "'it's'"),
        ("a\n\0\ud800", r"'a\n\u0000\ud800'"),
        ({"a": [None, "b"], "c": {"d": {"e": 1}}}, '{"a": [null, "b"], "c": {"d": {...}}}'),
        ((1, 2.5), "[1, 2.5]"),
        ("a" * 1000, "'" + "a" * (MAX_EXCERPT - 1) + "…"),
    ],
    ids=str,
)
def test_a_value_is_shown_as_json(value: object, expected: str) -> None:
    assert excerpt(value) == expected


class Part(msgspec.Struct):
    n: int


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ({"n": "x"}, Part, "messages[2].n: Expected `integer`, got `string`"),
        ([{"n": 1.5}], list[Part], "messages[2][0].n: Expected `integer`, got `number`"),
        ({}, Part, "messages[2]: Object missing required field `n`"),
        ({"a": None}, dict[str, bool], "messages[2].*: Expected `boolean`, got `null`"),
        ({"a": 1}, dict[int, int], "a key of messages[2]: Expected `integer`, got `string`"),
    ],
)
def test_what_msgspec_refuses_has_the_path_of_the_field(value: object, kind: type, expected: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, kind)
    assert message_with_path(raised.value, "messages[2]") == expected
