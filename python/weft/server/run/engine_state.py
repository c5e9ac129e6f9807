"""Lifecycle state of the engine."""

from enum import StrEnum

__all__ = ["EngineState"]


class EngineState(StrEnum):
    """State of the engine since the server's start, with the names of llama-srb-api."""

    INIT = "INIT"
    """Loading has not begun, or the model is being downloaded."""
    LOADING = "LOADING"
    READY = "READY"
    """The model is loaded, all slots are idle, and no embeddings are being computed."""
    RUNNING = "RUNNING"
    DEAD = "DEAD"
    """The model could not be loaded, or the engine has died."""
