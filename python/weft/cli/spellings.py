"""Meaning of each spelling in `weft.settings` and `weft.cli.flags_without_setting`: values of settings, or a warning."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from weft.cli.config_file import texts
from weft.cli.flags_without_setting import ACCEPTED, AcceptedFlag, Meaning
from weft.settings import table
from weft.settings.flags import Flag, FlagAlias


class UsageError(Exception):
    """A command line, a variable or a file is invalid; the message names it."""


class SourceValues(msgspec.Struct):
    """Values of settings, and warnings, from one source."""

    values: dict[str, Any] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)

    def set(self, name: str, flag: Flag, alias: FlagAlias, source: str, text: str | None) -> None:
        """Sets a value. `text` is None if the flag has no value; `source` names the source in messages."""
        if text is None:
            value = alias.value
        else:
            assert alias.parse is not None, "a flag without a parser takes no text"
            try:
                value = alias.parse(text)
            except ValueError as error:
                raise UsageError(f"{source}: {error}") from None
        if flag.join is not None and name in self.values:
            value = flag.join(self.values[name], value)
        self.values[name] = value

    def add_accepted(self, accepted: AcceptedFlag, source: str, text: str | None) -> None:
        """Handles a flag without a setting: raises UsageError or adds a warning."""
        verdict = accepted.verdict(text)
        if verdict is Meaning.MISSING:
            raise UsageError(f"{source} {verdict.value}: {accepted.why}")
        warning = f"{source} {verdict.value}: {accepted.why}"
        if verdict is Meaning.IDLE and warning not in self.warnings:
            self.warnings.append(warning)


class Spelling(NamedTuple):
    """Meaning of a spelling: one or several settings, or a flag without a setting."""

    settings: tuple[tuple[str, Flag, FlagAlias], ...] = ()
    accepted: AcceptedFlag | None = None

    @property
    def n_values(self) -> int:
        """Number of values that follow the spelling."""
        if self.accepted is not None:
            return self.accepted.n_values
        return int(self._alias.parse is not None)

    @property
    def is_bare(self) -> bool:
        """True if the value is optional."""
        if self.accepted is not None:
            return self.accepted.meaning is Meaning.MISSING
        return self._alias.is_bare

    @property
    def _alias(self) -> FlagAlias:
        """The alias with the fewest spellings, if the spelling sets several settings."""
        return min((alias for _, _, alias in self.settings), key=lambda alias: len(alias.names))

    def names(self, spelling: str) -> str:
        """Returns the name for messages."""
        return spelling if self.accepted is not None else "/".join(self._alias.names)

    def give(self, target: SourceValues, source: str, text: str | None) -> None:
        """Applies the spelling with a value to `target`."""
        for name, flag, alias in self.settings:
            target.set(name, flag, alias, source, text)
        if self.accepted is not None:
            target.add_accepted(self.accepted, source, text)

    def texts(self, value: Any) -> list[str]:  # noqa: ANN401 (any TOML)
        """Converts a value of the configuration file to command-line values; raises ValueError if that is impossible."""
        if self.accepted is not None:
            return texts(value, None, is_list=self.accepted.n_values > 1, separator=",")
        flag = next(flag for _, flag, alias in self.settings if alias is self._alias)
        return texts(value, self._alias.parse, is_list=flag.join is not None, separator=flag.separator)


def all_spellings(only: Collection[str] | None = None) -> dict[str, Spelling]:
    """Returns the meaning of every spelling, restricted to the settings in `only` if given."""
    spellings = spellings_of({name: flag for name, flag in table().items() if only is None or name in only})
    if only is not None:
        return spellings
    return spellings | {spelling: Spelling(accepted=accepted) for accepted in ACCEPTED for spelling in accepted.names}


def spellings_of(flags: Mapping[str, Flag]) -> dict[str, Spelling]:
    """Returns the meaning of every spelling of these settings."""
    found: dict[str, list[tuple[str, Flag, FlagAlias]]] = {}
    for name, flag in flags.items():
        for alias in flag.aliases():
            for spelling in alias.names:
                found.setdefault(spelling, []).append((name, flag, alias))
    return {spelling: Spelling(tuple(settings)) for spelling, settings in found.items()}
