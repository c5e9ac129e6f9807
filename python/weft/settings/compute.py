"""Settings of batching, kernels and threads."""

from weft.config import EngineConfig
from weft.settings.flags import FlagAlias, field_flags, row
from weft.settings.values import number, on_off_auto, unset_below, within

__all__ = ["STEPS"]

_threads = unset_below(1, within(EngineConfig, "n_threads"), "or less is as many as suit the machine")

STEPS = field_flags(
    EngineConfig,
    n_batch=row("-b, --batch-size", env="LLAMA_ARG_BATCH"),
    n_ubatch=row("-ub, --ubatch-size", env="LLAMA_ARG_UBATCH"),
    n_threads=row(
        "-t, --threads", parse=_threads, also=(FlagAlias(("--num-threads",), _threads),), unset="-1", env="LLAMA_ARG_THREADS"
    ),
    n_threads_batch=row("-tb, --threads-batch", parse=_threads, unset="-1", env="LLAMA_ARG_THREADS_BATCH"),
    kernels=row("--kernels", env="WEFT_KERNELS"),
    flash_attention=row("-fa, --flash-attn", parse=on_off_auto, bare="on", env="LLAMA_ARG_FLASH_ATTN"),
    tuned=row(constants={"--tune": True, "--no-tune": False}, env="LLAMA_ARG_TUNE"),
    max_token_gap_ms=row("--max-token-gap MS", parse=number(above=0), env="LLAMA_ARG_MAX_TOKEN_GAP"),
)
"""Flags of batching, kernels and threads."""
