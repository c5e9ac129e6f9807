"""What the engine is about, in one word."""

from enum import StrEnum

__all__ = ["EngineState"]


class EngineState(StrEnum):
    """What the engine is about, from the server's start on, in the words of llama-srb-api."""

    INIT = "INIT"
    """Its model is not there yet: nothing was begun, or it is being downloaded."""
    LOADING = "LOADING"
    READY = "READY"
    """The model is loaded, no slot is busy, and no vectors are computed."""
    RUNNING = "RUNNING"
    DEAD = "DEAD"
    """The model could not be loaded, or the engine ended."""
