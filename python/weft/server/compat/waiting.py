"""`GET /v1/models` with `--compat srb` before the model is loaded: reports the engine's state. No I/O here."""

import msgspec
from litestar.response.base import ASGIResponse

from weft.server.compat.schemas import WaitingModel, WaitingModels
from weft.server.service import Service

PATHS = ("/v1/models", "/models")
"""Paths of the model list."""


def waiting(service: Service) -> ASGIResponse:
    """Returns the configured model with the engine's state."""
    body = msgspec.json.encode(WaitingModels([WaitingModel(service.model_name, service.state)]))
    return ASGIResponse(body=body, media_type="application/json")
