"""Settings of position encoding that override the model file."""

from collections.abc import Callable

from weft.config import EngineConfig
from weft.fields.meta import field_meta
from weft.settings.flags import FlagAlias, field_flags, row
from weft.settings.values import number, unset_below, within

__all__ = ["POSITIONS"]


def _bounded(name: str, is_unset: Callable[[float], bool], unset: str) -> Callable[[str], float | None]:
    """Returns a parser of numbers that converts those with `is_unset`, which `unset` names in messages, to None."""
    meta = field_meta(EngineConfig)[name]

    def parse(text: str) -> float | None:
        if is_unset(number()(text)):
            return None
        try:
            return number(meta.low, meta.high)(text)
        except ValueError as error:
            raise ValueError(f"{error}; {unset} leaves it to the model") from None

    return parse


def _unset_at_0(name: str) -> Callable[[str], float | None]:
    return _bounded(name, lambda value: value == 0, "0")


def _unset_below_0(name: str) -> Callable[[str], float | None]:
    return _bounded(name, lambda value: value < 0, "a negative number")


def _scale(text: str) -> float:
    meta = field_meta(EngineConfig)["rope_freq_scale"]
    return 1 / number(meta.low, meta.high)(text)


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
