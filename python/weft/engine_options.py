"""Options of `Engine`. `engine_options.pyi`, which `scripts/option_stubs.py` writes, declares them for type checkers."""

import os
from collections.abc import Mapping, Sequence
from typing import TypedDict, get_type_hints

from weft.config import EngineConfig

__all__ = ["EngineOptions"]

WIDER_TYPES = {
    "devices": Sequence[str] | None,
    "draft_devices": Sequence[str] | None,
    "tensor_split": Sequence[float],
    "lora": Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]],
    "mmproj": str | os.PathLike[str] | None,
    "draft_model": str | os.PathLike[str] | None,
    "kv_overrides": Mapping[str, bool | int | float | str] | Sequence[tuple[str, bool | int | float | str]],
    "tensor_overrides": Mapping[str, str] | Sequence[tuple[str, str]],
    "draft_tensor_overrides": Mapping[str, str] | Sequence[tuple[str, str]],
    "cpus": Sequence[int],
    "cpus_batch": Sequence[int] | None,
}
"""Types of keywords that `EngineConfig` normalizes."""

EngineOptions = TypedDict("EngineOptions", get_type_hints(EngineConfig) | WIDER_TYPES, total=False)
EngineOptions.__doc__ = "Fields of `EngineConfig` as keywords of `Engine`."
