"""Weft: one prompt, many completions, over one shared KV cache."""

from importlib import import_module
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()

_MODULES = {name: module for _, module, _, name, *_ in (line.split() for line in _STUB if line.startswith("from "))}
"""Module of each public name, by the imports of the stub. A module is imported when one of its names is first used:
`python -m weft` imports this package in every process, and processes that only print a version or watch the server need
nothing of the engine."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Returns a public name, importing its module on first use."""
    if (home := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        module = import_module(home)
    except ImportError as error:
        from weft.installed.driver import missing_driver  # noqa: PLC0415 (needed only where an import fails)

        if (driver := missing_driver()) is not None:
            raise driver from error
        raise
    # Later look-ups find the global without a call.
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """Returns all names of the package, imported or not."""
    return sorted({*globals(), *__all__})
