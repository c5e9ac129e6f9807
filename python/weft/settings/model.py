"""Which model, and where its weights go."""

from dataclasses import dataclass

from weft.flags import Way, flag
from weft.values import boolean, items, layers, one_of

__all__ = ["ModelSettings"]

MODEL = "model"

_load_mode = one_of("auto", "none", "mmap", "mlock", "mmap+mlock")


def _first(names: str) -> str | None:
    return next(iter(items(names)), None)


def _maps(mode: str) -> bool:
    return _load_mode(mode) in ("auto", "mmap", "mmap+mlock")


def _locks(mode: str) -> bool:
    return _load_mode(mode) in ("mlock", "mmap+mlock")


_LOAD_MODE = ("-lm", "--load-mode")


@dataclass(frozen=True, kw_only=True)
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
    gpu_layers: int | None = flag(
        None,
        MODEL,
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        parse=layers,
        env="LLAMA_ARG_N_GPU_LAYERS",
        help="layers to keep in GPU memory: a number, 'auto' or 'all' (default: auto, as many as there are)",
    )
    mmap: bool = flag(
        True,
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
        " maps and keeps it, auto is mmap (default: auto)",
    )
    mlock: bool = flag(
        False,
        MODEL,
        also=(
            Way(_LOAD_MODE, _locks, env="LLAMA_ARG_LOAD_MODE"),
            Way(("--mlock",), None, value=True),
            Way((), boolean, env="LLAMA_ARG_MLOCK"),
        ),
        help="keep the weights from being swapped out, as -lm mlock",
    )
