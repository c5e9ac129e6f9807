"""How many run at once, and how much the cache holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from weft.config import EngineConfig, KvType
from weft.settings.flags import Flag, Way, flag, row
from weft.settings.values import boolean, file, folder, one_of, unset_at, whole, within

__all__ = ["CACHE", "ContextSettings"]

CONTEXT = "context and slots"

_tokens = unset_at(0, within(EngineConfig, "n_ctx"), "leaves it to the model")
_kv_type = one_of(*get_args(KvType))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ContextSettings:
    """How many run at once, and how much the cache holds."""

    cache_prompt: bool = flag(
        True,
        CONTEXT,
        constants={"--cache-prompt": True, "--no-cache-prompt": False},
        parse=boolean,
        env="LLAMA_ARG_CACHE_PROMPT",
        help="use what is cached of a prompt, or compute all of it, where a request does not say (default: use it)",
    )
    context_shift: bool = flag(
        False,
        CONTEXT,
        constants={"--context-shift": True, "--no-context-shift": False},
        parse=boolean,
        env="LLAMA_ARG_CONTEXT_SHIFT",
        help="where the context is full: drop the middle of the sequence and go on, or end it (default: end it)",
    )
    n_keep: int | None = flag(
        0,
        CONTEXT,
        "--keep",
        parse=unset_at(-1, whole(0), "keeps the whole prompt"),
        help="tokens of the beginning that a context shift keeps; -1 is the whole prompt (default: 0)",
    )
    restore_prompt: str | None = flag(
        None,
        CONTEXT,
        "-R",
        "--restore-prompt",
        metavar="FNAME",
        parse=file,
        help="file of a prompt that was computed and saved, which is brought back at the start (default: none)",
    )
    slot_save_path: str | None = flag(
        None,
        CONTEXT,
        "--slot-save-path",
        metavar="PATH",
        parse=folder,
        env="LLAMA_ARG_SLOT_SAVE_PATH",
        help="folder in which POST /slots saves and restores what slots hold (default: none, which turns that off)",
    )


CACHE: Mapping[str, Flag] = {
    "n_ctx": row(
        CONTEXT,
        "-c",
        "--ctx-size",
        parse=_tokens,
        also=(Way(("--num-ctx-tokens",), _tokens),),
        env="LLAMA_ARG_CTX_SIZE",
        help="tokens of context in all, shared by the slots (default: 0, chosen from the model, the slots and the free memory)",
    ),
    "grp_attn_n": row(
        CONTEXT,
        "-gan",
        "--grp-attn-n",
        parse=within(EngineConfig, "grp_attn_n"),
        env="LLAMA_ARG_GRP_ATTN_N",
        help="self-extend: older tokens of a text longer than --grp-attn-w share positions by so many, so that it may be about"
        " so many times as long as the model was trained for (default: 1, which is off)",
    ),
    "grp_attn_w": row(
        CONTEXT,
        "-gaw",
        "--grp-attn-w",
        parse=within(EngineConfig, "grp_attn_w"),
        env="LLAMA_ARG_GRP_ATTN_W",
        help="tokens that self-extend groups at once: a multiple of --grp-attn-n (default: 512)",
    ),
    "n_slots": row(
        CONTEXT,
        "-np",
        "--parallel",
        parse=unset_at(-1, within(EngineConfig, "n_slots"), "(the default) leaves it to the server"),
        env="LLAMA_ARG_N_PARALLEL",
        help="completions that are written at once (default: -1, which is 8, each free to use the whole context; with --compat"
        " parallel 1)",
    ),
    "kv_unified": row(
        CONTEXT,
        constants={"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False},
        parse=boolean,
        env="LLAMA_ARG_KV_UNIFIED",
        help="let each slot use the whole context, or its own share of it (default: the whole where -np is unset, else a share)",
    ),
    "type_k": row(
        CONTEXT,
        "-ctk",
        "--cache-type-k",
        metavar="TYPE",
        parse=_kv_type,
        also=(Way(("--memory-f32",), value="f32"), Way(("-f16", "--float16"), value="f16")),
        env="LLAMA_ARG_CACHE_TYPE_K",
        help="number format of K in the cache: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1 (default: f16)",
    ),
    "type_v": row(
        CONTEXT,
        "-ctv",
        "--cache-type-v",
        metavar="TYPE",
        parse=_kv_type,
        also=(Way(("--memory-f32",), value="f32"), Way(("-f16", "--float16"), value="f16")),
        env="LLAMA_ARG_CACHE_TYPE_V",
        help="number format of V in the cache, one of the same (default: f16)",
    ),
    "cache_ram": row(
        CONTEXT,
        "-cram",
        "--cache-ram",
        parse=within(EngineConfig, "cache_ram"),
        env="LLAMA_ARG_CACHE_RAM",
        help="most MiB of memory for what is cached beside the context; -1 is no limit, 0 is off"
        " (default: 8192, or a quarter of the machine's memory if that is less)",
    ),
    "ctx_checkpoints": row(
        CONTEXT,
        "-ctxcp",
        "--ctx-checkpoints",
        "--swa-checkpoints",
        parse=within(EngineConfig, "ctx_checkpoints"),
        env="LLAMA_ARG_CTX_CHECKPOINTS",
        help="most states that are kept along a prompt of a recurrent or hybrid model, or windows of one that sees through a"
        " sliding window, three windows apart or more, in an eighth of --cache-ram at most; 0 keeps them at the ends of prompts,"
        " turns and answers alone (default: 32)",
    ),
    "checkpoint_min_step": row(
        CONTEXT,
        "-cms",
        "--checkpoint-min-step",
        parse=within(EngineConfig, "checkpoint_min_step"),
        env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
        help="fewest tokens from one of them to the next, on average (default: 48)",
    ),
    "max_queue": row(
        CONTEXT,
        "--max-queue",
        parse=within(EngineConfig, "max_queue"),
        env="LLAMA_ARG_MAX_QUEUE",
        help="requests that may wait for a slot; further ones are answered 429 (default: 1024)",
    ),
}
"""How many run at once and what the cache holds: fields of `EngineConfig`."""
