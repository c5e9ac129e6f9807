"""Settings of position encoding that override the model file."""

from collections.abc import Callable

from weft.config import EngineConfig
from weft.fields.meta import field_meta
from weft.settings.flags import FlagAlias, field_flags, row
from weft.settings.values import number, optional, unset_below, within

__all__ = ["POSITIONS"]


def _bounded(name: str) -> Callable[[str], float]:
    meta = field_meta(EngineConfig)[name]
    return number(meta.low, meta.high)


def _unset_at_0(name: str) -> Callable[[str], float | None]:
    return optional(_bounded(name), lambda text: number()(text) == 0, "0 leaves it to the model")


def _unset_below_0(name: str) -> Callable[[str], float | None]:
    return optional(_bounded(name), lambda text: number()(text) < 0, "a negative number leaves it to the model")


def _scale(text: str) -> float:
    return 1 / _bounded("rope_freq_scale")(text)


POSITIONS = field_flags(
    EngineConfig,
    rope_scaling_type=row("--rope-scaling", env="LLAMA_ARG_ROPE_SCALING_TYPE"),
    rope_freq_scale=row(
        "--rope-freq-scale",
        parse=_unset_at_0("rope_freq_scale"),
        env="LLAMA_ARG_ROPE_FREQ_SCALE",
        also=(FlagAlias(("--rope-scale",), _scale, env="LLAMA_ARG_ROPE_SCALE"),),
        help="RoPE frequency scale: 0.25, or --rope-scale 4, extends the context to four times that of training; 0 is the"
        " model's own (default: 0)",
    ),
    rope_freq_base=row("--rope-freq-base", parse=_unset_at_0("rope_freq_base"), unset="0", env="LLAMA_ARG_ROPE_FREQ_BASE"),
    yarn_orig_ctx=row(
        "--yarn-orig-ctx",
        parse=unset_below(1, within(EngineConfig, "yarn_orig_ctx"), "or less leaves it to the model"),
        unset="0",
        env="LLAMA_ARG_YARN_ORIG_CTX",
    ),
    **{
        f"yarn_{name}": row(
            f"--yarn-{name.replace('_', '-')}",
            parse=_unset_below_0(f"yarn_{name}"),
            unset="-1",
            env=f"LLAMA_ARG_YARN_{name.upper()}",
        )
        for name in ("ext_factor", "attn_factor", "beta_slow", "beta_fast")
    },
)
"""Flags of position encoding."""
