"""Settings of slots, context and cache."""

from dataclasses import dataclass

from weft.config import EngineConfig
from weft.settings.flags import FlagAlias, field_flags, flag, row
from weft.settings.values import file, folder, unset_at, whole, within

__all__ = ["CACHE", "ContextSettings"]

_tokens = unset_at(0, within(EngineConfig, "n_ctx"), "leaves it to the model")
_OTHER_TYPES = (FlagAlias(("--memory-f32",), value="f32"), FlagAlias(("-f16", "--float16"), value="f16"))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ContextSettings:
    """Settings of the context, and defaults of requests about it."""

    cache_prompt: bool = flag(
        True,
        constants={"--cache-prompt": True, "--no-cache-prompt": False},
        env="LLAMA_ARG_CACHE_PROMPT",
        help="reuse cached tokens of prompts, or compute all of them, by default (default: reuse them)",
    )
    context_shift: bool = flag(
        False,
        constants={"--context-shift": True, "--no-context-shift": False},
        env="LLAMA_ARG_CONTEXT_SHIFT",
        help="when the context is full, drop the middle of the sequence and continue, or end it (default: end it)",
    )
    n_keep: int | None = flag(
        0,
        "--keep",
        parse=unset_at(-1, whole(0), "keeps the whole prompt"),
        help="tokens at the beginning that a context shift keeps; -1 is the whole prompt (default: 0)",
    )
    restore_prompt: str | None = flag(
        None, "-R, --restore-prompt FNAME", parse=file, help="prefix file to load at the start (default: none)"
    )
    slot_save_path: str | None = flag(
        None,
        "--slot-save-path PATH",
        parse=folder,
        env="LLAMA_ARG_SLOT_SAVE_PATH",
        help="folder in which POST /slots saves and restores prefixes of slots (default: none, which disables it)",
    )


CACHE = field_flags(
    EngineConfig,
    n_ctx=row("-c, --ctx-size", parse=_tokens, also=(FlagAlias(("--num-ctx-tokens",), _tokens),), env="LLAMA_ARG_CTX_SIZE"),
    grp_attn_n=row("-gan, --grp-attn-n", env="LLAMA_ARG_GRP_ATTN_N"),
    grp_attn_w=row("-gaw, --grp-attn-w", env="LLAMA_ARG_GRP_ATTN_W"),
    n_slots=row(
        "-np, --parallel",
        parse=unset_at(-1, within(EngineConfig, "n_slots"), "(the default) leaves it to the server"),
        unset="-1",
        env="LLAMA_ARG_N_PARALLEL",
    ),
    kv_unified=row(
        constants={"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False}, env="LLAMA_ARG_KV_UNIFIED"
    ),
    type_k=row("-ctk, --cache-type-k", also=_OTHER_TYPES, env="LLAMA_ARG_CACHE_TYPE_K"),
    type_v=row("-ctv, --cache-type-v", also=_OTHER_TYPES, env="LLAMA_ARG_CACHE_TYPE_V"),
    cache_ram=row("-cram, --cache-ram", env="LLAMA_ARG_CACHE_RAM"),
    ctx_checkpoints=row("-ctxcp, --ctx-checkpoints, --swa-checkpoints", env="LLAMA_ARG_CTX_CHECKPOINTS"),
    checkpoint_min_step=row("-cms, --checkpoint-min-step", env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"),
    max_queue=row("--max-queue", env="LLAMA_ARG_MAX_QUEUE"),
)
"""Flags of slots, context and cache."""
