"""Words that a setting and an argument of the engine choose among."""

from typing import Literal

__all__ = ["Kernels", "KvType"]

Kernels = Literal["auto", "weft", "llama.cpp"]
"""Whose kernels compute on the CPU."""

KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
"""A number format of the cache."""
