#!/usr/bin/env python
"""Prints docs/flags.md: every flag, made of the tables that the command line itself is read by."""

import sys
from collections.abc import Iterable, Iterator

from weft.cli.arguments import ARGS, CACHE_LIST, COMPLETION, CONFIG, CONFIG_VARIABLE, DEVICES, HELP, VERSION
from weft.cli.flags_without_setting import ACCEPTED, Accepted, Meaning
from weft.settings import table
from weft.settings.flags import Flag

INTRODUCTION = f"""\
# Flags

`python -m weft` takes every flag of llama-server, in all its spellings, and some of its own. Each one works, or is accepted
with one warning at the start that says why it has no meaning here, or, where it asks for what is missing, ends the start with a
message that names it. An unknown flag is answered with the nearest one. In long flags `_` is read as `-`; `-c512` and
`--ctx-size=512` are read as well. Of flags that are given several times the last counts, but for those that make a list.
`{ARGS[0]} "-c 8192 -np 4"` gives further flags in one text, which is read as a shell reads it.

Each setting can also be given in its variable, and in a TOML file that `{CONFIG[0]}` or `{CONFIG_VARIABLE}` names. A flag wins
over its variable, a variable over the file, the file over the default. Keys of the file are the long flags of the settings below
without their dashes:

```toml
model = "model.gguf"
ctx-size = 8192
parallel = 8
api-key = ["one", "two"] # a flag that may be given several times takes a list
metrics = true           # a switch is true or false
samplers = ["top_k", "top_p", "temperature"]
chat-template-kwargs = {{ enable_thinking = false }}
```

This page is made by `scripts/flag_table.py`. `tests/llama_server_flags.txt` is llama-server's list, to which
`tests/test_cli_llama_server.py` holds every spelling and variable; `tests/server/test_settings.py` holds what each flag sets, and
`tests/test_cli_config.py` the file.
"""

SECTIONS = {
    Meaning.ALWAYS: ("What is always so", "These ask for what is always so, and are accepted in silence.", "because"),
    Meaning.IDLE: ("Without a meaning here", "These change no answer, and are accepted with a warning that says why.", "why"),
    Meaning.MISSING: (
        "Not supported yet",
        "These would change what is answered or served, and end the start; a value that asks for nothing is fine.",
        "what holds instead",
    ),
}


def main() -> None:
    """Prints the page."""
    sys.stdout.write("\n".join(_page()) + "\n")


def _page() -> Iterator[str]:
    yield INTRODUCTION
    groups: dict[str, list[Flag]] = {}
    for flag in table().values():
        if flag.spellings:
            groups.setdefault(flag.group, []).append(flag)
    for group, flags in groups.items():
        yield f"## {group[0].upper()}{group[1:]}\n"
        yield from _table(("flags", "older names and others", "variables", "what it is"), map(_row, flags))
        yield ""
    yield "## In place of serving\n"
    asked = (
        (HELP, "print all flags"),
        (VERSION, "print the version"),
        (COMPLETION, "print a completion script for bash"),
        (CACHE_LIST, "print the models that were downloaded"),
        (DEVICES, "print the devices beside the CPU, with their memory"),
    )
    yield from _table(("flags", "what it does"), ((_names(names), text) for names, text in asked))
    for meaning, (title, text, why) in SECTIONS.items():
        yield f"\n## {title}\n\n{text}\n"
        rows = [accepted for accepted in ACCEPTED if accepted.meaning is meaning]
        if meaning is Meaning.MISSING:
            yield from _table(("flags", "variable", "asks for nothing", why), map(_missing_row, rows))
        else:
            yield from _table(("flags", "variable", why), map(_accepted_row, rows))


def _row(flag: Flag) -> tuple[str, ...]:
    # A flag may set several settings; those with no spelling of their own stand in its row.
    rows = [row for row in table().values() if not row.spellings and _names_of(row) & set(flag.names)]
    aliases = [alias for row in (flag, *rows) for alias in row.aliases()]
    others = dict.fromkeys(name for alias in aliases for name in alias.names if name not in flag.spellings)
    variables = dict.fromkeys(alias.env for alias in aliases if alias.env is not None)
    return _names(flag.spellings), _names(others), _names(variables), flag.help


def _names_of(flag: Flag) -> set[str]:
    return {name for alias in flag.aliases() for name in alias.names}


def _accepted_row(accepted: Accepted) -> tuple[str, ...]:
    return _names(accepted.names), _names([accepted.env] if accepted.env else []), accepted.why


def _missing_row(accepted: Accepted) -> tuple[str, ...]:
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
