"""Loads the compiled module where there is one for each of several instruction sets, as in a wheel.

A module that was compiled for this machine alone, as in a checkout, comes before this file on Python's search path.
"""

from weft.installed.levels import load

__all__: list[str] = []

load(__name__)
