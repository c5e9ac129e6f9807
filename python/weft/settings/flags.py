"""How a setting is spelt: its row of the table."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import msgspec

__all__ = ["Flag", "Way", "flag", "negated", "row"]


class Way(msgspec.Struct, frozen=True):
    """One way to give a setting: spellings that mean the same, and the variable that stands for them."""

    names: tuple[str, ...] = ()
    parse: Callable[[str], Any] | None = None
    """Text to value; raises ValueError with what would be right. None takes no text."""
    value: Any = None
    """What it stands for where no text follows."""
    is_bare: bool = False
    """Whether it may stand without the text that `parse` reads."""
    env: str | None = None


class Flag(msgspec.Struct, frozen=True):
    """How one setting is spelt on the command line, in a file and in the environment."""

    group: str
    help: str
    names: tuple[str, ...] = ()
    """Spellings that take a value."""
    constants: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Spellings that take none, and what each stands for."""
    also: tuple[Way, ...] = ()
    """Other ways to give it: older names, and flags that set several settings at once. Help does not show them."""
    metavar: str = "N"
    parse: Callable[[str], Any] = str
    """Text to value; raises ValueError with what would be right."""
    bare: Any = None
    """What the spellings that take a value stand for without one; None is that one must follow."""
    env: str | None = None
    join: Callable[[Any, Any], Any] | None = None
    """What a setting that is given twice comes to; None is that the last one counts."""
    separator: str | None = None
    """What stands between the parts of a value that is a list."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """All that help shows."""
        return (*self.names, *self.constants)

    def ways(self) -> Iterator[Way]:
        """Every way to give it."""
        yield Way(self.names, self.parse, self.bare, self.bare is not None, self.env)
        for name, value in self.constants.items():
            yield Way((name,), None, value)
        yield from self.also


def flag(default: object, group: str, *names: str, **about: Any) -> Any:  # noqa: ANN401 (a field of any type)
    """A field of the settings with its row of the table."""
    metadata = {"flag": Flag(group=group, names=names, **about)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def row(group: str, *names: str, **about: Any) -> Flag:  # noqa: ANN401 (the fields of `Flag`)
    """The row of the table for a field that another struct has."""
    return Flag(group=group, names=names, **about)


def negated(variable: str) -> str:
    """What llama-server reads beside the variable of a switch that can be turned off: with any value, it is turned off."""
    return variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")
