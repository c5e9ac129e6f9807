"""Compatibility with earlier servers, selected by `--compat`: `parallel`, `srb` (single-request batching) and `stream`."""
