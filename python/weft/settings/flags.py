"""Command-line, environment and configuration-file spellings of a setting."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from weft.fields.meta import FieldMeta, field_meta
from weft.settings.values import boolean, number, one_of, whole


class FlagAlias(msgspec.Struct, frozen=True):
    """Equivalent spellings that set a value, with their environment variable."""

    names: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None
    """Converts text to a value; raises ValueError that describes valid values. None if no text follows."""
    value: Any = None
    """Value if no text follows."""
    is_bare: bool = False
    """True if the text that `parse` converts is optional."""
    env: str | None = None


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spellings and description of a setting; an entry of `flags.json`."""

    usage: str = ""
    """Spellings that take a value, and the name of the value if it is not N: `-m, --model FNAME`."""
    constants: dict[str, Any] = {}
    """Spellings that take no value, with the value that each sets."""
    hidden: dict[str, Any] = {}
    """The same, separated by commas and not shown by `--help`: older names, and flags that set several settings."""
    bare: Any = None
    """Value if a spelling that takes a value is used without one; None if a value is required."""
    separator: str | None = None
    """Separator of list elements in the text."""
    unset: str = ""
    """llama-server's text for the default, if the default is None and the text has no other meaning."""
    env: str | None = None
    """Environment variable."""
    help: str = ""
    """Description with the default; derived from `FieldMeta` if it is left out."""


class Flag(Words, frozen=True):
    """Spellings, description and parser of one setting."""

    parse: Callable[[str], Any] = str
    """Converts text to a value; raises ValueError that describes valid values."""
    join: Callable[[Any, Any], Any] | None = None
    """Combines the values of a setting that is given twice; None if the last one applies."""
    also: tuple[FlagAlias, ...] = ()
    """Spellings and variables with other parsers. Not shown by `--help`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Spellings that take a value."""
        return tuple(name.partition(" ")[0] for name in self.usage.split(", ")) if self.usage else ()

    @property
    def metavar(self) -> str:
        """Name of the value."""
        return self.usage.rpartition(", ")[2].partition(" ")[2] or "N"

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings that `--help` shows."""
        return (*self.names, *self.constants)

    def aliases(self) -> Iterator[FlagAlias]:
        """Yields every way to set it, including its own spellings."""
        yield FlagAlias(self.names, self.parse, self.bare, self.bare is not None, self.env)
        for name, value in self.constants.items():
            yield FlagAlias((name,), None, value)
        yield from self.also
        for spellings, value in self.hidden.items():
            yield FlagAlias(tuple(spellings.split(", ")), None, value)


def read_words() -> dict[str, dict[str, Words]]:
    """Returns the content of `flags.json`: the words of each setting, by group, in the order of `--help`."""
    content = Path(__file__).with_name("flags.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, dict[str, Words]])


def parsed(default: object, parse: Callable[[str], Any] = str, **about: Any) -> Any:  # noqa: ANN401 (a field of any type)
    """Returns a dataclass field of the settings whose text is not just a word or a switch.

    Args:
        default: Default of the field.
        parse: See `Flag`.
        **about: Other fields of `Flag` that are not words.
    """
    metadata = {"parse": parse, **about}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def completed(flag: Flag, struct: type[msgspec.Struct], name: str, flags: Mapping[str, Flag]) -> Flag:
    """Completes the flag of a field of another struct.

    A parser and a description that are not given are derived from the field's type, bounds and default. A field name in backticks
    becomes its spelling in `flags`.
    """
    kind, meta, default = _fields(struct)[name]
    derived: dict[str, Any] = {}
    if flag.parse is str:
        derived["parse"] = _parser(kind, meta)
    if flag.usage and flag.metavar == "N" and get_origin(kind) is Literal:
        derived["usage"] = f"{flag.usage} [{'|'.join(get_args(kind))}]"
    if not flag.help:
        default_text = _default(flag, meta, default)
        text = meta.text + (f" (default: {default_text})" if default_text else "")
        derived["help"] = re.sub(r"`(\w+)`", lambda name: flags[name[1]].spellings[-1], text)
    return msgspec.structs.replace(flag, **derived)


def field_parser(struct: type[msgspec.Struct], name: str) -> Callable[[str], Any]:
    """Returns the parser of the type and the bounds of a struct's field, for values other than None."""
    kind, meta, _ = _fields(struct)[name]
    return _parser(kind, meta)


@cache
def _fields(struct: type[msgspec.Struct]) -> Mapping[str, tuple[Any, FieldMeta, object]]:
    """Returns the type of each field without None, its metadata and its default."""
    meta = field_meta(struct)

    def read(field: msgspec.structs.FieldInfo) -> tuple[Any, FieldMeta, object]:
        annotation = get_args(field.type)[0]
        kinds = get_args(annotation)
        return kinds[0] if NoneType in kinds else annotation, meta[field.name], field.default

    return {field.name: read(field) for field in msgspec.structs.fields(struct)}


def _parser(kind: Any, meta: FieldMeta) -> Callable[[str], Any]:  # noqa: ANN401 (an annotation)
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if kind is bool:
        return boolean
    if kind is int:
        return whole(int(meta.low), int(meta.high))
    return number(meta.low, meta.high, above=meta.above) if kind is float else str


def _default(flag: Flag, meta: FieldMeta, default: object) -> str:
    """Returns the description of the default; none for a switch that can only be turned on."""
    if default is None:
        return f"{flag.unset}, which is {meta.unset}" if flag.unset else meta.unset
    if isinstance(default, bool):
        return ("no", "yes")[default] if flag.names or False in flag.constants.values() else ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def negated(variable: str) -> str:
    """Returns llama-server's second variable of a switch: if it is set to any value, the switch is off."""
    return variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")
