"""HTTP server for one engine: `create_app` returns a Litestar application."""

from weft.server.app import create_app

__all__ = ["create_app"]
