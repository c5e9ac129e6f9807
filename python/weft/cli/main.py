"""`python -m weft`: flags, environment and a file become [`Settings`], and the server starts."""

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from weft.installed.levels import NoLevel, WrongLevel, here

if TYPE_CHECKING:
    from weft.cli.arguments import Parsed

__all__ = ["main", "parse"]


@dataclass(frozen=True)
class Command:
    """One of the things that `python -m weft` does."""

    name: str
    about: str
    examples: tuple[tuple[str, str], ...]
    """Flags that many need, and what they do: the help shows them first."""
    settings: frozenset[str] | None = None
    """The settings that it uses; None is all of them."""


SERVE = Command(
    "python -m weft",
    "Serves a GGUF model over HTTP: one prompt, many completions, one shared KV cache. "
    "'python -m weft tune' measures how a model is computed fastest here, 'python -m weft top' shows what a server does.",
    (
        ("-m model.gguf", "a model of yours, at http://127.0.0.1:8080"),
        ("-hf ggml-org/gemma-3-1b-it-GGUF", "a model of the Hugging Face hub, which is downloaded once"),
        ("-m model.gguf -c 16384 -np 4", "4 completions at once, in 16,384 tokens of context"),
        ("--host 0.0.0.0 --port 8000 --api-key SECRET", "for other machines too, which show a key"),
        ("--config weft.toml", "all of this from a file"),
    ),
)
TUNE = Command(
    "python -m weft tune",
    "Measures for about a minute how a GGUF model is computed fastest on this machine, and keeps it for later starts.",
    (("-m model.gguf", "a model of yours"),),
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
    """Serves until a signal, tunes or watches, and ends the process: 0, 1 if it could not, 2 for wrong flags or variables."""
    try:
        _run(sys.argv[1:] if argv is None else argv)
    except NoLevel as error:
        # A variable of the environment is wrong, or no module of the wheel fits the processor.
        _stop(error, 2 if isinstance(error, WrongLevel) else 1)
    except ImportError:
        from weft.installed.driver import missing  # noqa: PLC0415 (where nothing is missing, it is not needed)

        if (driver := missing()) is None:
            raise
        _stop(driver, 1)


def _stop(error: ImportError, code: int) -> NoReturn:
    """Ends the process, saying why the compiled module cannot be loaded."""
    print(f"weft: error: {error}", file=sys.stderr)
    raise SystemExit(code) from error


def _run(given: Sequence[str]) -> NoReturn:
    # What either needs is imported late: `--help` should not wait for it, and the server pulls in all of HTTP. The table of all
    # flags takes longer than what else a version needs.
    if [*given] == ["--version"]:
        _print_version()
        sys.exit(0)
    if given and given[0] == "tune":
        settings, _ = parse(given[1:], os.environ, TUNE)
        from weft.cli.tune import tune  # noqa: PLC0415

        sys.exit(tune(settings))
    if given and given[0] == "top":
        from weft.cli.top.command import top  # noqa: PLC0415

        sys.exit(top(given[1:]))
    # What comes now stays. The collector is not to look at it again and again while it comes, nor ever afterwards.
    gc.disable()
    settings, warnings = parse(given, os.environ)
    here()  # Raises what the worker would.
    from weft.serving.serve import serve  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    sys.exit(serve(settings, warnings))


def _print_version() -> None:
    from weft.installed.distribution import version  # noqa: PLC0415 (what it imports takes longer than all of the rest)

    level = here()
    print(f"weft {version()}{f' ({level.name})' if level else ''}")


def parse(argv: Sequence[str], environ: Mapping[str, str], command: Command = SERVE) -> "Parsed":
    """Makes settings of a command line and an environment.

    Ends the process with exit code 2 and a message that names the flag, the variable or the file and its key where something is
    unknown, wrong or not supported; with 0 where help or the like is asked for.
    """
    # What it imports, a version does without.
    from weft.cli.arguments import CACHE_LIST, COMPLETION, DEVICES, VERSION, Asked, read  # noqa: PLC0415
    from weft.cli.given import UsageError  # noqa: PLC0415
    from weft.cli.help import completion_script, help_text  # noqa: PLC0415

    try:
        return read(argv, environ, command.settings)
    except Asked as asked:
        if asked.what == VERSION:
            _print_version()
        elif asked.what == COMPLETION:
            print(completion_script(), end="")
        elif asked.what == CACHE_LIST:
            from weft.cli.cache_list import cache_list  # noqa: PLC0415

            sys.exit(cache_list())
        elif asked.what == DEVICES:
            from weft.cli.list_devices import list_devices  # noqa: PLC0415 (it loads the engine)

            list_devices()
        else:
            print(help_text(command.name, command.about, command.examples, command.settings), end="")
        sys.exit(0)
    except UsageError as error:
        print(f"{command.name}: error: {error}", file=sys.stderr)
        sys.exit(2)
