"""Settings that override the model file: metadata values, and placement of tensors."""

from collections.abc import Callable, Mapping

from weft.config import EngineConfig
from weft.settings.flags import field_flags, row
from weft.settings.values import number, some, text, together, whole

__all__ = ["OVERRIDES"]

_INT_BITS = 32


def _truth(given: str) -> bool:
    if given not in ("true", "false"):
        raise ValueError(f"{given!r} is not true or false")
    return given == "true"


_TYPES: Mapping[str, Callable[[str], bool | int | float | str]] = {
    "int": whole(-(2 ** (_INT_BITS - 1)), 2**_INT_BITS - 1),
    "float": number(),
    "bool": _truth,
    "str": text,
}


def _kv_override(given: str) -> tuple[str, bool | int | float | str]:
    key, equals, typed = given.partition("=")
    kind, colon, value = typed.partition(":")
    if not (key and equals and colon and kind in _TYPES):
        raise ValueError(f"{given!r} is no key with a value, as KEY=int:1, KEY=float:0.5, KEY=bool:true or KEY=str:text")
    return key, _TYPES[kind](value)


def _tensor_override(given: str) -> tuple[str, str]:
    pattern, equals, memory = given.rpartition("=")
    if not (pattern and equals and memory):
        raise ValueError(f"{given!r} is no pattern with a memory, as PATTERN=CPU")
    return pattern, memory


OVERRIDES = field_flags(
    EngineConfig,
    kv_overrides=row(
        "--override-kv KEY=TYPE:VALUE",
        parse=some("there must be at least one key with a value, as KEY=int:1", _kv_override),
        join=together,
        separator=",",
        help="comma-separated overrides of the file's metadata; types are int, float, bool and str; may be given several times",
    ),
    tensor_overrides=row(
        "-ot, --override-tensor PATTERN=MEMORY",
        parse=some("there must be at least one pattern with a memory, as PATTERN=CPU", _tensor_override),
        join=together,
        separator=",",
        env="LLAMA_ARG_OVERRIDE_TENSOR",
        help="comma-separated overrides of tensor placement by regular expression, as ffn_.*_exps=CPU; the first match applies;"
        " may be given several times",
    ),
    cpu_moe=row(constants={"-cmoe": True, "--cpu-moe": True}, env="LLAMA_ARG_CPU_MOE"),
    n_cpu_moe=row("-ncmoe, --n-cpu-moe", env="LLAMA_ARG_N_CPU_MOE"),
    n_cpu_ffn=row("-ncffn, --n-cpu-ffn", env="LLAMA_ARG_N_CPU_FFN"),
    no_host=row(constants={"--no-host": True}, env="LLAMA_ARG_NO_HOST"),
    offload_kqv=row(
        constants={"-kvo": True, "--kv-offload": True, "-nkvo": False, "--no-kv-offload": False}, env="LLAMA_ARG_KV_OFFLOAD"
    ),
    op_offload=row(constants={"--op-offload": True, "--no-op-offload": False}),
)
"""Flags that override the model file, and the placement of tensors and cache."""
