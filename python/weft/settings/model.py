"""Settings of the model: its source, and the placement of its weights."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft.config import EngineConfig
from weft.hub.source import docker_name, http_address, repo_name
from weft.settings.flags import Flag, FlagAlias, flag, row
from weft.settings.presets import PRESETS
from weft.settings.values import boolean, items, layers, number, one_of, within

__all__ = ["LOADING", "ModelSettings"]

MODEL = "model"

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
    if not (devices := items(names)):
        raise ValueError("there must be at least one device, or 'none'")
    return () if devices == ("none",) else devices


def _shares(proportions: str) -> tuple[float, ...]:
    share = number(low=0)
    # llama.cpp accepts slashes as separators too.
    shares = tuple(share(part) for part in items(proportions.replace("/", ",")))
    if not any(shares):
        raise ValueError(f"{proportions!r} gives no GPU a share")
    return shares


def _adapters(names: str) -> tuple[tuple[str, float], ...]:
    if not (paths := items(names)):
        raise ValueError("there must be at least one file")
    return tuple((path, 1.0) for path in paths)


def _scaled_adapters(pairs: str) -> tuple[tuple[str, float], ...]:
    scale = number()
    adapters = []
    for pair in items(pairs):
        path, colon, text = pair.rpartition(":")
        if not (path and colon):
            raise ValueError(f"{pair!r} is no file with its scale, as FILE:0.5")
        adapters.append((path, scale(text)))
    if not adapters:
        raise ValueError("there must be at least one file with its scale, as FILE:0.5")
    return tuple(adapters)


_LOAD_MODE = ("-lm", "--load-mode")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModelSettings:
    """Settings of the model's source."""

    model: str | None = flag(
        None,
        MODEL,
        "-m",
        "--model",
        metavar="FNAME",
        env="LLAMA_ARG_MODEL",
        help="GGUF file to serve, or the first part of a split model (default: the demo model that ships with weft)",
    )
    hf_repo: str | None = flag(
        None,
        MODEL,
        "-hf",
        "-hfr",
        "--hf-repo",
        metavar="USER/MODEL[:QUANT]",
        parse=repo_name,
        env="LLAMA_ARG_HF_REPO",
        help="model repository on the Hugging Face hub, downloaded once; QUANT is case-insensitive (default: Q4_K_M, else Q8_0, "
        "else"
        " the first GGUF file)",
    )
    hf_file: str | None = flag(
        None,
        MODEL,
        "-hff",
        "--hf-file",
        metavar="FILE",
        env="LLAMA_ARG_HF_FILE",
        help="file of that repository, instead of QUANT",
    )
    hf_token: str | None = flag(
        None,
        MODEL,
        "-hft",
        "--hf-token",
        metavar="TOKEN",
        env="HF_TOKEN",
        help="access token for the hub (default: that of 'hf auth login')",
    )
    model_url: str | None = flag(
        None,
        MODEL,
        "-mu",
        "--model-url",
        metavar="URL",
        parse=http_address,
        env="LLAMA_ARG_MODEL_URL",
        help="http(s) URL of a GGUF file, or of the first part of a split model; downloaded once",
    )
    docker_repo: str | None = flag(
        None,
        MODEL,
        "-dr",
        "--docker-repo",
        metavar="[REPO/]MODEL[:QUANT]",
        parse=docker_name,
        env="LLAMA_ARG_DOCKER_REPO",
        help="model in Docker's registry, downloaded once (default: REPO is ai, QUANT is latest)",
    )
    offline: bool = flag(
        False,
        MODEL,
        constants={"--offline": True},
        parse=boolean,
        env="LLAMA_ARG_OFFLINE",
        help="use cached downloads only, and never access the network",
    )
    preset: str | None = flag(
        None,
        MODEL,
        constants={f"--{name}": name for name in PRESETS},
        help="model on the hub with suitable default settings, which other flags override",
    )
    alias: str | None = flag(
        None,
        MODEL,
        "-a",
        "--alias",
        metavar="NAMES",
        parse=_first,
        join=lambda first, second: first or second,
        env="LLAMA_ARG_ALIAS",
        help="comma-separated names of the model; responses use the first (default: the file's name)",
    )
    aliases: tuple[str, ...] = flag(
        (),
        MODEL,
        also=(FlagAlias(("-a", "--alias"), items, env="LLAMA_ARG_ALIAS"),),
        join=lambda first, second: tuple(dict.fromkeys(first + second)),
        help="all names of -a",
    )
    lora_init_without_apply: bool = flag(
        False,
        MODEL,
        constants={"--lora-init-without-apply": True},
        help="load adapters, but keep them off until a request or POST /lora-adapters enables them",
    )


LOADING: Mapping[str, Flag] = {
    "n_gpu_layers": row(
        MODEL,
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        parse=layers,
        env="LLAMA_ARG_N_GPU_LAYERS",
        help="number of layers to keep in GPU memory, 'auto' or 'all' (default: auto, which is all)",
    ),
    "use_mmap": row(
        MODEL,
        *_LOAD_MODE,
        metavar="MODE",
        parse=_maps,
        env="LLAMA_ARG_LOAD_MODE",
        also=(
            FlagAlias(("--mmap",), None, value=True),
            FlagAlias(("--no-mmap",), None, value=False),
            FlagAlias((), boolean, env="LLAMA_ARG_MMAP"),
        ),
        help="how to load the file: mmap maps it, none reads it, mlock reads and locks it in memory, mmap+mlock maps and locks "
        "it, dio"
        " reads it with direct I/O, auto is mmap (default: auto)",
    ),
    "use_mlock": row(
        MODEL,
        also=(
            FlagAlias(_LOAD_MODE, _locks, env="LLAMA_ARG_LOAD_MODE"),
            FlagAlias(("--mlock",), None, value=True),
            FlagAlias((), boolean, env="LLAMA_ARG_MLOCK"),
        ),
        help="lock the weights in memory, so that they are never swapped out, as -lm mlock",
    ),
    "direct_io": row(
        MODEL,
        also=(
            FlagAlias(_LOAD_MODE, _is_direct, env="LLAMA_ARG_LOAD_MODE"),
            FlagAlias(("-dio", "--direct-io"), None, value=True),
            FlagAlias(("-ndio", "--no-direct-io"), None, value=False),
            FlagAlias((), boolean, env="LLAMA_ARG_DIO"),
        ),
        help="read the file with direct I/O, bypassing the page cache, as -lm dio",
    ),
    "check_tensors": row(
        MODEL,
        constants={"--check-tensors": True},
        help="reject a file that has weights that are not finite numbers",
    ),
    "devices": row(
        MODEL,
        "-dev",
        "--device",
        metavar="NAMES",
        parse=_devices,
        separator=",",
        env="LLAMA_ARG_DEVICE",
        help="devices to use in addition to the CPU, as CUDA0,CUDA1; 'none' is none (default: all)",
    ),
    "split_mode": row(
        MODEL,
        "-sm",
        "--split-mode",
        metavar="MODE",
        parse=one_of("layer", "row", "none"),
        env="LLAMA_ARG_SPLIT_MODE",
        help="how to split the model across GPUs: by layer, by row of each tensor, or none for a single GPU (default: layer)",
    ),
    "main_gpu": row(
        MODEL,
        "-mg",
        "--main-gpu",
        metavar="INDEX",
        parse=within(EngineConfig, "main_gpu"),
        env="LLAMA_ARG_MAIN_GPU",
        help="GPU for the whole model with -sm none, or for small tensors with -sm row (default: 0)",
    ),
    "tensor_split": row(
        MODEL,
        "-ts",
        "--tensor-split",
        metavar="SHARES",
        parse=_shares,
        separator=",",
        env="LLAMA_ARG_TENSOR_SPLIT",
        help="proportion of the model on each GPU, as 3,1 (default: chosen by llama.cpp)",
    ),
    "numa": row(
        MODEL,
        "--numa",
        metavar="TYPE",
        parse=one_of("distribute", "isolate", "numactl"),
        bare="distribute",
        env="LLAMA_ARG_NUMA",
        help="thread placement on a machine with several NUMA nodes: distribute spreads threads evenly, isolate keeps them on "
        "one node,"
        " numactl uses the CPU map of numactl (default: none)",
    ),
    "repack": row(
        MODEL,
        constants={"--repack": True, "-nr": False, "--no-repack": False},
        parse=boolean,
        env="LLAMA_ARG_REPACK",
        help="repack weights of some formats for llama.cpp's own kernels, which cannot be memory-mapped then, or keep them in "
        "their"
        " on-disk layout (default: kept where Weft's kernels compute them; see --kernels)",
    ),
    "lora": row(
        MODEL,
        "--lora",
        metavar="FNAMES",
        parse=_adapters,
        join=lambda first, second: first + second,
        also=(FlagAlias(("--lora-scaled",), _scaled_adapters),),
        help="comma-separated LoRA adapters (GGUF) to load; may be given several times. --lora-scaled sets a scale for each, as"
        " FNAME:0.5,FNAME:0.7",
    ),
}
"""Fields of `EngineConfig` about loading and placing the weights and adapters."""
