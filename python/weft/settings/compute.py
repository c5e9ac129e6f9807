"""Settings of batching, kernels and threads."""

from collections.abc import Mapping
from typing import get_args

from weft.config import EngineConfig, Kernels
from weft.settings.flags import Flag, FlagAlias, row
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
        help="maximum tokens of one llama.cpp call, the logical batch (default: 2048)",
    ),
    "n_ubatch": row(
        COMPUTE,
        "-ub",
        "--ubatch-size",
        parse=within(EngineConfig, "n_ubatch"),
        env="LLAMA_ARG_UBATCH",
        help="maximum tokens of one decode, the physical batch (default: 512, or less if memory is short)",
    ),
    "n_threads": row(
        COMPUTE,
        "-t",
        "--threads",
        parse=_threads,
        also=(FlagAlias(("--num-threads",), _threads),),
        env="LLAMA_ARG_THREADS",
        help="threads that compute generated tokens, at most the number of processors; 0 or less is the tuned value, else one per"
        " physical core (default: -1)",
    ),
    "n_threads_batch": row(
        COMPUTE,
        "-tb",
        "--threads-batch",
        parse=_threads,
        env="LLAMA_ARG_THREADS_BATCH",
        help="threads that compute prompts, at most the number of processors; 0 or less is --threads if that is given, else the "
        "tuned"
        " value (default: -1)",
    ),
    "kernels": row(
        COMPUTE,
        "--kernels",
        metavar="[auto|weft|llama.cpp]",
        parse=one_of(*get_args(Kernels)),
        env="WEFT_KERNELS",
        help="CPU kernels: weft uses Weft's own where they support the model, auto where they are faster, llama.cpp never "
        "(default:"
        " auto)",
    ),
    "flash_attention": row(
        COMPUTE,
        "-fa",
        "--flash-attn",
        metavar="[on|off|auto]",
        parse=on_off_auto,
        bare="on",
        env="LLAMA_ARG_FLASH_ATTN",
        help="llama.cpp's fused attention kernel (on) or separate products (off); auto uses Weft's own kernel on a CPU where it "
        "applies"
        " (elsewhere the tuned value, else off unless V is quantized or memory is short) and llama.cpp's choice on a GPU "
        "(default: auto)",
    ),
    "tuned": row(
        COMPUTE,
        constants={"--tune": True, "--no-tune": False},
        parse=boolean,
        env="LLAMA_ARG_TUNE",
        help="use or ignore the measurements of 'python -m weft tune' for this model on this machine (default: use them)",
    ),
    "max_token_gap_ms": row(
        COMPUTE,
        "--max-token-gap",
        metavar="MS",
        parse=number(above=0),
        env="LLAMA_ARG_MAX_TOKEN_GAP",
        help="target for the 99th percentile of gaps between tokens of a running stream while a new prompt is computed, in "
        "milliseconds"
        " (default: ten times the streams' own time per token, from 8 to 200, or twice that time if that is more)",
    ),
}
"""Fields of `EngineConfig` about the computation of steps."""
