#!/usr/bin/env python
"""Prints docs/reference/flags.md, the reference of all flags, from the tables that parse the command line."""

import sys
from collections.abc import Iterable, Iterator

from weft.cli.arguments import ARGS, CONFIG, OUTPUT_REQUESTS
from weft.cli.commands import COMMANDS
from weft.cli.flags_without_setting import ACCEPTED, AcceptedFlag, Meaning
from weft.settings import GROUPS, table
from weft.settings.flags import Flag

INTRODUCTION = f"""\
# Flags

Every flag of `python -m weft`, with its environment variable, its default and its effect. The flags are llama-server's, in all
spellings, and further ones for Weft's features.

- A flag of llama-server has its effect here, or is [accepted with a warning](#without-effect), or
  [ends the start](#not-supported) with the reason.
- An unknown flag ends the start; the message suggests the nearest one.
- `--help` lists the common flags and `--help-all` every flag.

## Spelling

- In long flags, `_` is equivalent to `-`: `--ctx_size` is `--ctx-size`.
- Values follow a space or `=`; a value may follow a short flag directly: `-c 512`, `-c512`, `--ctx-size=512`.
- If a flag is repeated, the last value applies, except for lists, which are concatenated.
- `{ARGS[0]} "-c 8192 -np 4"` adds the flags of one text, split as by a shell.
- `--completion bash` (or `zsh`, `fish`) prints a completion script: `eval "$(weft --completion bash)"`.

## Configuration file and variables

Each setting can be given as a flag, as an environment variable, or in a TOML file that `{CONFIG.names[0]}` or `{CONFIG.env}`
names. Flags have priority over variables, variables over the file, and the file over defaults. Keys of the file are long flags
without their dashes:

```toml
model = "model.gguf"
ctx-size = 8192
parallel = 8
api-key = ["one", "two"] # a flag that may be repeated takes a list
metrics = true           # a switch is true or false
samplers = ["top_k", "top_p", "temperature"]
chat-template-kwargs = {{ enable_thinking = false }}
```
"""

SECTIONS = {
    Meaning.ALWAYS: (
        "Always on",
        "These flags enable features that are always enabled. They are accepted without a warning.",
        "reason",
    ),
    Meaning.IDLE: (
        "Without effect",
        "These flags change no response. They are accepted with a warning that states the reason.",
        "reason",
    ),
    Meaning.MISSING: (
        "Not supported",
        "These flags would change responses, so they end the start with the reason. Values without an effect are accepted.",
        "reason",
    ),
}


def main() -> None:
    """Prints the page."""
    sys.stdout.write("\n".join(_page()) + "\n")


def _page() -> Iterator[str]:
    yield INTRODUCTION
    for group, flags in GROUPS.items():
        yield f"## {group[0].upper()}{group[1:]}\n"
        shown = [flag for flag in flags.values() if flag.spellings]
        yield from _table(("flags", "other names", "variables", "description"), map(_row, shown))
        yield ""
    for command in COMMANDS.values():
        if command.options:
            yield f"## Options of `weft {command.name}`\n"
            yield from _table(("flags", "other names", "variables", "description"), map(_row, command.options.values()))
            yield ""
    yield "## Output instead of a command\n"
    yield from _table(("flags", "output"), ((_names(names), text) for names, text in OUTPUT_REQUESTS.items()))
    for meaning, (title, text, why) in SECTIONS.items():
        yield f"\n## {title}\n\n{text}\n"
        rows = [accepted for accepted in ACCEPTED if accepted.meaning is meaning]
        if meaning is Meaning.MISSING:
            yield from _table(("flags", "variable", "values without an effect", why), map(_missing_row, rows))
        else:
            yield from _table(("flags", "variable", why), map(_accepted_row, rows))


def _row(flag: Flag) -> tuple[str, ...]:
    # A flag may set several settings; those without a spelling of their own are part of its row.
    rows = [row for row in table().values() if not row.spellings and _names_of(row) & set(flag.names)]
    aliases = [alias for row in (flag, *rows) for alias in row.aliases()]
    others = dict.fromkeys(name for alias in aliases for name in alias.names if name not in flag.spellings)
    variables = dict.fromkeys(alias.env for alias in aliases if alias.env is not None)
    return _names(flag.spellings), _names(others), _names(variables), flag.help


def _names_of(flag: Flag) -> set[str]:
    return {name for alias in flag.aliases() for name in alias.names}


def _accepted_row(accepted: AcceptedFlag) -> tuple[str, ...]:
    return _names(accepted.names), _names([accepted.env] if accepted.env else []), accepted.why


def _missing_row(accepted: AcceptedFlag) -> tuple[str, ...]:
    names, variable, why = _accepted_row(accepted)
    return names, variable, _names(value or '""' for value in accepted.neutral), why


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{' --- |' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


if __name__ == "__main__":
    main()
