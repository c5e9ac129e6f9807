"""Weft's own routes to requests that run: which there are, how far each is, and how one or a branch of it is ended."""
