"""Weft's `/score`: logprobs of many continuations."""
