"""Parsers of the engine's settings and of sampling parameters, where the type and bounds of a field do not determine them."""

import re
from collections.abc import Callable, Mapping
from operator import add
from typing import Any, get_args

from weft.config import MAX_DRAFT, MAX_THREADS, DraftType, EngineConfig
from weft.sampling_fields import SAMPLERS, samplers_of_letters, samplers_of_names
from weft.settings.flags import FlagAlias, field_parser
from weft.settings.values import (
    biases,
    boolean,
    items,
    layers,
    number,
    on_off_auto,
    one_of,
    optional,
    some,
    sorted_union,
    unset_at,
    unset_below,
    whole,
)

_INT_BITS = 32

_load_mode = one_of("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")


def _is_load_mode(*modes: str) -> Callable[[str], bool]:
    return lambda mode: _load_mode(mode) in modes


def _devices(names: str) -> tuple[str, ...]:
    devices = some("there must be at least one device, or 'none'", str)(names)
    return () if devices == ("none",) else devices


def _shares(proportions: str) -> tuple[float, ...]:
    # llama.cpp accepts slashes as separators too.
    shares = tuple(map(number(low=0), items(proportions.replace("/", ","))))
    if not any(shares):
        raise ValueError(f"{proportions!r} has no number above 0")
    return shares


def _scaled_adapter(pair: str) -> tuple[str, float]:
    path, colon, scale = pair.rpartition(":")
    if not (path and colon):
        raise ValueError(f"{pair!r} is not FILE:SCALE, for example FILE:0.5")
    return path, number()(scale)


def _truth(given: str) -> bool:
    if given not in ("true", "false"):
        raise ValueError(f"{given!r} is not true or false")
    return given == "true"


_TYPES: Mapping[str, Callable[[str], bool | int | float | str]] = {
    "int": whole(-(2 ** (_INT_BITS - 1)), 2**_INT_BITS - 1),
    "float": number(),
    "bool": _truth,
    "str": str,
}


def _kv_override(given: str) -> tuple[str, bool | int | float | str]:
    key, equals, typed = given.partition("=")
    kind, colon, value = typed.partition(":")
    if not (key and equals and colon and kind in _TYPES):
        raise ValueError(f"{given!r} is not KEY=TYPE:VALUE, for example KEY=int:1, KEY=float:0.5, KEY=bool:true or KEY=str:text")
    return key, _TYPES[kind](value)


def _tensor_override(given: str) -> tuple[str, str]:
    pattern, equals, memory = given.rpartition("=")
    if not (pattern and equals and memory):
        raise ValueError(f"{given!r} is not PATTERN=BUFFER, for example PATTERN=CPU")
    return pattern, memory


def _is_on_gpu(device: str) -> bool:
    if device != "none":
        raise ValueError(f"{device!r} is not supported; use 'none' for the CPU, or omit the flag for the first GPU")
    return False


def _mask(text: str) -> tuple[int, ...]:
    digits = text.removeprefix("0x")
    if not re.fullmatch(rf"[0-9a-fA-F]{{1,{MAX_THREADS // 4}}}", digits):
        raise ValueError(f"{text!r} is not a mask of at most {MAX_THREADS // 4} hexadecimal digits")
    if not (mask := int(digits, 16)):
        raise ValueError(f"{text!r} selects no processor")
    return tuple(cpu for cpu in range(MAX_THREADS) if mask >> cpu & 1)


def _range(text: str) -> tuple[int, ...]:
    """Parses llama-server's ranges; either end may be left out."""
    if (match := re.fullmatch(r"\s*([0-9]*)-([0-9]*)\s*", text)) is None:
        raise ValueError(f"{text!r} is not a range of processors such as 0-3")
    cpu = whole(0, MAX_THREADS - 1)
    first, last = cpu(match[1] or "0"), cpu(match[2] or str(MAX_THREADS - 1))
    if first > last:
        raise ValueError(f"{text!r} is reversed: its first number is the larger one")
    return tuple(range(first, last + 1))


def _chain(names: str) -> tuple[str, ...]:
    return samplers_of_names(name for name in names.split(";") if name.strip())


def _of(name: str) -> Callable[[str], Any]:
    return field_parser(EngineConfig, name)


def _is_0(text: str) -> bool:
    return number()(text) == 0


def _is_negative(text: str) -> bool:
    return number()(text) < 0


_OF_TEXT = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
_OF_MODELS = get_args(DraftType)


def _speculation(names: str) -> str:
    """Parses llama-server's types of speculative decoding. All types of text select the same index."""
    types = items(names)
    kinds = {"none": "off", "auto": "auto", **dict.fromkeys((*_OF_TEXT, *_OF_MODELS), "on")}
    modes = {one_of(*kinds)(each) and kinds[each] for each in types} - {"off"}
    return "off" if not modes else "on" if "on" in modes else "auto"


def _draft_type(names: str) -> str | None:
    """Returns the type of draft models among types of speculative decoding."""
    types = [each for each in items(names) if each in _OF_MODELS]
    if len(types) > 1:
        raise ValueError(f"{' and '.join(types)} cannot be combined: there is one draft model")
    return types[0] if types else None


_MAPS = ("simple", "map-k", "map-k4v")
_DRAFT_LENGTHS = (
    *("--draft", "--draft-n", "--draft-max", "--spec-ngram-mod-n-max", "--spec-ngram-size-m"),
    *(f"--spec-ngram-{each}-size-m" for each in _MAPS),
)
_MATCH_LENGTHS = ("--spec-ngram-size-n", *(f"--spec-ngram-{each}-size-n" for each in _MAPS))


def _draft_length(text: str) -> int:
    """Parses a number of drafted tokens, for which llama-server has a higher bound."""
    return min(whole(0, 1024)(text), MAX_DRAFT)


_frequency_scale = _of("rope_freq_scale")
_tokens = unset_at(0, _of("n_ctx"), "leaves it to the model")
_threads = unset_below(1, _of("n_threads"), "or less selects the number for this machine")

TEXTS: Mapping[str, Mapping[str, Any]] = {
    "n_gpu_layers": {"parse": layers},
    "use_mmap": {
        "parse": _is_load_mode("auto", "mmap", "mmap+mlock"),
        "also": (FlagAlias((), boolean, env="LLAMA_ARG_MMAP"),),
    },
    "use_mlock": {
        "also": (
            FlagAlias(("-lm", "--load-mode"), _is_load_mode("mlock", "mmap+mlock"), env="LLAMA_ARG_LOAD_MODE"),
            FlagAlias((), boolean, env="LLAMA_ARG_MLOCK"),
        )
    },
    "direct_io": {
        "also": (
            FlagAlias(("-lm", "--load-mode"), _is_load_mode("dio"), env="LLAMA_ARG_LOAD_MODE"),
            FlagAlias((), boolean, env="LLAMA_ARG_DIO"),
        )
    },
    "devices": {"parse": _devices},
    "tensor_split": {"parse": _shares},
    "lora": {
        "parse": some("there must be at least one file", lambda path: (path, 1.0)),
        "join": add,
        "also": (
            FlagAlias(("--lora-scaled",), some("there must be at least one FILE:SCALE, for example FILE:0.5", _scaled_adapter)),
        ),
    },
    "kv_overrides": {
        "parse": some("there must be at least one KEY=TYPE:VALUE, for example KEY=int:1", _kv_override),
        "join": add,
    },
    "tensor_overrides": {
        "parse": some("there must be at least one PATTERN=BUFFER, for example PATTERN=CPU", _tensor_override),
        "join": add,
    },
    "mmproj_offload": {"also": (FlagAlias(("-mmdev", "--mmproj-device"), _is_on_gpu, env="MTMD_BACKEND_DEVICE"),)},
    "n_ctx": {"parse": _tokens, "also": (FlagAlias(("--num-ctx-tokens",), _tokens),)},
    "n_slots": {"parse": unset_at(-1, _of("n_slots"), "(the default) leaves it to the server")},
    "rope_freq_scale": {
        "parse": optional(_frequency_scale, _is_0, "0 leaves it to the model"),
        "also": (FlagAlias(("--rope-scale",), lambda text: 1 / _frequency_scale(text), env="LLAMA_ARG_ROPE_SCALE"),),
    },
    "rope_freq_base": {"parse": optional(_of("rope_freq_base"), _is_0, "0 leaves it to the model")},
    "yarn_orig_ctx": {"parse": unset_below(1, _of("yarn_orig_ctx"), "or less leaves it to the model")},
    "n_threads": {"parse": _threads, "also": (FlagAlias(("--num-threads",), _threads),)},
    "n_threads_batch": {"parse": _threads},
    "flash_attention": {"parse": on_off_auto},
    "max_token_gap_ms": {"parse": number(above=0)},
    "speculation": {"parse": _speculation},
    "max_draft": {"parse": _draft_length, "also": (FlagAlias(_DRAFT_LENGTHS, _draft_length, env="LLAMA_ARG_DRAFT_MAX"),)},
    "draft_type": {"also": (FlagAlias(("--spec-type",), _draft_type, env="LLAMA_ARG_SPEC_TYPE"),)},
    "draft_n_gpu_layers": {"parse": layers},
    "draft_devices": {"parse": _devices},
    "draft_tensor_overrides": {
        "parse": some("there must be at least one PATTERN=BUFFER, for example PATTERN=CPU", _tensor_override),
        "join": add,
    },
    "min_draft_match": {"also": (FlagAlias(_MATCH_LENGTHS, _of("min_draft_match")),)},
    "cpus": {"parse": _mask, "join": sorted_union, "also": (FlagAlias(("-Cr", "--cpu-range"), _range),)},
    "cpus_batch": {"parse": _mask, "join": sorted_union, "also": (FlagAlias(("-Crb", "--cpu-range-batch"), _range),)},
    "pooling": {"also": (FlagAlias((), lambda text: "rank" if boolean(text) else None, env="LLAMA_ARG_RERANKING"),)},
    "samplers": {
        "parse": _chain,
        "help": "sampler chain, separated by ; --sampler-seq takes letters instead, such as edskypmxt"
        f" (default: {';'.join(SAMPLERS)})",
        "also": (FlagAlias(("--sampler-seq", "--sampling-seq"), samplers_of_letters),),
    },
    "dry_sequence_breakers": {
        "parse": lambda given: () if given == "none" else (given,),
        "join": lambda first, second: second and first + second,
    },
    "adaptive_target": {"parse": number(high=1)},
    "logit_bias": {"parse": biases, "join": add},
    **{
        f"image_{end}_tokens": {"parse": unset_at(-1, _of(f"image_{end}_tokens"), "(the default) leaves it to the projector")}
        for end in ("min", "max")
    },
    **{
        f"yarn_{name}": {"parse": optional(_of(f"yarn_{name}"), _is_negative, "a negative number leaves it to the model")}
        for name in ("ext_factor", "attn_factor", "beta_slow", "beta_fast")
    },
}
"""Fields of `Flag` that are not words, by setting."""
