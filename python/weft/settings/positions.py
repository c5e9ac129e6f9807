"""Settings of position encoding that override the model file."""

from collections.abc import Callable, Mapping
from typing import get_args

from weft.config import EngineConfig, RopeScaling
from weft.fields.meta import field_meta
from weft.settings.flags import Flag, FlagAlias, row
from weft.settings.values import number, one_of, unset_below, within

__all__ = ["POSITIONS"]

GROUP = "positions"


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


POSITIONS: Mapping[str, Flag] = {
    "rope_scaling_type": row(
        GROUP,
        "--rope-scaling",
        metavar="[none|linear|yarn]",
        parse=one_of(*get_args(RopeScaling)),
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
        help="RoPE scaling method (default: the model's own, else linear)",
    ),
    "rope_freq_scale": row(
        GROUP,
        "--rope-freq-scale",
        parse=_unset_at_0("rope_freq_scale"),
        env="LLAMA_ARG_ROPE_FREQ_SCALE",
        also=(FlagAlias(("--rope-scale",), _scale, env="LLAMA_ARG_ROPE_SCALE"),),
        help="RoPE frequency scale: 0.25, or --rope-scale 4, extends the context to four times that of training; 0 is the "
        "model's own"
        " (default: 0)",
    ),
    "rope_freq_base": row(
        GROUP,
        "--rope-freq-base",
        parse=_unset_at_0("rope_freq_base"),
        env="LLAMA_ARG_ROPE_FREQ_BASE",
        help="RoPE base frequency; 0 is the model's own (default: 0)",
    ),
    "yarn_orig_ctx": row(
        GROUP,
        "--yarn-orig-ctx",
        parse=unset_below(1, within(EngineConfig, "yarn_orig_ctx"), "or less leaves it to the model"),
        env="LLAMA_ARG_YARN_ORIG_CTX",
        help="YaRN: original context size of the model in tokens; 0 is the model's own (default: 0)",
    ),
    "yarn_ext_factor": row(
        GROUP,
        "--yarn-ext-factor",
        parse=_unset_below_0("yarn_ext_factor"),
        env="LLAMA_ARG_YARN_EXT_FACTOR",
        help="YaRN: extrapolation mix factor; 0 is full interpolation, below 0 is the model's own (default: -1)",
    ),
    "yarn_attn_factor": row(
        GROUP,
        "--yarn-attn-factor",
        parse=_unset_below_0("yarn_attn_factor"),
        env="LLAMA_ARG_YARN_ATTN_FACTOR",
        help="YaRN: factor for the magnitude of queries and keys when nothing is extrapolated; otherwise llama.cpp derives it; "
        "below 0"
        " is the model's own (default: -1)",
    ),
    "yarn_beta_slow": row(
        GROUP,
        "--yarn-beta-slow",
        parse=_unset_below_0("yarn_beta_slow"),
        env="LLAMA_ARG_YARN_BETA_SLOW",
        help="YaRN: rotations per context below which a frequency is interpolated; below 0 is the model's own (default: -1)",
    ),
    "yarn_beta_fast": row(
        GROUP,
        "--yarn-beta-fast",
        parse=_unset_below_0("yarn_beta_fast"),
        env="LLAMA_ARG_YARN_BETA_FAST",
        help="YaRN: rotations per context above which a frequency is unchanged; below 0 is the model's own (default: -1)",
    ),
}
"""Fields of `EngineConfig` about position encoding."""
