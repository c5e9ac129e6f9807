"""Where a model's weights go, and how they are read."""

from collections.abc import Sequence
from typing import Literal, TypedDict

__all__ = ["Placement"]


class Placement(TypedDict, total=False):
    """Keywords of `Engine` and `Model.load` that few need: for several GPUs or nodes of memory, and for files in doubt."""

    direct_io: bool
    """Reads the file past the operating system's cache where that is possible; then `mmap` and `mlock` do not count."""
    check_tensors: bool
    """Refuses a file with weights that are no numbers."""
    devices: Sequence[str] | None
    """Devices beside the CPU that take part, by ggml's names (`CUDA0`); None is all there are, an empty sequence is none."""
    split_mode: Literal["layer", "row", "none"]
    """What each of several GPUs holds: layers, which is the default, or rows of every tensor, or with "none" one GPU all."""
    main_gpu: int
    """The GPU that holds all where nothing is split, and small tensors where rows are; from 0, which is the default."""
    tensor_split: Sequence[float]
    """Each GPU's share, in proportion to their sum; empty leaves the shares to llama.cpp."""
    numa: Literal["distribute", "isolate", "numactl"] | None
    """How threads are bound on a machine with several nodes of memory, once for the whole process; None is not at all."""
    repack: bool | None
    """Whether llama.cpp rearranges weights of some formats as its own products want them; None is where these are to compute."""
