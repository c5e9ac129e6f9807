"""What is said in place of the model's file: values of its metadata, and where its tensors go."""

from collections.abc import Callable, Mapping

from weft.config import EngineConfig
from weft.settings.flags import Flag, row
from weft.settings.values import boolean, items, number, text, together, whole, within

__all__ = ["OVERRIDES"]

MODEL = "model"

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


def _kv_overrides(given: str) -> tuple[tuple[str, bool | int | float | str], ...]:
    overrides = []
    for item in items(given):
        key, equals, typed = item.partition("=")
        kind, colon, value = typed.partition(":")
        if not (key and equals and colon and kind in _TYPES):
            raise ValueError(f"{item!r} is no key with a value, as KEY=int:1, KEY=float:0.5, KEY=bool:true or KEY=str:text")
        overrides.append((key, _TYPES[kind](value)))
    if not overrides:
        raise ValueError("there must be at least one key with a value, as KEY=int:1")
    return tuple(overrides)


def _tensor_overrides(given: str) -> tuple[tuple[str, str], ...]:
    overrides = []
    for item in items(given):
        pattern, equals, memory = item.rpartition("=")
        if not (pattern and equals and memory):
            raise ValueError(f"{item!r} is no pattern with a memory, as PATTERN=CPU")
        overrides.append((pattern, memory))
    if not overrides:
        raise ValueError("there must be at least one pattern with a memory, as PATTERN=CPU")
    return tuple(overrides)


OVERRIDES: Mapping[str, Flag] = {
    "kv_overrides": row(
        MODEL,
        "--override-kv",
        metavar="KEY=TYPE:VALUE",
        parse=_kv_overrides,
        join=together,
        separator=",",
        help="values of the file's metadata that are others than it says, with commas between them; types are int, float, bool"
        " and str; may be given several times",
    ),
    "tensor_overrides": row(
        MODEL,
        "-ot",
        "--override-tensor",
        metavar="PATTERN=MEMORY",
        parse=_tensor_overrides,
        join=together,
        separator=",",
        env="LLAMA_ARG_OVERRIDE_TENSOR",
        help=r"where tensors go whose names have a pattern, as ffn_.*_exps=CPU, with commas between them; the first that is found"
        " counts; may be given several times",
    ),
    "cpu_moe": row(
        MODEL,
        constants={"-cmoe": True, "--cpu-moe": True},
        parse=boolean,
        env="LLAMA_ARG_CPU_MOE",
        help="keep the experts of every layer in the CPU's memory",
    ),
    "n_cpu_moe": row(
        MODEL,
        "-ncmoe",
        "--n-cpu-moe",
        parse=within(EngineConfig, "n_cpu_moe"),
        env="LLAMA_ARG_N_CPU_MOE",
        help="layers, from the first one on, whose experts stay in the CPU's memory (default: 0)",
    ),
    "n_cpu_ffn": row(
        MODEL,
        "-ncffn",
        "--n-cpu-ffn",
        parse=within(EngineConfig, "n_cpu_ffn"),
        env="LLAMA_ARG_N_CPU_FFN",
        help="layers, from the first one on, whose dense feed-forward weights stay in the CPU's memory (default: 0)",
    ),
    "no_host": row(
        MODEL,
        constants={"--no-host": True},
        parse=boolean,
        env="LLAMA_ARG_NO_HOST",
        help="keep weights of the CPU out of memory that a GPU reads faster, so that llama.cpp may rearrange them",
    ),
    "offload_kqv": row(
        MODEL,
        constants={"-kvo": True, "--kv-offload": True, "-nkvo": False, "--no-kv-offload": False},
        parse=boolean,
        env="LLAMA_ARG_KV_OFFLOAD",
        help="keep the cache on the GPU that has its layer, or in the machine's memory (default: on the GPU)",
    ),
    "op_offload": row(
        MODEL,
        constants={"--op-offload": True, "--no-op-offload": False},
        parse=boolean,
        help="let a GPU compute large products with weights that are in the machine's memory, or not (default: yes)",
    ),
}
"""What is said in place of the model's file, and where its tensors and its cache go: fields of `EngineConfig`."""
