"""How a step is computed."""

from collections.abc import Mapping
from typing import get_args

from weft.config import EngineConfig, Kernels
from weft.settings.flags import Flag, Way, row
from weft.settings.values import boolean, number, on_off_auto, one_of, unset_below, within

__all__ = ["STEPS"]

COMPUTE = "compute"

_threads = unset_below(1, within(EngineConfig, "n_threads"), "or less is as many as suit the machine")

STEPS: Mapping[str, Flag] = {
    "n_batch": row(
        COMPUTE,
        "-b",
        "--batch-size",
        parse=within(EngineConfig, "n_batch"),
        env="LLAMA_ARG_BATCH",
        help="most tokens that llama.cpp takes in one call (default: 2048)",
    ),
    "n_ubatch": row(
        COMPUTE,
        "-ub",
        "--ubatch-size",
        parse=within(EngineConfig, "n_ubatch"),
        env="LLAMA_ARG_UBATCH",
        help="most tokens that are computed at once (default: 512, or fewer where memory is short)",
    ),
    "n_threads": row(
        COMPUTE,
        "-t",
        "--threads",
        parse=_threads,
        also=(Way(("--num-threads",), _threads),),
        env="LLAMA_ARG_THREADS",
        help="threads that compute new tokens, at most as many as processors; 0 or less is as tuned, else one for each physical "
        "core (default: -1)",
    ),
    "n_threads_batch": row(
        COMPUTE,
        "-tb",
        "--threads-batch",
        parse=_threads,
        env="LLAMA_ARG_THREADS_BATCH",
        help="threads that compute prompts, at most as many as processors; 0 or less is as many as --threads, if that is given, "
        "else as tuned (default: -1)",
    ),
    "kernels": row(
        COMPUTE,
        "--kernels",
        metavar="[auto|weft|llama.cpp]",
        parse=one_of(*get_args(Kernels)),
        env="WEFT_KERNELS",
        help="whose kernels compute on the CPU: weft is Weft's own wherever they can, llama.cpp none of them, "
        "auto those that are the faster ones (default: auto)",
    ),
    "flash_attention": row(
        COMPUTE,
        "-fa",
        "--flash-attn",
        metavar="[on|off|auto]",
        parse=on_off_auto,
        bare="on",
        env="LLAMA_ARG_FLASH_ATTN",
        help="llama.cpp's attention in one fused kernel, or without it; auto is Weft's own on a CPU (where that does not apply, "
        "as tuned, else off unless V is quantised or memory is short) and llama.cpp's choice on a GPU (default: auto)",
    ),
    "tuned": row(
        COMPUTE,
        constants={"--tune": True, "--no-tune": False},
        parse=boolean,
        env="LLAMA_ARG_TUNE",
        help="use what 'python -m weft tune' has measured for this model on this machine, or ignore it (default: use it)",
    ),
    "max_token_gap_ms": row(
        COMPUTE,
        "--max-token-gap",
        metavar="MS",
        parse=number(above=0),
        env="LLAMA_ARG_MAX_TOKEN_GAP",
        help="99th percentile of the pauses in a running answer that a new prompt may cause, in milliseconds "
        "(default: ten times what the answers take for a token, from 8 to 200; or twice what they take)",
    ),
}
"""How a step is computed: fields of `EngineConfig`."""
