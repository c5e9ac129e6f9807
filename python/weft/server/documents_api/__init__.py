"""Weft's routes for documents: trees of texts that the server stores and writes."""
