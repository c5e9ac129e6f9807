"""Weft's own routes to its shared cache: `/prefixes` and `/cache`."""
