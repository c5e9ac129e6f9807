"""Weft as it was installed: its distribution, the compiled module for each level of processors, and the drivers that it needs."""
