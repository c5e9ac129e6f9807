"""`python -m weft`: converts flags, environment and configuration file to [`Settings`], and starts the server."""

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from weft.installed.levels import NoLevel, WrongLevel, current_level

if TYPE_CHECKING:
    from weft.cli.arguments import Parsed

__all__ = ["main", "parse"]


@dataclass(frozen=True)
class Command:
    """A subcommand of `python -m weft`."""

    name: str
    about: str
    examples: tuple[tuple[str, str], ...]
    """Common flags with descriptions, which `--help` shows first."""
    settings: frozenset[str] | None = None
    """Settings that the command supports; None is all."""


SERVE = Command(
    "python -m weft",
    "Serves a GGUF model over HTTP: one prompt, many completions, one shared KV cache. "
    "'python -m weft tune' measures the fastest settings on this machine, 'python -m weft top' displays the state of a server.",
    (
        ("-m model.gguf", "a local model, at http://127.0.0.1:8080"),
        ("-hf ggml-org/gemma-3-1b-it-GGUF", "a model of the Hugging Face hub, downloaded once"),
        ("-m model.gguf -c 16384 -np 4", "4 concurrent completions, in 16,384 tokens of context"),
        ("--host 0.0.0.0 --port 8000 --api-key SECRET", "for other machines, with an API key"),
        ("--config weft.toml", "all settings from a file"),
    ),
)
TUNE = Command(
    "python -m weft tune",
    "Measures, in about a minute, which settings compute a GGUF model fastest on this machine, and saves them for later starts.",
    (("-m model.gguf", "a local model"),),
    frozenset(
        {
            "model",
            "hf_repo",
            "hf_file",
            "hf_token",
            "model_url",
            "docker_repo",
            "offline",
            "n_gpu_layers",
            "use_mmap",
            "use_mlock",
            "direct_io",
            "numa",
            "repack",
            "type_k",
            "type_v",
            "kernels",
        }
    ),
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and ends the process: with 0, 1 if it failed, or 2 for invalid flags or variables."""
    try:
        _run(sys.argv[1:] if argv is None else argv)
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
        _print_version()
        sys.exit(0)
    if arguments and arguments[0] == "tune":
        settings, _ = parse(arguments[1:], os.environ, TUNE)
        from weft.cli.tune import tune  # noqa: PLC0415

        sys.exit(tune(settings))
    if arguments and arguments[0] == "top":
        from weft.cli.top.command import top  # noqa: PLC0415

        sys.exit(top(arguments[1:]))
    # Objects created from here on are permanent, so they are frozen to keep the garbage collector from traversing them.
    gc.disable()
    settings, warnings = parse(arguments, os.environ)
    current_level()  # Raises errors here instead of in the worker.
    from weft.serving.serve import serve  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    sys.exit(serve(settings, warnings))


def _print_version() -> None:
    from weft.installed.distribution import version  # noqa: PLC0415 (a slow import, needed only here)

    level = current_level()
    print(f"weft {version()}{f' ({level.name})' if level else ''}")


def parse(argv: Sequence[str], environ: Mapping[str, str], command: Command = SERVE) -> "Parsed":
    """Parses a command line and an environment.

    Ends the process with exit code 2 and a message that names the flag, the variable, or the file and its key, if something is
    unknown, invalid or unsupported; with 0 after `--help` and similar flags.
    """
    # Not needed for `--version`.
    from weft.cli.arguments import CACHE_LIST, COMPLETION, DEVICES, VERSION, OutputRequest, read  # noqa: PLC0415
    from weft.cli.given import UsageError  # noqa: PLC0415
    from weft.cli.help import completion_script, help_text  # noqa: PLC0415

    try:
        return read(argv, environ, command.settings)
    except OutputRequest as request:
        if request.what == VERSION:
            _print_version()
        elif request.what == COMPLETION:
            print(completion_script(), end="")
        elif request.what == CACHE_LIST:
            from weft.cli.cache_list import cache_list  # noqa: PLC0415

            sys.exit(cache_list())
        elif request.what == DEVICES:
            from weft.cli.list_devices import list_devices  # noqa: PLC0415 (it loads the engine)

            list_devices()
        else:
            print(help_text(command.name, command.about, command.examples, command.settings), end="")
        sys.exit(0)
    except UsageError as error:
        print(f"{command.name}: error: {error}", file=sys.stderr)
        sys.exit(2)
