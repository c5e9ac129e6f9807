"""`python -m weft`: converts flags, environment and configuration file to [`Settings`], and runs a command."""

import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from weft.installed.levels import NoLevel, WrongLevel, current_level

if TYPE_CHECKING:
    from weft.cli.arguments import Parsed
    from weft.cli.commands import Command
    from weft.settings import Settings


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and ends the process: with 0, 1 if it failed, or 2 for invalid flags or variables."""
    try:
        _run(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        # The reader of the output has ended. The interpreter must not fail again when it flushes it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except NoLevel as error:
        # A variable of the environment is invalid, or no module of the wheel supports the processor.
        _stop(error, 2 if isinstance(error, WrongLevel) else 1)
    except ImportError:
        from weft.installed.driver import missing_driver  # noqa: PLC0415 (needed only where an import fails)

        if (driver := missing_driver()) is None:
            raise
        _stop(driver, 1)


def _stop(error: ImportError, code: int) -> NoReturn:
    """Ends the process with the reason why the compiled module cannot be loaded."""
    print(f"weft: error: {error}", file=sys.stderr)
    raise SystemExit(code) from error


def _run(arguments: Sequence[str]) -> NoReturn:
    # Imports are deferred: `--help` does not need the engine and HTTP, and `--version` not even the table of all flags.
    if [*arguments] == ["--version"]:
        from weft.installed.distribution import version_text  # noqa: PLC0415 (a slow import, needed only here)

        print(version_text())
        sys.exit(0)
    name = arguments[0] if arguments else "serve"
    # Objects created from here on are permanent, so they are frozen to keep the garbage collector from traversing them.
    gc.disable()
    from weft.cli.commands import COMMANDS, SERVE  # noqa: PLC0415

    command = COMMANDS.get(name, SERVE)
    (settings, warnings), options = parse_command(arguments[1:] if name in COMMANDS else arguments, os.environ, command)
    current_level()  # Raises errors here instead of in the worker.
    if command is not SERVE:
        gc.enable()
        # These commands print results; llama.cpp's warnings about a model are for the log of a server.
        logging.getLogger("weft").setLevel(logging.ERROR)
        for warning in warnings:
            print(f"{command.program}: warning: {warning}", file=sys.stderr)
        sys.exit(_run_command(command, settings, options))
    from weft.serving.serve import serve  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    sys.exit(serve(settings, warnings))


def _run_command(command: "Command", settings: "Settings", options: Mapping[str, Any]) -> int:
    """Runs a command other than `serve`. Returns the exit code: 0, 1 if it failed, 130 after Ctrl-C."""
    from pkgutil import resolve_name  # noqa: PLC0415 (not needed for `--version`)

    from weft.errors import WeftError  # noqa: PLC0415
    from weft.serving.protocol import reason_of  # noqa: PLC0415

    try:
        return resolve_name(command.function)(settings, **options) or 0
    except WeftError as error:
        print(f"{command.name}: {reason_of(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{command.name}: interrupted", file=sys.stderr)
        return 130


def parse(argv: Sequence[str], environ: Mapping[str, str], command: "Command | None" = None) -> "Parsed":
    """Returns the settings of a command, by default `serve`; see `parse_command`."""
    from weft.cli.commands import SERVE  # noqa: PLC0415

    return parse_command(argv, environ, command or SERVE)[0]


def parse_command(argv: Sequence[str], environ: Mapping[str, str], command: "Command") -> "tuple[Parsed, Mapping[str, Any]]":
    """Parses the command line and the environment of a command, and returns its settings and its options by name.

    Ends the process with exit code 2 and a message that names the flag, the variable, or the file and its key, if something is
    unknown, invalid or unsupported; with 0 after `--help` and similar flags.
    """
    # Not needed for `--version`.
    from weft.cli.arguments import OutputRequest, read  # noqa: PLC0415
    from weft.cli.spellings import UsageError  # noqa: PLC0415

    try:
        return read(argv, environ, command.setting_names(), command.options, positional=command.positional)
    except OutputRequest as request:
        from weft.cli.outputs import print_output  # noqa: PLC0415

        sys.exit(print_output(request, command))
    except UsageError as error:
        print(f"{command.program}: error: {error}", file=sys.stderr)
        sys.exit(2)
