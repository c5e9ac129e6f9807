"""Weft as it was installed: a distribution has another name than the package."""

from importlib.metadata import Distribution, PackageNotFoundError, distribution

__all__ = ["NAMES", "installed"]

NAMES = ("weft-llm", "weft-llm-cuda12", "weft-llm-vulkan")
"""One of these is installed: they hold the same package, compiled for other devices."""


def installed() -> Distribution:
    """Its metadata.

    Raises:
        PackageNotFoundError: The package was found in a folder that nothing was installed in.
    """
    for name in NAMES:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    raise PackageNotFoundError(NAMES[0])
