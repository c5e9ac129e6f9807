"""`python -m weft`: flags and environment become [`Settings`], and the server starts."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from typing import Any, NoReturn

from weft.flags import Flag
from weft.settings import Settings

__all__ = ["main", "parse"]

DESCRIPTION = "Serves a GGUF model over HTTP: one prompt, many completions, one shared KV cache."
EPILOG = "Each setting can also be given in the variable named beside it; a flag wins over its variable."


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serves until a signal and ends the process: 0 then, 1 if it could not serve, 2 for a wrong command line."""
    settings = parse(sys.argv[1:] if argv is None else argv, os.environ)
    # The server pulls in all of HTTP; `--help` should not wait for that.
    from weft.serve import serve  # noqa: PLC0415

    sys.exit(serve(settings))


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Makes settings of a command line and an environment; a flag wins over its variable, a variable over the default.

    Ends the process with exit code 2 and a message that names the flag or the variable where a value is wrong.
    """
    parser = _parser()
    flags = vars(parser.parse_args(argv))
    return Settings(**(_environment(parser, environ) | flags))


def _table() -> dict[str, Flag]:
    return {field.name: field.metadata["flag"] for field in fields(Settings)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m weft", description=DESCRIPTION, epilog=EPILOG, formatter_class=_Help, allow_abbrev=False, add_help=False
    )
    about = parser.add_argument_group("about")
    about.add_argument("-h", "--help", action="help", default=argparse.SUPPRESS, help="print this and exit")
    about.add_argument("--version", action="version", version=f"weft {version('weft')}", help="print the version and exit")
    groups: dict[str, Any] = {}
    for name, flag in _table().items():
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


def _environment(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, flag in _table().items():
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
        return f"usage: {self._prog} [-m model.gguf] [-c N] [-np N] [--port PORT] [...]\n\n"
