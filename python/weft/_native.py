"""The compiled module where it is there for several kinds of processors, as in a wheel.

Where one was compiled for this machine alone, as in a checkout, Python finds that one before this file.
"""

from weft.installed.levels import load

__all__: list[str] = []

load(__name__)
