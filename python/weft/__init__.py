"""Weft: one prompt, many completions, over one shared KV cache."""

from weft._native import (
    Completions,
    Finished,
    Limits,
    Logprob,
    Logprobs,
    Model,
    Slot,
    Stats,
    Token,
    Usage,
)
from weft.completion import Branch, Completion
from weft.engine import DEMO_MODEL, Engine
from weft.errors import (
    ContextOverflow,
    DecodeError,
    EngineStopped,
    ForkedProcess,
    InvalidConfig,
    InvalidRequest,
    ModelLoadError,
    QueueFull,
    SlowReader,
    WeftError,
)
from weft.request import Request, RequestOptions

__all__ = [
    "DEMO_MODEL",
    "Branch",
    "Completion",
    "Completions",
    "ContextOverflow",
    "DecodeError",
    "Engine",
    "EngineStopped",
    "Finished",
    "ForkedProcess",
    "InvalidConfig",
    "InvalidRequest",
    "Limits",
    "Logprob",
    "Logprobs",
    "Model",
    "ModelLoadError",
    "QueueFull",
    "Request",
    "RequestOptions",
    "Slot",
    "SlowReader",
    "Stats",
    "Token",
    "Usage",
    "WeftError",
]
