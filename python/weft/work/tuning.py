"""Persistent tuning results: one small file per model, machine and build."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from weft._native import Hardware, Model, tune
from weft.config import EngineConfig, Kernels
from weft.work.files import write_atomically

Progress = Callable[[float], object] | None
"""Callback for the completed fraction, 0 to 1."""


class Conditions(NamedTuple):
    """Settings that a measurement depends on, in addition to the model, the machine and the build."""

    n_gpu_layers: int | None
    type_k: str
    type_v: str
    kernels: Kernels
    repack: bool | None

    @classmethod
    def of(cls, config: EngineConfig) -> "Conditions":
        """Returns the conditions of an engine's settings."""
        return cls(config.n_gpu_layers, config.type_k, config.type_v, config.kernels, config.repack)


class Measurement(msgspec.Struct, frozen=True):
    """One measurement: seconds for a prompt of 1,000 tokens, or for eight branches of it with 128 tokens each."""

    work: str
    flash_attention: bool | None
    """Use of llama.cpp's fused attention; None if Weft's own attention was used."""
    threads: int
    seconds: float | None
    """None if the time budget did not allow a measurement."""
    repacked: bool = False
    """True if the weights were repacked for llama.cpp's own products."""


class TuningResult(msgspec.Struct, frozen=True):
    """Content of a tuning file."""

    flash_attention: bool | None
    threads: Annotated[int, msgspec.Meta(ge=1, le=512)]
    threads_batch: Annotated[int, msgspec.Meta(ge=1, le=512)]
    model: str
    """Description of the model."""
    cpu: str
    measured: tuple[Measurement, ...]

    @property
    def choice(self) -> tuple[bool | None, int, int]:
        """The argument `tuned` of the compiled engine."""
        return self.flash_attention, self.threads, self.threads_batch

    @property
    def seconds(self) -> float:
        """Total time of the prompt and its branches with the chosen settings, in seconds."""
        chosen = {("prompt", self.threads_batch), ("branches", self.threads)}
        of_these = (timing for timing in self.measured if (timing.work, timing.threads) in chosen)
        return sum(timing.seconds or 0.0 for timing in of_these if timing.flash_attention == self.flash_attention)

    @classmethod
    def measure(cls, model: Model, conditions: Conditions, *, budget_s: float, on_progress: Progress = None) -> "TuningResult":
        """Measures the candidates, in about `budget_s` seconds. Blocks.

        Raises:
            InvalidConfigError: The model does not support these cache formats, or its context does not fit in memory.
            DecodeError: The model could not compute a step.
        """
        _, type_k, type_v, kernels, _ = conditions
        tuning = tune(model, type_k=type_k, type_v=type_v, kernels=kernels, budget_s=budget_s, on_progress=on_progress)
        flash_attention, threads, threads_batch = tuning.best
        measured = tuple(
            Measurement(timing.work, timing.flash_attention, timing.n_threads, timing.seconds, model.is_repacked)
            for timing in tuning.timings
        )
        return cls(flash_attention, threads, threads_batch, model.description, Hardware.read().cpu, measured)


def tune_file(model: Model, conditions: Conditions) -> Path:
    """Returns the path of the tuning file for this model, machine and build, in the user's cache folder.

    Models of equal shape and quantization share a file, since they are equally fast.
    """
    # Imported here, since only this function needs them and the server loads its model while importing the rest.
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


def read(path: Path) -> TuningResult | None:
    """Returns the content of a tuning file; None if it is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TuningResult)
    except (OSError, msgspec.MsgspecError):
        return None


def write(path: Path, tuned: TuningResult) -> None:
    """Writes a tuning file atomically.

    Raises:
        OSError: The file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(tuned)))
