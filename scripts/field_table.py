#!/usr/bin/env python
"""Writes the parts of the reference of request fields and of the migration guides that the code knows.

These are the table of sampling parameters, unsupported fields, flags without a setting, and the types of all other fields.
"""

import json
import math
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from weft.cli.flags_without_setting import ACCEPTED, Meaning
from weft.fields.meta import FieldMeta
from weft.sampling_fields import Sampling, parameter_meta
from weft.server.request_fields.fields import BRANCH_NAMES, CompletionFields
from weft.server.request_fields.unsupported import UnsupportedUnless, unsupported_fields

DOCS = Path(__file__).parent.parent / "docs"

PAGES = [DOCS / "reference" / "request-fields.md", *sorted((DOCS / "guides").glob("from-*.md"))]

GENERATED = re.compile(r"(?P<begin><!-- generated: (?P<what>[^\n]*) -->\n\n)(?P<table>.*?)(?P<end>\n<!-- end -->)", re.DOTALL)
TYPED = re.compile(r"(?P<begin><!-- types: (?P<schemas>[^\n]*) -->\n\n\|[^\n]*\n\|[^\n]*\n)(?P<rows>(?:\|[^\n]*\n)+)")

OVER_HTTP = {
    "samplers": "over HTTP: names in any of llama.cpp's spellings, as a list or separated by `;`, or its letters",
    "dry_base": "over HTTP, values below 1 select the server's default",
    "logit_bias": "over HTTP: pairs of an id or a text with a number or `false`, or OpenAI's object",
}
"""Values that a body accepts and a request of the engine does not."""

TYPES = {
    "explain_cache": ["boolean"],
    "format": ["string", "object"],
    "image_data": ["array of objects"],
    "json_schema": ["any"],
    "lora": ["array of objects"],
    "thinking": ["boolean", "object"],
    "truncate": ["boolean"],
}
"""Types of fields that the schemas declare as any JSON, because code checks them."""

PROBES: tuple[Any, ...] = (
    *("", [], {}, 0, False, 1, True, -1),
    *("auto", "none", "deepseek", "deepseek-legacy", "default", "standard", "standard_only", "in_memory"),
    ["text"],
    *({"context_compression": value} for value in ("auto", "disabled")),
    {"mode": "implicit", "prewarm": False, "ttl": "30m"},
    {"completion_window": "soonest"},
    {"include_obfuscation": False},
    {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
)
"""Values that are tried on unsupported fields."""


def page(text: str) -> str:
    """Returns the page with its generated parts as the code has them today."""
    text = GENERATED.sub(lambda found: found["begin"] + "\n".join(_generated(found["what"])) + found["end"], text)
    return TYPED.sub(lambda found: found["begin"] + _typed(found["schemas"], found["rows"]), text)


def schemas(names: str) -> list[type[msgspec.Struct]]:
    """Returns the schemas that a comment of the page names, as `module:Struct` below `weft`."""
    return [getattr(import_module(f"weft.{module}"), name) for module, name in re.findall(r"([\w.]+):(\w+)", names)]


def _generated(what: str) -> Iterator[str]:
    match what:
        case "sampling":
            return _sampling()
        case "branches":
            return _branch_names()
        case "flags that are always on":
            return _flags(Meaning.ALWAYS)
        case "flags without a meaning":
            return _flags(Meaning.IDLE)
        case "unsupported flags":
            return _unsupported_flags()
        case _:
            return _unsupported(schemas(what))


def _branch_names() -> Iterator[str]:
    names = [f"`{name}`" for name in BRANCH_NAMES if name not in parameter_meta()]
    yield "\n".join(textwrap.wrap(f"{', '.join(names)}, and every field of [sampling](#sampling).", width=128))


def _flags(meaning: Meaning) -> Iterator[str]:
    """Yields a table of flags, one row for each reason."""
    yield "| flags | reason |"
    yield "| --- | --- |"
    names: dict[str, list[str]] = {}
    for flag in ACCEPTED:
        if flag.meaning is meaning:
            names.setdefault(flag.why, []).extend(flag.names)
    for why, flags in names.items():
        yield f"| {', '.join(f'`{flag}`' for flag in flags)} | {why} |"


def _unsupported_flags() -> Iterator[str]:
    yield "| flags | accepted values | reason, and what to do instead |"
    yield "| --- | --- | --- |"
    for flag in ACCEPTED:
        if flag.meaning is Meaning.MISSING:
            values = ", ".join(f"`{value or chr(34) * 2}`" for value in flag.neutral) or "none"
            yield f"| {', '.join(f'`{name}`' for name in flag.names)} | {values} | {flag.why} |"


def _sampling() -> Iterator[str]:
    yield "| field | type | range | default | effect |"
    yield "| --- | --- | --- | --- | --- |"
    bodies = get_type_hints(CompletionFields)
    for name, meta in parameter_meta().items():
        text = meta.text + (f"; {OVER_HTTP[name]}" if name in OVER_HTTP else "")
        yield f"| `{name}` | {_either(json_types(bodies[name]))} | {values_of(meta)} | {default_of(name)} | {text} |"


def values_of(meta: FieldMeta) -> str:
    """Returns the values of a sampling parameter, with the word `clamped` if others become a bound."""
    if meta.clamp is not None:
        return f"{_range(*meta.clamp)}; clamped"
    return f"above {meta.above:g}" if meta.above > -math.inf else _range(meta.low, meta.high)


def _range(low: float, high: float) -> str:
    # The bounds of 32-bit integers are not worth a mention.
    has_low, has_high = low > -(2**31), high < 2**31 - 1
    if has_low and has_high:
        return f"{low:g} to {high:g}"
    return f"{low:g} or more" if has_low else f"{high:g} or less" if has_high else "any"


def default_of(name: str) -> str:
    """Returns the default of a sampling parameter."""
    [value] = [field.default for field in msgspec.structs.fields(Sampling) if field.name == name]
    if isinstance(value, tuple):
        return " ".join(f"`{part!r}`".replace("'", "") if part != "\n" else "`\\n`" for part in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _unsupported(bodies: Iterable[type[msgspec.Struct]]) -> Iterator[str]:
    yield "| field | accepted values |"
    yield "| --- | --- |"
    found: dict[str, str] = {}
    for body in bodies:
        hints = get_type_hints(body)
        found |= {sent_as: _accepted(mark, hints[name]) for name, sent_as, mark in unsupported_fields(body)}
    for name, values in sorted(found.items()):
        yield f"| `{name}` | {values} |"


def _accepted(mark: UnsupportedUnless, hint: Any) -> str:  # noqa: ANN401 (a type)
    accepted = [value for value in PROBES if _takes(mark.accepts, value, hint)]
    if {"", 0} <= {value for value in accepted if isinstance(value, str | int)}:
        return "empty ones"
    if accepted and _takes(mark.accepts, -7, hint):
        return "0 or less"
    # `False == 0`: a boolean that equals an accepted number is no value of its own.
    ints = [value for value in accepted if type(value) is int]
    shown = [value for value in accepted if not isinstance(value, bool) or value not in ints]
    return ", ".join(f"`{json.dumps(value)}`" for value in shown) or "none"


def _takes(accepts: Callable[[Any], bool], value: Any, hint: Any) -> bool:  # noqa: ANN401 (any JSON, a type)
    try:
        return accepts(msgspec.convert(value, hint))
    except (TypeError, msgspec.ValidationError):
        return False


def _typed(names: str, rows: str) -> str:
    bodies = schemas(names)
    hints = {field.encode_name: get_type_hints(body)[field.name] for body in bodies for field in msgspec.structs.fields(body)}
    return "".join(f"{_typed_row(row, hints)}\n" for row in rows.splitlines())


def _typed_row(row: str, hints: dict[str, Any]) -> str:
    fields, _, *rest = row.removeprefix("| ").split(" | ")
    kinds = [kind for name in re.findall(r"`([^`]+)`", fields) for kind in _types_of(name, hints[name])]
    return f"| {fields} | {_either(kinds)} | {' | '.join(rest)}"


def _types_of(name: str, hint: Any) -> list[str]:  # noqa: ANN401 (a type)
    found = json_types(hint)
    return TYPES.get(name, found) if found == ["any"] else found


def _either(kinds: Iterable[str]) -> str:
    return " or ".join(", ".join(dict.fromkeys(kinds)).rsplit(", ", 1))


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", Any: "any"}


def json_types(hint: Any) -> list[str]:  # noqa: ANN401 (a type)
    """Returns the JSON types of an annotation, without null."""
    if get_origin(hint) is Annotated:
        return json_types(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        parts = dict.fromkeys(kind for part in get_args(hint) for kind in json_types(part))
        return [kind for kind in parts if kind != "integer" or "number" not in parts]
    if hint in (type(None), msgspec.UnsetType):
        return []
    if get_origin(hint) is tuple:
        return ["array"]
    if get_origin(hint) is list:
        [element, *others] = json_types(get_args(hint)[0])
        return ["array" if others or element.startswith(("array", "any")) else f"array of {element}s"]
    if get_origin(hint) is Literal:
        return ["string"]
    return [_NAMES.get(hint, "object")]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
