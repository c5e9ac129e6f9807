"""Which model, and where its weights go."""

from collections.abc import Mapping
from dataclasses import dataclass

from weft.config import EngineConfig
from weft.hub.source import docker_name, http_address, repo_name
from weft.settings.flags import Flag, Way, flag, row
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
    # llama.cpp takes slashes too.
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
    """Which model, and where its weights go."""

    model: str | None = flag(
        None,
        MODEL,
        "-m",
        "--model",
        metavar="FNAME",
        env="LLAMA_ARG_MODEL",
        help="GGUF file to serve; of a split model, its first part (default: the demo model that comes with weft)",
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
        help="model of the Hugging Face hub, which is downloaded once; QUANT in any case (default: Q4_K_M, else Q8_0, else the"
        " first GGUF file)",
    )
    hf_file: str | None = flag(
        None,
        MODEL,
        "-hff",
        "--hf-file",
        metavar="FILE",
        env="LLAMA_ARG_HF_FILE",
        help="file of that repository, in place of QUANT",
    )
    hf_token: str | None = flag(
        None,
        MODEL,
        "-hft",
        "--hf-token",
        metavar="TOKEN",
        env="HF_TOKEN",
        help="token that the hub is shown (default: what 'hf auth login' has kept)",
    )
    model_url: str | None = flag(
        None,
        MODEL,
        "-mu",
        "--model-url",
        metavar="URL",
        parse=http_address,
        env="LLAMA_ARG_MODEL_URL",
        help="http(s) address of a GGUF file, which is downloaded once; of a split model, its first part",
    )
    docker_repo: str | None = flag(
        None,
        MODEL,
        "-dr",
        "--docker-repo",
        metavar="[REPO/]MODEL[:QUANT]",
        parse=docker_name,
        env="LLAMA_ARG_DOCKER_REPO",
        help="model of Docker's registry, which is downloaded once (default: REPO is ai, QUANT latest)",
    )
    offline: bool = flag(
        False,
        MODEL,
        constants={"--offline": True},
        parse=boolean,
        env="LLAMA_ARG_OFFLINE",
        help="take what is cached of a model that is named, and never use the network",
    )
    preset: str | None = flag(
        None,
        MODEL,
        constants={f"--{name}": name for name in PRESETS},
        help="a model of the hub with settings that suit it, each of which can still be given",
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
        help="names of the model, with commas between them; the first stands in answers (default: the file's name)",
    )
    aliases: tuple[str, ...] = flag(
        (),
        MODEL,
        also=(Way(("-a", "--alias"), items, env="LLAMA_ARG_ALIAS"),),
        join=lambda first, second: tuple(dict.fromkeys(first + second)),
        help="all that -a names",
    )
    lora_init_without_apply: bool = flag(
        False,
        MODEL,
        constants={"--lora-init-without-apply": True},
        help="load adapters, but leave them off until a request or POST /lora-adapters names them",
    )


LOADING: Mapping[str, Flag] = {
    "n_gpu_layers": row(
        MODEL,
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        parse=layers,
        env="LLAMA_ARG_N_GPU_LAYERS",
        help="layers to keep in GPU memory: a number, 'auto' or 'all' (default: auto, as many as there are)",
    ),
    "use_mmap": row(
        MODEL,
        *_LOAD_MODE,
        metavar="MODE",
        parse=_maps,
        env="LLAMA_ARG_LOAD_MODE",
        also=(
            Way(("--mmap",), None, value=True),
            Way(("--no-mmap",), None, value=False),
            Way((), boolean, env="LLAMA_ARG_MMAP"),
        ),
        help="how the file is loaded: mmap maps it, none reads it, mlock reads it and keeps it from being swapped out, mmap+mlock"
        " maps and keeps it, dio reads it past the system's cache, auto is mmap (default: auto)",
    ),
    "use_mlock": row(
        MODEL,
        also=(
            Way(_LOAD_MODE, _locks, env="LLAMA_ARG_LOAD_MODE"),
            Way(("--mlock",), None, value=True),
            Way((), boolean, env="LLAMA_ARG_MLOCK"),
        ),
        help="keep the weights from being swapped out, as -lm mlock",
    ),
    "direct_io": row(
        MODEL,
        also=(
            Way(_LOAD_MODE, _is_direct, env="LLAMA_ARG_LOAD_MODE"),
            Way(("-dio", "--direct-io"), None, value=True),
            Way(("-ndio", "--no-direct-io"), None, value=False),
            Way((), boolean, env="LLAMA_ARG_DIO"),
        ),
        help="read the file past the system's cache, as -lm dio",
    ),
    "check_tensors": row(
        MODEL,
        constants={"--check-tensors": True},
        help="refuse a file with weights that are no numbers",
    ),
    "devices": row(
        MODEL,
        "-dev",
        "--device",
        metavar="NAMES",
        parse=_devices,
        separator=",",
        env="LLAMA_ARG_DEVICE",
        help="devices beside the CPU that take part, as CUDA0,CUDA1; 'none' is none (default: all there are)",
    ),
    "split_mode": row(
        MODEL,
        "-sm",
        "--split-mode",
        metavar="MODE",
        parse=one_of("layer", "row", "none"),
        env="LLAMA_ARG_SPLIT_MODE",
        help="what each of several GPUs holds: layers, or rows of every tensor, or with none one GPU all (default: layer)",
    ),
    "main_gpu": row(
        MODEL,
        "-mg",
        "--main-gpu",
        metavar="INDEX",
        parse=within(EngineConfig, "main_gpu"),
        env="LLAMA_ARG_MAIN_GPU",
        help="GPU that holds all where nothing is split, and small tensors where rows are (default: 0)",
    ),
    "tensor_split": row(
        MODEL,
        "-ts",
        "--tensor-split",
        metavar="SHARES",
        parse=_shares,
        separator=",",
        env="LLAMA_ARG_TENSOR_SPLIT",
        help="each GPU's share in proportion to their sum, as 3,1 (default: llama.cpp's choice)",
    ),
    "numa": row(
        MODEL,
        "--numa",
        metavar="TYPE",
        parse=one_of("distribute", "isolate", "numactl"),
        bare="distribute",
        env="LLAMA_ARG_NUMA",
        help="how threads are bound on a machine with several nodes of memory: distribute spreads them evenly, isolate keeps them"
        " on one, numactl does as numactl says (default: not at all)",
    ),
    "repack": row(
        MODEL,
        constants={"--repack": True, "-nr": False, "--no-repack": False},
        parse=boolean,
        env="LLAMA_ARG_REPACK",
        help="rearrange weights of some formats as llama.cpp's own kernels want them, which gives up mapping these, or keep them "
        "as they are in the file (default: kept where Weft's kernels compute them; see --kernels)",
    ),
    "lora": row(
        MODEL,
        "--lora",
        metavar="FNAMES",
        parse=_adapters,
        join=lambda first, second: first + second,
        also=(Way(("--lora-scaled",), _scaled_adapters),),
        help="adapters in GGUF to load beside the model, with commas between them; may be given several times. --lora-scaled"
        " gives each a scale, as FNAME:0.5,FNAME:0.7",
    ),
}
"""Where the weights go, and what is loaded beside them: fields of `EngineConfig`."""
