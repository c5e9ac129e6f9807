"""Command-line, environment and configuration-file spellings of a setting."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import msgspec

__all__ = ["Flag", "FlagAlias", "flag", "negated", "row"]


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

    group: str
    help: str
    names: tuple[str, ...] = ()
    """Spellings that take a value."""
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


def flag(default: object, group: str, *names: str, **about: Any) -> Any:  # noqa: ANN401 (a field of any type)
    """Returns a dataclass field of the settings, with its flag as metadata."""
    metadata = {"flag": Flag(group=group, names=names, **about)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def row(group: str, *names: str, **about: Any) -> Flag:  # noqa: ANN401 (the fields of `Flag`)
    """Returns the flag of a field that is defined in another struct."""
    return Flag(group=group, names=names, **about)


def negated(variable: str) -> str:
    """Returns llama-server's second variable of a switch: if it is set to any value, the switch is off."""
    return variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")
