"""What was measured to be fastest, kept between starts: one small file per model, machine and build."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from weft._native import Hardware, Model, Timing, tune
from weft.config import EngineConfig, Kernels

__all__ = ["Conditions", "Measured", "Tuned", "read", "tune_file", "write"]

Progress = Callable[[float], object] | None
"""Is told how much is done, 0 to 1."""


class Conditions(NamedTuple):
    """What a timing holds for, beside the model, the machine and the build."""

    n_gpu_layers: int | None
    type_k: str
    type_v: str
    kernels: Kernels
    repack: bool | None

    @classmethod
    def of(cls, config: EngineConfig) -> "Conditions":
        """Those of an engine that is to be so."""
        return cls(config.n_gpu_layers, config.type_k, config.type_v, config.kernels, config.repack)


class Measured(msgspec.Struct, frozen=True):
    """One timing: the seconds that a prompt of 1,000 tokens would take, or eight branches of it with 128 tokens each."""

    work: str
    flash_attention: bool | None
    """Whether llama.cpp's attention ran as one fused kernel; None where Weft's own computed."""
    threads: int
    seconds: float | None
    """None where there was no time to measure it."""
    repacked: bool = False
    """Whether the weights lay as llama.cpp's own products want them."""


class Tuned(msgspec.Struct, frozen=True):
    """What a tune file holds."""

    flash_attention: bool | None
    threads: Annotated[int, msgspec.Meta(ge=1, le=512)]
    threads_batch: Annotated[int, msgspec.Meta(ge=1, le=512)]
    model: str
    """What it was measured for, in words."""
    cpu: str
    measured: tuple[Measured, ...]

    @property
    def choice(self) -> tuple[bool | None, int, int]:
        """As the compiled engine takes it."""
        return self.flash_attention, self.threads, self.threads_batch

    @property
    def seconds(self) -> float:
        """What the prompt and its branches take together, as they were chosen to be computed."""
        chosen = {("prompt", self.threads_batch), ("branches", self.threads)}
        of_these = (timing for timing in self.measured if (timing.work, timing.threads) in chosen)
        return sum(timing.seconds or 0.0 for timing in of_these if timing.flash_attention == self.flash_attention)

    @classmethod
    def measure(cls, model: Model, conditions: Conditions, *, budget_s: float, on_progress: Progress = None) -> "Tuned":
        """Times the candidates, for about `budget_s` seconds at most. Blocks.

        Raises:
            InvalidConfig: The model cannot have a cache of these formats, or its context does not fit into memory.
            DecodeError: The model could not compute.
        """
        _, type_k, type_v, kernels, _ = conditions
        tuning = tune(model, type_k=type_k, type_v=type_v, kernels=kernels, budget_s=budget_s, on_progress=on_progress)
        flash_attention, threads, threads_batch = tuning.best
        measured = tuple(_measured(timing, model) for timing in tuning.timings)
        return cls(flash_attention, threads, threads_batch, model.description, Hardware.read().cpu, measured)


def _measured(timing: Timing, model: Model) -> Measured:
    return Measured(timing.work, timing.flash_attention, timing.n_threads, timing.seconds, model.is_repacked)


def tune_file(model: Model, conditions: Conditions) -> Path:
    """Where what was measured for this model on this machine by this build is kept: in the user's cache folder.

    Models of one shape and one quantisation share a file, since they compute equally fast.
    """
    # The server loads its model while it imports the rest: what only this needs keeps `import weft` from nothing.
    import platformdirs  # noqa: PLC0415

    from weft.installed.distribution import version  # noqa: PLC0415

    hardware = Hardware.read()
    metadata = {key: value for key, value in model.metadata().items() if not key.startswith(("general.", "tokenizer."))}
    what = [
        *(model.size_bytes, model.n_params, model.n_vocab, model.description, metadata),
        *conditions,
        *(hardware.cpu, hardware.n_cores, hardware.n_threads, hardware.gpus),
        *(version(), hardware.instructions),
    ]
    key = hashlib.blake2b(msgspec.json.encode(what), digest_size=10).hexdigest()
    return platformdirs.user_cache_path("weft", appauthor=False) / "tuned" / f"{key}.json"


def read(path: Path) -> Tuned | None:
    """What is kept there; None where nothing is, or nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Tuned)
    except (OSError, msgspec.MsgspecError):
        return None


def write(path: Path, tuned: Tuned) -> None:
    """Keeps what was measured; a file that is there is replaced in one step.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(tuned)))
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
