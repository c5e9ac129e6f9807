"""GPU drivers that Weft's distributions require; they are part of the machine and not available as packages.

The compiled module is linked to a library of the driver, and cannot be imported without it. The loader's error has only the name
of that file; this module turns it into installation advice.
"""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.errors import DriverMissingError

SITE_PACKAGES = Path(__file__).parents[2]


@dataclass(frozen=True)
class Driver:
    """Driver that a distribution requires."""

    libraries: Mapping[str, str]
    """Name of the driver's library, by `sys.platform`."""
    advice: str
    """Installation advice for the driver."""


DRIVERS = {
    "weft-llm-cuda12": Driver(
        {"linux": "libcuda.so.1", "win32": "nvcuda.dll"},
        "install NVIDIA's driver, version 525 or newer; containers use the machine's driver with `docker run --gpus all`",
    ),
    "weft-llm-vulkan": Driver(
        {"linux": "libvulkan.so.1", "win32": "vulkan-1.dll"},
        "install the GPU's Vulkan driver; Debian and Ubuntu have `libvulkan1` and `mesa-vulkan-drivers`",
    ),
}
"""Drivers by name of the distribution. `weft-llm` needs none: it uses the CPU or, on a Mac, the built-in GPU framework."""


def missing_driver() -> DriverMissingError | None:
    """Returns the error for a missing driver, after an import of the compiled module has failed; None if no driver is missing.

    Called only after a failure, so normal starts do not search for libraries.
    """
    for name, driver in DRIVERS.items():
        library = driver.libraries.get(sys.platform)
        if library and any(SITE_PACKAGES.glob(f"{name.replace('-', '_')}-*.dist-info")) and not _is_there(library):
            return DriverMissingError(name, library, driver.advice)
    return None


def _is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
