"""The drivers that Weft's distributions for GPUs need: a machine has them or not, and no package can bring them.

Their compiled module is linked to a library of the driver, and cannot be imported without it. The loader's word for that is the
name of a file; here it becomes one that says what to install.
"""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.errors import DriverMissing

__all__ = ["DRIVERS", "Driver", "missing"]

SITE_PACKAGES = Path(__file__).parents[2]


@dataclass(frozen=True)
class Driver:
    """What a distribution needs of the machine."""

    libraries: Mapping[str, str]
    """The file to be loaded, by `sys.platform`."""
    advice: str
    """How one comes by it."""


DRIVERS = {
    "weft-llm-cuda12": Driver(
        {"linux": "libcuda.so.1", "win32": "nvcuda.dll"},
        "install NVIDIA's driver, version 525 or newer; a container is given the machine's by `docker run --gpus all`",
    ),
    "weft-llm-vulkan": Driver(
        {"linux": "libvulkan.so.1", "win32": "vulkan-1.dll"},
        "install the driver of the GPU with its part for Vulkan; Debian and Ubuntu have `libvulkan1` and `mesa-vulkan-drivers`",
    ),
}
"""By the name of the distribution. `weft-llm` itself needs none: it computes on the CPU, or, on a Mac, by what each Mac has."""


def missing() -> DriverMissing | None:
    """What to raise, or to say, where the compiled module could not be imported; None where no driver is to blame.

    Called after it could not: a start where all is well looks for nothing.
    """
    for name, driver in DRIVERS.items():
        library = driver.libraries.get(sys.platform)
        if library and any(SITE_PACKAGES.glob(f"{name.replace('-', '_')}-*.dist-info")) and not _is_there(library):
            return DriverMissing(name, library, driver.advice)
    return None


def _is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
