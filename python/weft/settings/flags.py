"""Command-line, environment and configuration-file spellings of a setting."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from weft.fields.meta import FieldMeta
from weft.settings.values import boolean, number, one_of, whole

__all__ = ["Flag", "FlagAlias", "field_flags", "flag", "negated", "row"]


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


class Flag(msgspec.Struct, frozen=True):
    """Spellings and parser of one setting."""

    names: tuple[str, ...] = ()
    """Spellings that take a value."""
    help: str = ""
    constants: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Spellings that take no value, with the value that each sets."""
    also: tuple[FlagAlias, ...] = ()
    """Other ways to set it: older names, and flags that set several settings. Not shown by `--help`."""
    metavar: str = "N"
    parse: Callable[[str], Any] = str
    """Converts text to a value; raises ValueError that describes valid values."""
    bare: Any = None
    """Value if a spelling that takes a value is used without one; None if a value is required."""
    env: str | None = None
    join: Callable[[Any, Any], Any] | None = None
    """Combines the values of a setting that is given twice; None if the last one applies."""
    separator: str | None = None
    """Separator of list elements in the text."""
    unset: str = ""
    """llama-server's text for the default, if the default is None and the text has no other meaning."""

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


def row(usage: str = "", **about: Any) -> Flag:  # noqa: ANN401 (the fields of `Flag`)
    """Returns a flag. The default parser of switches is `boolean`.

    Args:
        usage: Spellings that take a value, and the name of the value, as `--help` shows them: "-c, --ctx-size N".
        **about: Other fields of `Flag`.
    """
    *names, last = usage.split(", ")
    last, _, metavar = last.partition(" ")
    if metavar:
        about["metavar"] = metavar
    values = about.get("constants", {}).values()
    if values and all(isinstance(value, bool) for value in values):
        about.setdefault("parse", boolean)
    return Flag((*names, last) if usage else (), **about)


def flag(default: object, usage: str = "", **about: Any) -> Any:  # noqa: ANN401 (a field of any type)
    """Returns a dataclass field of the settings, with its flag, as by `row`, as metadata."""
    metadata = {"flag": row(usage, **about)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def field_flags(struct: type[msgspec.Struct], **flags: Flag) -> dict[str, Flag]:
    """Completes the flags of fields of another struct.

    Parsers and descriptions that are not given are derived from the fields' types, bounds and defaults. A field name in backticks
    becomes the flag of that field.
    """
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    return {name: _completed(flag, fields[name], flags) for name, flag in flags.items()}


def _completed(flag: Flag, field: msgspec.structs.FieldInfo, flags: Mapping[str, Flag]) -> Flag:
    annotation, meta = get_args(field.type)
    kinds = get_args(annotation)
    kind = kinds[0] if NoneType in kinds else annotation
    derived: dict[str, Any] = {}
    if flag.parse is str:
        derived["parse"] = _parser(kind, meta)
    if flag.metavar == "N" and get_origin(kind) is Literal:
        derived["metavar"] = f"[{'|'.join(get_args(kind))}]"
    if not flag.help:
        default = _default(flag, meta, field.default)
        text = meta.text + (f" (default: {default})" if default else "")
        derived["help"] = re.sub(r"`(\w+)`", lambda name: flags[name[1]].spellings[-1], text)
    return msgspec.structs.replace(flag, **derived)


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
