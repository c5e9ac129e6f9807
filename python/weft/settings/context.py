"""Settings of slots, context and cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from weft.config import EngineConfig, KvType
from weft.settings.flags import Flag, FlagAlias, flag, row
from weft.settings.values import boolean, file, folder, one_of, unset_at, whole, within

__all__ = ["CACHE", "ContextSettings"]

CONTEXT = "context and slots"

_tokens = unset_at(0, within(EngineConfig, "n_ctx"), "leaves it to the model")
_kv_type = one_of(*get_args(KvType))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ContextSettings:
    """Settings of the context, and defaults of requests about it."""

    cache_prompt: bool = flag(
        True,
        CONTEXT,
        constants={"--cache-prompt": True, "--no-cache-prompt": False},
        parse=boolean,
        env="LLAMA_ARG_CACHE_PROMPT",
        help="reuse cached tokens of prompts, or compute all of them, by default (default: reuse them)",
    )
    context_shift: bool = flag(
        False,
        CONTEXT,
        constants={"--context-shift": True, "--no-context-shift": False},
        parse=boolean,
        env="LLAMA_ARG_CONTEXT_SHIFT",
        help="when the context is full, drop the middle of the sequence and continue, or end it (default: end it)",
    )
    n_keep: int | None = flag(
        0,
        CONTEXT,
        "--keep",
        parse=unset_at(-1, whole(0), "keeps the whole prompt"),
        help="tokens at the beginning that a context shift keeps; -1 is the whole prompt (default: 0)",
    )
    restore_prompt: str | None = flag(
        None,
        CONTEXT,
        "-R",
        "--restore-prompt",
        metavar="FNAME",
        parse=file,
        help="prefix file to load at the start (default: none)",
    )
    slot_save_path: str | None = flag(
        None,
        CONTEXT,
        "--slot-save-path",
        metavar="PATH",
        parse=folder,
        env="LLAMA_ARG_SLOT_SAVE_PATH",
        help="folder in which POST /slots saves and restores prefixes of slots (default: none, which disables it)",
    )


CACHE: Mapping[str, Flag] = {
    "n_ctx": row(
        CONTEXT,
        "-c",
        "--ctx-size",
        parse=_tokens,
        also=(FlagAlias(("--num-ctx-tokens",), _tokens),),
        env="LLAMA_ARG_CTX_SIZE",
        help="total tokens of context, shared by the slots (default: 0, derived from the model, the slots and the free memory)",
    ),
    "grp_attn_n": row(
        CONTEXT,
        "-gan",
        "--grp-attn-n",
        parse=within(EngineConfig, "grp_attn_n"),
        env="LLAMA_ARG_GRP_ATTN_N",
        help="self-extend: older tokens of a text longer than --grp-attn-w share positions in groups of N, which extends the "
        "usable"
        " context by about this factor (default: 1, disabled)",
    ),
    "grp_attn_w": row(
        CONTEXT,
        "-gaw",
        "--grp-attn-w",
        parse=within(EngineConfig, "grp_attn_w"),
        env="LLAMA_ARG_GRP_ATTN_W",
        help="self-extend: tokens per group, a multiple of --grp-attn-n (default: 512)",
    ),
    "n_slots": row(
        CONTEXT,
        "-np",
        "--parallel",
        parse=unset_at(-1, within(EngineConfig, "n_slots"), "(the default) leaves it to the server"),
        env="LLAMA_ARG_N_PARALLEL",
        help="completions generated concurrently (default: -1, which is 8, each of which may use the whole context; with --compat"
        " parallel 1)",
    ),
    "kv_unified": row(
        CONTEXT,
        constants={"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False},
        parse=boolean,
        env="LLAMA_ARG_KV_UNIFIED",
        help="let each slot use the whole context, or only its share (default: the whole if -np is unset, else its share)",
    ),
    "type_k": row(
        CONTEXT,
        "-ctk",
        "--cache-type-k",
        metavar="TYPE",
        parse=_kv_type,
        also=(FlagAlias(("--memory-f32",), value="f32"), FlagAlias(("-f16", "--float16"), value="f16")),
        env="LLAMA_ARG_CACHE_TYPE_K",
        help="number format of cached keys: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1 (default: f16)",
    ),
    "type_v": row(
        CONTEXT,
        "-ctv",
        "--cache-type-v",
        metavar="TYPE",
        parse=_kv_type,
        also=(FlagAlias(("--memory-f32",), value="f32"), FlagAlias(("-f16", "--float16"), value="f16")),
        env="LLAMA_ARG_CACHE_TYPE_V",
        help="number format of cached values, one of the same (default: f16)",
    ),
    "cache_ram": row(
        CONTEXT,
        "-cram",
        "--cache-ram",
        parse=within(EngineConfig, "cache_ram"),
        env="LLAMA_ARG_CACHE_RAM",
        help="host cache limit in MiB, for cached prefixes that are not in use; -1 is no limit, 0 disables it (default: 8192, or "
        "a"
        " quarter of the machine's memory if that is less)",
    ),
    "ctx_checkpoints": row(
        CONTEXT,
        "-ctxcp",
        "--ctx-checkpoints",
        "--swa-checkpoints",
        parse=within(EngineConfig, "ctx_checkpoints"),
        env="LLAMA_ARG_CTX_CHECKPOINTS",
        help="maximum checkpoints along a prompt of a recurrent, hybrid or sliding-window model (three windows apart or more), "
        "in at most"
        " an eighth of --cache-ram; 0 keeps them only at the ends of prompts, turns and answers (default: 32)",
    ),
    "checkpoint_min_step": row(
        CONTEXT,
        "-cms",
        "--checkpoint-min-step",
        parse=within(EngineConfig, "checkpoint_min_step"),
        env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
        help="minimum tokens between two checkpoints, on average (default: 48)",
    ),
    "max_queue": row(
        CONTEXT,
        "--max-queue",
        parse=within(EngineConfig, "max_queue"),
        env="LLAMA_ARG_MAX_QUEUE",
        help="maximum requests that wait for a slot; further ones are answered 429 (default: 1024)",
    ),
}
"""Fields of `EngineConfig` about slots, context and cache."""
