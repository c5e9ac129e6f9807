"""Weft's distribution package, whose name differs from the import package's."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution

from weft.installed.levels import current_level

NAMES = ("weft-llm", "weft-llm-cuda12", "weft-llm-vulkan")
"""Alternative distributions of the same package, compiled for different devices; one of them is installed."""


def installed() -> Distribution | None:
    """Returns the installed distribution; None if the package is not installed but in a folder, as in a bundle or a checkout."""
    for name in NAMES:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


def version() -> str:
    """Returns the version from the metadata or, without metadata, from the compiled module.

    Raises:
        ImportError: There is neither.
    """
    if weft := installed():
        return weft.version
    from weft import _native  # noqa: PLC0415 (needed only without metadata)

    return _native.VERSION


def version_text() -> str:
    """Returns the output of `--version`: the version, and the level of the compiled module.

    Raises:
        WrongLevel, NoLevel: See `choose_level`.
    """
    level = current_level()
    return f"weft {version()}" + (f" ({level.name})" if level else "")
