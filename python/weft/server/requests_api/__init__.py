"""Weft's routes for active requests: listing, inspecting, cancelling and forking."""
