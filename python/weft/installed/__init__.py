"""Weft's installation: distribution, compiled modules for each instruction set, GPU drivers, and platform facilities."""
