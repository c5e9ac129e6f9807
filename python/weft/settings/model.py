"""Settings of the model: its source, and the placement of its weights."""

from dataclasses import dataclass

from weft.config import EngineConfig
from weft.hub.source import docker_name, http_address, repo_name
from weft.settings.flags import FlagAlias, field_flags, flag, row
from weft.settings.presets import PRESETS
from weft.settings.values import boolean, items, layers, number, one_of, some, text, together

__all__ = ["LOADING", "ModelSettings"]

_load_mode = one_of("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")


def _first(names: str) -> str | None:
    return next(iter(items(names)), None)


def _maps(mode: str) -> bool:
    return _load_mode(mode) in ("auto", "mmap", "mmap+mlock")


def _locks(mode: str) -> bool:
    return _load_mode(mode) in ("mlock", "mmap+mlock")


def _is_direct(mode: str) -> bool:
    return _load_mode(mode) == "dio"


def _devices(names: str) -> tuple[str, ...]:
    devices = some("there must be at least one device, or 'none'", text)(names)
    return () if devices == ("none",) else devices


def _shares(proportions: str) -> tuple[float, ...]:
    share = number(low=0)
    # llama.cpp accepts slashes as separators too.
    shares = tuple(share(part) for part in items(proportions.replace("/", ",")))
    if not any(shares):
        raise ValueError(f"{proportions!r} gives no GPU a share")
    return shares


def _scaled_adapter(pair: str) -> tuple[str, float]:
    path, colon, scale = pair.rpartition(":")
    if not (path and colon):
        raise ValueError(f"{pair!r} is no file with its scale, as FILE:0.5")
    return path, number()(scale)


_adapters = some("there must be at least one file", lambda path: (path, 1.0))
_scaled_adapters = some("there must be at least one file with its scale, as FILE:0.5", _scaled_adapter)

_LOAD_MODE = ("-lm", "--load-mode")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModelSettings:
    """Settings of the model's source."""

    model: str | None = flag(
        None,
        "-m, --model FNAME",
        env="LLAMA_ARG_MODEL",
        help="GGUF file to serve, or the first part of a split model (default: the demo model that ships with weft)",
    )
    hf_repo: str | None = flag(
        None,
        "-hf, -hfr, --hf-repo USER/MODEL[:QUANT]",
        parse=repo_name,
        env="LLAMA_ARG_HF_REPO",
        help="model repository on the Hugging Face hub, downloaded once; QUANT is case-insensitive (default: Q4_K_M, else Q8_0,"
        " else the first GGUF file)",
    )
    hf_file: str | None = flag(
        None, "-hff, --hf-file FILE", env="LLAMA_ARG_HF_FILE", help="file of that repository, instead of QUANT"
    )
    hf_token: str | None = flag(
        None, "-hft, --hf-token TOKEN", env="HF_TOKEN", help="access token for the hub (default: that of 'hf auth login')"
    )
    model_url: str | None = flag(
        None,
        "-mu, --model-url URL",
        parse=http_address,
        env="LLAMA_ARG_MODEL_URL",
        help="http(s) URL of a GGUF file, or of the first part of a split model; downloaded once",
    )
    docker_repo: str | None = flag(
        None,
        "-dr, --docker-repo [REPO/]MODEL[:QUANT]",
        parse=docker_name,
        env="LLAMA_ARG_DOCKER_REPO",
        help="model in Docker's registry, downloaded once (default: REPO is ai, QUANT is latest)",
    )
    offline: bool = flag(
        False,
        constants={"--offline": True},
        env="LLAMA_ARG_OFFLINE",
        help="use cached downloads only, and never access the network",
    )
    preset: str | None = flag(
        None,
        constants={f"--{name}": name for name in PRESETS},
        help="model on the hub with suitable default settings, which other flags override",
    )
    alias: str | None = flag(
        None,
        "-a, --alias NAMES",
        parse=_first,
        join=lambda first, second: first or second,
        env="LLAMA_ARG_ALIAS",
        help="comma-separated names of the model; responses use the first (default: the file's name)",
    )
    aliases: tuple[str, ...] = flag(
        (),
        also=(FlagAlias(("-a", "--alias"), items, env="LLAMA_ARG_ALIAS"),),
        join=lambda first, second: tuple(dict.fromkeys(first + second)),
        help="all names of -a",
    )
    lora_init_without_apply: bool = flag(
        False,
        constants={"--lora-init-without-apply": True},
        help="load adapters, but keep them off until a request or POST /lora-adapters enables them",
    )


LOADING = field_flags(
    EngineConfig,
    n_gpu_layers=row("-ngl, --gpu-layers, --n-gpu-layers", parse=layers, unset="auto", env="LLAMA_ARG_N_GPU_LAYERS"),
    use_mmap=row(
        "-lm, --load-mode MODE",
        parse=_maps,
        env="LLAMA_ARG_LOAD_MODE",
        also=(
            FlagAlias(("--mmap",), value=True),
            FlagAlias(("--no-mmap",), value=False),
            FlagAlias((), boolean, env="LLAMA_ARG_MMAP"),
        ),
        help="how to load the file: mmap maps it, none reads it, mlock reads and locks it in memory, mmap+mlock maps and locks"
        " it, dio reads it with direct I/O, auto is mmap (default: auto)",
    ),
    use_mlock=row(
        also=(
            FlagAlias(_LOAD_MODE, _locks, env="LLAMA_ARG_LOAD_MODE"),
            FlagAlias(("--mlock",), value=True),
            FlagAlias((), boolean, env="LLAMA_ARG_MLOCK"),
        )
    ),
    direct_io=row(
        also=(
            FlagAlias(_LOAD_MODE, _is_direct, env="LLAMA_ARG_LOAD_MODE"),
            FlagAlias(("-dio", "--direct-io"), value=True),
            FlagAlias(("-ndio", "--no-direct-io"), value=False),
            FlagAlias((), boolean, env="LLAMA_ARG_DIO"),
        )
    ),
    check_tensors=row(constants={"--check-tensors": True}),
    devices=row(
        "-dev, --device NAMES",
        parse=_devices,
        separator=",",
        env="LLAMA_ARG_DEVICE",
        help="devices to use in addition to the CPU, as CUDA0,CUDA1; 'none' is none (default: all)",
    ),
    split_mode=row("-sm, --split-mode", env="LLAMA_ARG_SPLIT_MODE"),
    main_gpu=row("-mg, --main-gpu INDEX", env="LLAMA_ARG_MAIN_GPU"),
    tensor_split=row(
        "-ts, --tensor-split SHARES",
        parse=_shares,
        separator=",",
        env="LLAMA_ARG_TENSOR_SPLIT",
        help="proportion of the model on each GPU, as 3,1 (default: chosen by llama.cpp)",
    ),
    numa=row("--numa", bare="distribute", env="LLAMA_ARG_NUMA"),
    repack=row(constants={"--repack": True, "-nr": False, "--no-repack": False}, env="LLAMA_ARG_REPACK"),
    lora=row(
        "--lora FNAMES",
        parse=_adapters,
        join=together,
        also=(FlagAlias(("--lora-scaled",), _scaled_adapters),),
        help="comma-separated LoRA adapters (GGUF) to load; may be given several times. --lora-scaled sets a scale for each, as"
        " FNAME:0.5,FNAME:0.7",
    ),
)
"""Flags of loading and placing the weights and adapters."""
