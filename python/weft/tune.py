"""`python -m weft tune`: finds out how a model is computed fastest on this machine, and keeps it for later starts."""

import sys
import time
from pathlib import Path

from weft import tuning
from weft._native import Hardware, Model
from weft.demo import DEMO_MODEL
from weft.errors import WeftError
from weft.progress import bar
from weft.settings import Settings
from weft.tuning import Conditions, Measured, Tuned

__all__ = ["tune"]

BUDGET_S = 55.0
"""Seconds for the timings: with what one measurement may take longer than expected, about a minute in all."""

_ATTENTION = {None: "weft", True: "flash on", False: "flash off"}
"""What computed attention: Weft's own, or llama.cpp's with flash attention and without."""

_WORK = {"prompt": "a prompt of 1,000 tokens", "branches": "8 branches of it, 128 tokens each"}


def tune(settings: Settings) -> int:
    """Measures, prints the table and writes the file.

    Returns the exit code: 0, 1 if something could not be done, 130 where Ctrl-C ended it.
    """
    path = settings.model or DEMO_MODEL
    kernels, type_k, type_v = settings.kernels, settings.cache_type_k, settings.cache_type_v
    conditions = Conditions(settings.gpu_layers, type_k, type_v, kernels, settings.repack)
    began = time.monotonic()
    try:
        model = Model.load(
            path,
            n_gpu_layers=settings.gpu_layers,
            use_mmap=settings.mmap,
            use_mlock=settings.mlock,
            direct_io=settings.direct_io,
            numa=settings.numa,
            kernels=kernels,
            repack=settings.repack,
            on_progress=bar("loading"),
        )
        tuned = Tuned.measure(model, conditions, budget_s=BUDGET_S, on_progress=bar("timing "))
    except WeftError as error:
        print(f"tune: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntune: interrupted; nothing is kept", file=sys.stderr)
        return 130
    hardware = Hardware.read()
    print(f"{Path(path).name}: {tuned.model}, K in {type_k}, V in {type_v}")
    print(f"{hardware.cpu}, {hardware.n_cores} cores, {hardware.instructions}\n")
    print(table(tuned.measured))
    attention = "" if tuned.flash_attention is None else f"{_ATTENTION[tuned.flash_attention]}, "
    print(f"\nfastest: {attention}{tuned.threads} threads, {tuned.threads_batch} for prompts")
    file = tuning.tune_file(model, conditions)
    try:
        tuning.write(file, tuned)
    except OSError as error:
        flash = "" if tuned.flash_attention is None else f"-fa {'on' if tuned.flash_attention else 'off'} "
        flags = f"{flash}-t {tuned.threads} -tb {tuned.threads_batch}"
        print(f"tune: cannot keep it in {file}: {error.strerror or error}; start with {flags}", file=sys.stderr)
        return 1
    print(f"written to {file} after {time.monotonic() - began:.0f} s; later starts read it, flags win, --no-tune ignores it")
    return 0


def table(measured: tuple[Measured, ...]) -> str:
    """Every timing in a line, with its share of the fastest of its kind."""
    lines = [f"{'':<34} attention  threads  seconds  times the best"]
    for work, title in _WORK.items():
        of_this = [timing for timing in measured if timing.work == work]
        best = min((timing.seconds for timing in of_this if timing.seconds is not None), default=0.0)
        for position, timing in enumerate(of_this):
            name = title if position == 0 else ""
            took = "no time" if timing.seconds is None else f"{timing.seconds:.2f}"
            ratio = "" if not timing.seconds or not best else f"{timing.seconds / best:.2f}"
            lines.append(
                f"{name:<34} {_ATTENTION[timing.flash_attention]:<9}  {timing.threads:>7}  {took:>7}  {ratio:>14}".rstrip()
            )
    return "\n".join(lines)
