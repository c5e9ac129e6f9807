"""`python -m weft tune`: measures which settings compute a model fastest on this machine, and saves them for later starts."""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from weft._native import Hardware, Model
from weft.serving.local_engine import model_path
from weft.serving.progress import bar
from weft.settings import Settings
from weft.work import tuning
from weft.work.tuning import Conditions, Measurement, TuningResult

BUDGET_S = 55.0
"""Time budget of the measurements, in seconds; a single one may exceed it, so the total is about a minute."""

NOISE = 0.95
"""Another layout of the weights is recommended only if it takes less than this fraction of the default layout's time."""

_ATTENTION = {None: "weft", True: "flash on", False: "flash off"}
"""Names of attention kernels: Weft's own, or llama.cpp's with and without flash attention."""

_WORK = {"prompt": "a prompt of 1,000 tokens", "branches": "8 branches of it, 128 tokens each"}


class _Layout(NamedTuple):
    """Measurements with one layout of the weights."""

    conditions: Conditions
    file: Path
    tuned: TuningResult


def tune(settings: Settings) -> int:
    """Measures, prints the table and writes the files.

    Returns the exit code: 0, 1 if the files cannot be written, 130 after Ctrl-C.

    Raises:
        WeftError: The model cannot be loaded or computed.
    """
    began = time.monotonic()
    try:
        path = model_path(settings)
        layouts = _measure(settings, path)
    except KeyboardInterrupt:
        print("\ntune: interrupted; nothing was saved", file=sys.stderr)
        return 130
    by_rule = layouts[0].tuned
    best = layouts[-1] if layouts[-1].tuned.seconds < NOISE * by_rule.seconds else layouts[0]
    hardware = Hardware.read()
    print(f"{path.name}: {by_rule.model}, K in {settings.engine.type_k}, V in {settings.engine.type_v}")
    print(f"{hardware.cpu}, {hardware.n_cores} cores, {hardware.instructions}\n")
    print(table(tuple(timing for layout in layouts for timing in layout.tuned.measured)))
    attention = "" if best.tuned.flash_attention is None else f"{_ATTENTION[best.tuned.flash_attention]}, "
    weights = "" if len(layouts) == 1 else f", weights {_weights(best.tuned)}"
    print(f"\nfastest: {attention}{best.tuned.threads} threads, {best.tuned.threads_batch} for prompts{weights}")
    if best is not layouts[0]:
        times = by_rule.seconds / best.tuned.seconds
        print(f"start with {_repack_flag(best.tuned)}: {times:.2f} times as fast as without the flag, in the sum of both")
    try:
        for layout in layouts:
            tuning.write(layout.file, layout.tuned)
    except OSError as error:
        tuned = best.tuned
        flash = "" if tuned.flash_attention is None else f"-fa {'on' if tuned.flash_attention else 'off'} "
        repack = "" if best is layouts[0] else f" {_repack_flag(tuned)}"
        flags = f"{flash}-t {tuned.threads} -tb {tuned.threads_batch}{repack}"
        print(f"tune: cannot save the result to {error.filename}: {error.strerror or error}; start with {flags}", file=sys.stderr)
        return 1
    files = " and ".join(str(layout.file) for layout in layouts)
    print(
        f"written to {files} after {time.monotonic() - began:.0f} s; later starts use it, unless flags or --no-tune override it"
    )
    return 0


def _measure(settings: Settings, path: Path) -> list[_Layout]:
    """Measures the model with the default layout of its weights, and with the other layout if that is possible.

    Raises:
        WeftError: The model cannot be loaded or computed.
    """
    config = settings.engine
    layouts: list[_Layout] = []
    while True:
        model, conditions = Model.load(path, config, on_progress=bar("loading")), Conditions.of(config)
        is_open, is_repacked = model.is_layout_open, model.is_repacked
        share = 2 if is_open or layouts else 1
        tuned = TuningResult.measure(model, conditions, budget_s=BUDGET_S / share, on_progress=bar("timing "))
        layouts.append(_Layout(conditions, tuning.tune_file(model, conditions), tuned))
        if not is_open:
            return layouts
        # Frees the memory for the next model. With `repack` set, that one has no open layout.
        del model
        config = msgspec.structs.replace(config, repack=not is_repacked)


def _is_repacked(tuned: TuningResult) -> bool:
    return any(timing.repacked for timing in tuned.measured)


def _weights(tuned: TuningResult) -> str:
    return "repacked by llama.cpp" if _is_repacked(tuned) else "in their on-disk layout"


def _repack_flag(tuned: TuningResult) -> str:
    return "--repack" if _is_repacked(tuned) else "--no-repack"


def table(measured: tuple[Measurement, ...]) -> str:
    """Returns a table of all measurements, relative to the fastest of their kind; with a column for layouts if there are two."""
    has_both = len({timing.repacked for timing in measured}) == 2
    weights = {False: "in file   ", True: "repacked  "} if has_both else {False: "", True: ""}
    head = "weights   " if has_both else ""
    lines = [f"{'':<34} {head}attention  threads  seconds  times the best"]
    for work, title in _WORK.items():
        of_this = [timing for timing in measured if timing.work == work]
        best = min((timing.seconds for timing in of_this if timing.seconds is not None), default=0.0)
        for position, timing in enumerate(of_this):
            name = title if position == 0 else ""
            took = "no time" if timing.seconds is None else f"{timing.seconds:.2f}"
            ratio = "" if not timing.seconds or not best else f"{timing.seconds / best:.2f}"
            attention = f"{weights[timing.repacked]}{_ATTENTION[timing.flash_attention]:<9}"
            lines.append(f"{name:<34} {attention}  {timing.threads:>7}  {took:>7}  {ratio:>14}".rstrip())
    return "\n".join(lines)
