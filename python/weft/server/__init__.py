"""HTTP over one engine: `create_app` makes a Litestar application of it."""

from weft.server.app import create_app

__all__ = ["create_app"]
