"""Weft's routes for the shared cache: `/prefixes` and `/cache`."""
