"""Output that a command line requests instead of a command."""

import sys

from weft.cli.arguments import CACHE_LIST, COMPLETION, COMPLETION_BASH, DEVICES, HELP_ALL, VERSION, OutputRequest
from weft.cli.commands import Command
from weft.cli.completion import SHELLS
from weft.cli.help import help_text, whole_help_text
from weft.errors import ModelLoadError
from weft.installed.distribution import version_text

MIB = 2**20


def print_output(request: OutputRequest, command: Command) -> int:
    """Prints the requested output. Returns the exit code: 0; 1 if it is not available, or 2 if its name is unknown."""
    if request.what == VERSION:
        print(version_text())
    elif request.what in (COMPLETION, COMPLETION_BASH):
        shell = request.value or "bash"
        if shell not in SHELLS:
            shells = ", ".join(SHELLS)
            print(f"{command.program}: error: argument {COMPLETION[0]}: {shell!r} is not one of {shells}", file=sys.stderr)
            return 2
        print(SHELLS[shell](), end="")
    elif request.what == CACHE_LIST:
        return _print_downloads()
    elif request.what == DEVICES:
        _print_devices()
    else:
        print(whole_help_text(command) if request.what == HELP_ALL else help_text(command), end="")
    return 0


def _print_downloads() -> int:
    """Prints the downloaded models, in llama.cpp's format."""
    from weft import hub  # noqa: PLC0415 (needed only here)

    try:
        models = hub.cached()
    except ModelLoadError as error:
        print(f"python -m weft: error: {error.reason}", file=sys.stderr)
        return 1
    print(f"number of models in cache: {len(models)}")
    for index, name in enumerate(models, start=1):
        print(f"{index:4}. {name}")
    return 0


def _print_devices() -> None:
    """Prints all devices except the CPU with their memory, in llama.cpp's format. `--device` accepts these names."""
    from weft import _native  # noqa: PLC0415 (it loads the engine)

    print("Available devices:")
    devices = _native.devices()
    for name, description, n_bytes, n_free in devices:
        print(f"  {name}: {description} ({n_bytes // MIB} MiB, {n_free // MIB} MiB free)")
    if not devices:
        print("  (none)")
