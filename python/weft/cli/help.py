"""Output of `python -m weft --help`, and a completion script for bash."""

import textwrap
from collections.abc import Collection, Iterable

from weft.cli.arguments import ARGS, CACHE_LIST, COMPLETION, CONFIG, CONFIG_VARIABLE, DEVICES, HELP, VERSION
from weft.cli.flags_without_setting import ACCEPTED, Meaning
from weft.cli.given import all_spellings
from weft.settings import table
from weft.settings.flags import Flag

__all__ = ["completion_script", "help_text"]

WIDTH = 130
COLUMN = 38
"""Column where descriptions of flags begin."""
EXAMPLE_COLUMN = 62
"""Column where descriptions of examples begin."""

EPILOG = (
    "Each setting can also be set by the variable in brackets, and by its long name without dashes in the file that --config"
    " names. Flags have priority over variables, and variables over the file. In long flags, _ is equivalent to -."
)

ABOUT = (
    (", ".join(HELP), "print this help and exit"),
    (", ".join(VERSION), "print the version and exit"),
    (", ".join(COMPLETION), "print a completion script for bash and exit"),
    (", ".join(CACHE_LIST), "print the downloaded models and exit"),
    (", ".join(DEVICES), "print all devices except the CPU, with their memory, and exit"),
    (f"{ARGS[0]} FLAGS", "more flags in one text, split as by a shell"),
    (f"{CONFIG[0]} FNAME", f"TOML file of settings [{CONFIG_VARIABLE}]"),
)


def help_text(program: str, about: str, examples: Iterable[tuple[str, str]], only: Collection[str] | None = None) -> str:
    """Returns the help text: examples, all settings (or those in `only`), and llama-server's flags without a setting."""
    parts = [f"usage: {program} [-m model.gguf] [...]", textwrap.fill(about, WIDTH)]
    parts += [_section("examples", [(f"{program} {flags}", what) for flags, what in examples], EXAMPLE_COLUMN)]
    parts += [_section("about", ABOUT)]
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, flag in table().items():
        if flag.spellings and (only is None or name in only):
            groups.setdefault(flag.group, []).append(_row(flag))
    parts += [_section(group, rows) for group, rows in groups.items()]
    if only is None:
        parts += [_names(meaning) for meaning in Meaning]
    return "\n\n".join([*parts, textwrap.fill(EPILOG, WIDTH)]) + "\n"


def _row(flag: Flag) -> tuple[str, str]:
    metavar = f" {flag.metavar}" if flag.names else ""
    switches = ", ".join(flag.constants)
    names = ", ".join(flag.names) + metavar + (", " if flag.names and switches else "") + switches
    return names, flag.help + (f" [{flag.env}]" if flag.env else "")


def _section(title: str, rows: Iterable[tuple[str, str]], column: int = COLUMN) -> str:
    lines = [f"{title}:"]
    for names, text in rows:
        head = f"  {names}"
        indent = " " * column
        wrapped = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
        if len(head) + 2 <= column:
            wrapped[0] = head.ljust(column) + wrapped[0][column:]
        else:
            lines += textwrap.wrap(head, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        lines += wrapped
    return "\n".join(lines)


def _names(meaning: Meaning) -> str:
    titles = {
        Meaning.ALWAYS: "always on",
        Meaning.IDLE: "accepted, with a warning that explains why it has no meaning here",
        Meaning.MISSING: "not supported",
    }
    names = [name for accepted in ACCEPTED if accepted.meaning is meaning for name in accepted.names]
    body = textwrap.fill(" ".join(names), WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return f"{titles[meaning]}:\n{body}"


def completion_script() -> str:
    """Returns a script for bash that completes flags and file names."""
    names = " ".join(sorted({*all_spellings(), *ARGS, *CACHE_LIST, *CONFIG, *DEVICES, *HELP, *VERSION}))
    return (
        "_weft() {\n"
        '    local word="${COMP_WORDS[COMP_CWORD]}"\n'
        '    if [[ "$word" == -* ]]; then\n'
        f'        COMPREPLY=($(compgen -W "{names}" -- "$word"))\n'
        "    else\n"
        '        COMPREPLY=($(compgen -f -- "$word"))\n'
        "    fi\n"
        "}\n"
        "complete -o filenames -F _weft weft\n"
    )
