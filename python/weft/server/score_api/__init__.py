"""Weft's own route to the log-probabilities of many continuations: `/score`."""
