"""`GET /v1/models` with `--compat srb`, while there is no model to tell of: what the engine is about. No I/O here."""

import msgspec
from litestar.response.base import ASGIResponse

from weft.server.run.service import Service
from weft.server.seeds.schemas import WaitingModel, WaitingModels

__all__ = ["PATHS", "waiting"]

PATHS = ("/v1/models", "/models")
"""Where it is asked for."""


def waiting(service: Service) -> ASGIResponse:
    """The model that is to be served, with what the engine is about."""
    body = msgspec.json.encode(WaitingModels([WaitingModel(service.model_name, service.state)]))
    return ASGIResponse(body=body, media_type="application/json")
