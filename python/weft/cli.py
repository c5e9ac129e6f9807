"""`python -m weft`: flags and environment become [`Settings`], and the server starts."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Any, NoReturn

from weft.flags import Flag
from weft.settings import Settings

__all__ = ["main", "parse"]

EPILOG = "Each setting can also be given in the variable named beside it; a flag wins over its variable."


@dataclass(frozen=True)
class Command:
    """One of the things that `python -m weft` does."""

    name: str
    about: str
    flags: frozenset[str] | None = None
    """The settings that it uses; None is all of them."""

    def takes(self, setting: str) -> bool:
        """Whether it uses a setting."""
        return self.flags is None or setting in self.flags


SERVE = Command(
    "python -m weft",
    "Serves a GGUF model over HTTP: one prompt, many completions, one shared KV cache. "
    "'python -m weft tune' measures how a model is computed fastest here.",
)
TUNE = Command(
    "python -m weft tune",
    "Measures for about a minute how a GGUF model is computed fastest on this machine, and keeps it for later starts.",
    frozenset({"model", "gpu_layers", "mmap", "mlock", "cache_type_k", "cache_type_v"}),
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serves until a signal, or tunes, and ends the process: 0 then, 1 if it could not, 2 for a wrong command line."""
    given = sys.argv[1:] if argv is None else argv
    # What either needs is imported late: `--help` should not wait for it, and the server pulls in all of HTTP.
    if given and given[0] == "tune":
        from weft.tune import tune  # noqa: PLC0415

        sys.exit(tune(parse(given[1:], os.environ, TUNE)))
    from weft.serve import serve  # noqa: PLC0415

    sys.exit(serve(parse(given, os.environ)))


def parse(argv: Sequence[str], environ: Mapping[str, str], command: Command = SERVE) -> Settings:
    """Makes settings of a command line and an environment; a flag wins over its variable, a variable over the default.

    Ends the process with exit code 2 and a message that names the flag or the variable where a value is wrong.
    """
    table = {field.name: field.metadata["flag"] for field in fields(Settings) if command.takes(field.name)}
    parser = _parser(command, table)
    flags = vars(parser.parse_args(argv))
    return Settings(**(_environment(parser, table, environ) | flags))


def _parser(command: Command, table: Mapping[str, Flag]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=command.name, description=command.about, epilog=EPILOG, formatter_class=_Help, allow_abbrev=False, add_help=False
    )
    about = parser.add_argument_group("about")
    about.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="print this and exit")
    about.add_argument("--version", action="version", version=f"weft {version('weft')}", help="print the version and exit")
    groups: dict[str, Any] = {}
    for name, flag in table.items():
        group = groups.setdefault(flag.group, None) or parser.add_argument_group(flag.group)
        groups[flag.group] = group
        help_text = flag.help.replace("%", "%%") + (f" [{flag.env}]" if flag.env else "")
        if flag.names:
            group.add_argument(
                *flag.names, dest=name, metavar=flag.metavar, type=_argument(flag), default=argparse.SUPPRESS, help=help_text
            )
        # One line of help for each setting, however many ways there are to spell it.
        for position, (value, names) in enumerate(_by_value(flag).items()):
            described = not flag.names and position == 0
            group.add_argument(
                *names,
                dest=name,
                action="store_const",
                const=value,
                default=argparse.SUPPRESS,
                help=help_text if described else None,
            )
    return parser


def _by_value(flag: Flag) -> dict[Any, list[str]]:
    grouped: dict[Any, list[str]] = {}
    for name, value in flag.constants.items():
        grouped.setdefault(value, []).append(name)
    return grouped


def _argument(flag: Flag) -> Callable[[str], object]:
    def parse_argument(text: str) -> object:
        try:
            return flag.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def _environment(parser: argparse.ArgumentParser, table: Mapping[str, Flag], environ: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, flag in table.items():
        if flag.env is None:
            continue
        # llama-server also reads LLAMA_ARG_NO_X, with any value, as the "no" of a switch that can be turned off.
        if False in flag.constants.values() and flag.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_") in environ:
            given[name] = False
        elif environ.get(flag.env):
            try:
                given[name] = flag.parse(environ[flag.env])
            except ValueError as error:
                parser.error(f"variable {flag.env}: {error}")
    return given


class _Help(argparse.HelpFormatter):
    """Shows `-c, --ctx-size N` where argparse would repeat the N after each spelling."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=130)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        return names if action.nargs == 0 else f"{names} {action.metavar}"

    def _format_usage(self, *_args: object, **_kwargs: object) -> str:
        return f"usage: {self._prog} [-m model.gguf] [...]\n\n"
