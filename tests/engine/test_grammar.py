"""Completions that are held to a grammar or to a JSON schema."""

import datetime as dt
import enum
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pydantic
import pytest

import weft
from tests.engine.tiny_models import N_CONTROL, write_tiny_model
from tests.helpers import How, branches, collect, ended_by

PROMPT = "Once upon a time there was a"


async def test_every_branch_follows_the_grammar(engine: weft.Engine, how: How) -> None:
    grammar = 'root ::= " " animal ", " animal "."\nanimal ::= "cow" | "fox" | "k" [aeiou]{2,3} "ng"\n'
    answer = await branches(engine, how, PROMPT, n=8, seed=1, grammar=grammar)
    animal = "(cow|fox|k[aeiou]{2,3}ng)"
    assert all(re.fullmatch(f" {animal}, {animal}\\.", branch.text) for branch in answer), [branch.text for branch in answer]
    assert {ended_by(branch) for branch in answer} == {"end"}
    assert len({branch.text for branch in answer}) > 1, "branches have seeds of their own"


async def test_the_end_comes_only_where_the_grammar_ends(engine: weft.Engine, how: How) -> None:
    end = engine.model.eos_token
    assert end is not None
    answer = await branches(engine, how, PROMPT, n=4, grammar='root ::= "cat" ("s are" " nice"+)?', logit_bias=[(end, 1e3)])
    for branch in answer:
        assert re.fullmatch("cat(s are( nice)+)?", branch.text), branch.text
        assert (branch.token_ids[-1], ended_by(branch)) == (end, "end")


async def test_what_ignores_the_end_ends_where_nothing_more_is_allowed(engine: weft.Engine, how: How) -> None:
    options: weft.RequestOptions = {"grammar": 'root ::= "The end"', "ignore_eos": True, "stop": ["The end."]}
    (branch,) = await branches(engine, how, PROMPT, **options)
    assert (branch.text, ended_by(branch)) == ("The end", "end")


async def test_what_was_held_back_is_told_where_nothing_is_allowed_and_no_token_ends_a_text(how: How, tmp_path: Path) -> None:
    path = tmp_path / "endless.gguf"
    write_tiny_model("attention", path, has_end=False)
    async with weft.Engine(path, n_slots=1, n_ctx=256, n_threads=1) as engine:
        assert engine.model.eos_token is None
        ban = (N_CONTROL + ord("!"), float("-inf"))
        request = weft.Request(prompt="A", grammar='root ::= "once" "!"', stop=["cent"], logit_bias=[ban])
        (branch,) = await branches(engine, how, request)
        assert (branch.text, ended_by(branch), branch.usage.n_predicted) == ("once", "end", 4)
        assert [event.text for event in await collect(engine.stream(request))] == ["o", "n", "", "", "ce"]


async def test_text_of_several_bytes_is_written_whole(engine: weft.Engine, how: How) -> None:
    (branch,) = await branches(engine, how, PROMPT, seed=3, grammar='root ::= [漢-漪]{4} "🦀" [^a-z]')
    assert re.fullmatch("[漢-漪]{4}🦀[^a-z]", branch.text), branch.text


@pytest.mark.parametrize("grammar", ["", "root ::= .*"], ids=["empty", "anything"])
async def test_a_grammar_that_refuses_nothing_changes_nothing(engine: weft.Engine, how: How, grammar: str) -> None:
    free = await branches(engine, how, PROMPT, n=2, seed=5, max_tokens=20)
    held = await branches(engine, how, PROMPT, n=2, seed=5, max_tokens=20, grammar=grammar)
    assert [branch.token_ids for branch in held] == [branch.token_ids for branch in free]


BROKEN = [
    pytest.param({"grammar": 'root ::= "a"\nb ::= ('}, "grammar", "line 2, column 8: expected ), found the end", id="syntax"),
    pytest.param({"grammar": "root ::= item"}, "grammar", "line 1, column 10: the rule 'item' is not defined", id="no rule"),
    pytest.param({"grammar": 'item ::= "a"'}, "grammar", "the grammar must define the rule 'root'", id="no root"),
    pytest.param(
        {"grammar": 'root ::= root "a"'}, "grammar", "line 1, column 1: the rule 'root' is left-recursive", id="recursion"
    ),
    pytest.param(
        {"grammar": 'root ::= "a"{3,2}'}, "grammar", "line 1, column 13: the minimum of 3 repetitions", id="repetitions"
    ),
    pytest.param({"grammar": "root ::= " + "(" * 100_000}, "grammar", "more than 256 deep", id="depth"),
    pytest.param({"grammar": 5}, "grammar", "must be a string", id="number"),
    pytest.param({"json_schema": ""}, "json_schema", "line 1, column 1: expected a JSON value", id="empty schema"),
    pytest.param({"json_schema": '{"type":\n"strin"}'}, "json_schema", "line 2, column 1: unknown type 'strin'", id="type"),
    pytest.param({"json_schema": '{"$ref": "http://x/y"}'}, "json_schema", "line 1, column 10: $ref must be #", id="remote"),
    pytest.param({"json_schema": '{"$ref": "#/x", "x": {"$ref": "#/x"}}'}, "json_schema", "refers to itself", id="ring"),
    pytest.param(
        {"json_schema": '{"type": "array", "uniqueItems": true}'}, "json_schema", "uniqueItems is only supported", id="unique"
    ),
    pytest.param({"json_schema": '{"items":' * 20_000}, "json_schema", "more than 256 deep", id="schema depth"),
    pytest.param({"json_schema": "{}", "grammar": 'root ::= "a"'}, "json_schema", "cannot be combined with grammar", id="both"),
]


@pytest.mark.parametrize(("options", "param", "message"), BROKEN)
async def test_what_is_broken_is_refused_with_its_place(
    engine: weft.Engine, options: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(weft.InvalidRequestError) as raised:
        engine.stream(PROMPT, **options)
    assert raised.value.param == param
    assert message in raised.value.message


class Schema(NamedTuple):
    """A schema, and whether a value fits it."""

    schema: dict[str, Any]
    fits: Callable[[Any], bool]


NAME = {"type": "string", "minLength": 1, "maxLength": 12}
ANIMAL = {"type": "object", "properties": {"kind": {"enum": ["cow", "fox"]}, "call": NAME}, "required": ["kind"]}
FARM = {
    "type": "object",
    "properties": {"animals": {"type": "array", "items": {"$ref": "#/$defs/animal"}, "maxItems": 2}},
    "required": ["animals"],
}
VALUES = ["cow", 'a "fox"', 7, None, {"x": [1]}]


def is_pet(value: dict[str, Any]) -> bool:
    names = {"name", "age"} <= set(value) <= {"name", "age", "tame"}
    return names and 1 <= len(value["name"]) <= 12 and 3 <= value["age"] <= 120 and value.get("tame", True) in (True, False)


def is_numbers(value: list[Any]) -> bool:
    return 3 <= len(value) <= 5 and all(type(item) is int and -5 <= item <= 40 for item in value)


def is_safe(value: int) -> bool:
    return -(2**53) < value < 2**53


def is_farm(value: dict[str, Any]) -> bool:
    animals = value["farm"]["animals"]
    named = all(set(animal) <= {"kind", "call"} and 1 <= len(animal.get("call", "x")) <= 12 for animal in animals)
    kinds = len(animals) <= 2 and all(animal["kind"] in ("cow", "fox") for animal in animals)
    return list(value) == ["farm", "size"] and kinds and named and isinstance(value["size"], int | float | None)


def is_record(value: list[str]) -> bool:
    patterns = (r"\d{4}-[01]\d-[0-3]\d", r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", r"[A-C]{2}(-x)?")
    return len(value) == 3 and all(re.fullmatch(pattern, item) for pattern, item in zip(patterns, value, strict=True))


SCHEMAS = {
    "required and optional": Schema(
        {
            "type": "object",
            "properties": {"name": NAME, "age": {"type": "integer", "minimum": 3, "maximum": 120}, "tame": {"type": "boolean"}},
            "required": ["name", "age"],
        },
        is_pet,
    ),
    "enum": Schema({"enum": VALUES}, VALUES.__contains__),
    "counted items": Schema(
        {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 40}, "minItems": 3, "maxItems": 5}, is_numbers
    ),
    "the integers of clients": Schema({"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1}, is_safe),
    "nested": Schema(
        {
            "$defs": {"animal": ANIMAL},
            "type": "object",
            "properties": {"farm": FARM, "size": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
            "required": ["farm", "size"],
        },
        is_farm,
    ),
    "formats and patterns": Schema(
        {
            "prefixItems": [
                {"type": "string", "format": "date"},
                {"format": "uuid"},
                {"type": "string", "pattern": "^[A-C]{2}(-x)?$"},
            ]
        },
        is_record,
    ),
}


@pytest.mark.parametrize(("schema", "fits"), SCHEMAS.values(), ids=SCHEMAS.keys())
async def test_many_seeds_fit_their_schema(engine: weft.Engine, schema: dict[str, Any], fits: Callable[[Any], bool]) -> None:
    request = weft.Request(prompt=PROMPT, n=60, seed=1_000, max_tokens=400, json_schema=json.dumps(schema))
    answer = await engine.complete(request)
    assert len(answer.choices) == 60
    for branch in answer.choices:
        assert ended_by(branch) == "end", branch.text
        assert fits(json.loads(branch.text)), branch.text
    assert len({branch.text for branch in answer.choices}) > 1


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = pydantic.Field(ge=1, lt=10)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[Annotated[str, pydantic.StringConstraints(min_length=1, max_length=6)]] = pydantic.Field(max_length=2)


class Row(pydantic.BaseModel):
    """What OpenAI's strict mode asks for: everything is required and nothing else is there."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: Annotated[str, pydantic.StringConstraints(pattern="^[a-z]{1,8}$")]
    parent: "Row | None"


class Optionals(pydantic.BaseModel):
    text: str | None = pydantic.Field(None, max_length=12)
    level: Literal[1, "two"] | None = None
    flag: bool = False


class Numbers(pydantic.BaseModel):
    share: float = pydantic.Field(ge=0, le=1)
    below: float = pydantic.Field(lt=-0.5, gt=-12.25)
    even: int = pydantic.Field(multiple_of=2, ge=-40, le=40)
    step: float = pydantic.Field(multiple_of=0.25, ge=0, le=8)


class Farm(pydantic.BaseModel):
    pets: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]] = pydantic.Field(min_length=1, max_length=2)
    colour: Colour
    counts: dict[Literal["a", "b"], int]


class Formats(pydantic.BaseModel):
    day: dt.date
    moment: dt.datetime
    id: UUID
    place: tuple[bool, Annotated[int, pydantic.Field(ge=0, le=9)]]


@pytest.mark.parametrize("model", [Cat, Dog, Row, Optionals, Numbers, Farm, Formats])
async def test_what_is_drawn_for_a_model_of_pydantics_is_one(engine: weft.Engine, model: type[pydantic.BaseModel]) -> None:
    request = weft.Request(prompt=PROMPT, n=16, seed=7, max_tokens=400, json_schema=model, temperature=1.5)
    answer = await engine.complete(request)
    ended = [branch.text for branch in answer.choices if ended_by(branch) == "end"]
    assert len(ended) >= 8, "most of them end"
    for text in ended:
        model.model_validate_json(text)
