"""Weft as it was installed: a distribution has another name than the package."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution

__all__ = ["NAMES", "installed", "version"]

NAMES = ("weft-llm", "weft-llm-cuda12", "weft-llm-vulkan")
"""One of these is installed: they hold the same package, compiled for other devices."""


def installed() -> Distribution | None:
    """Its metadata; None where the package was found in a folder that nothing was installed in, as in a bundle or a checkout."""
    for name in NAMES:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


def version() -> str:
    """As the metadata has it; where there is none, as the compiled module has it.

    Raises:
        ImportError: There is neither.
    """
    if weft := installed():
        return weft.version
    from weft import _native  # noqa: PLC0415 (where there is metadata, a version needs none of it)

    return _native.VERSION
