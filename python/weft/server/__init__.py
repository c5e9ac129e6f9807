"""HTTP server for one engine: `create_app` returns an ASGI application."""

from weft.server.app import create_app

__all__ = ["create_app"]
