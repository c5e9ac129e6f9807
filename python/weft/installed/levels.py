"""Instruction-set levels: a wheel for Linux has the compiled module once per level.

llama.cpp's CPU code is compiled for a fixed instruction set, and so is Weft's except for its kernels. The best level that the
processor supports is loaded.

On ARM, a level is an instruction set for which llama.cpp has separate code: byte dot products, byte matrix products, and vectors
of variable length (SVE). Nothing in it requires bf16; SVE2 changes only a helper function, and SME requires a library that is not
built. Its half-precision code accumulates in half precision, with errors of hundredths for long rows, and is excluded, except
with SVE, whose own code takes precedence and accumulates in single precision. SVE without byte products (Fujitsu's A64FX) is not
a level.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

VARIABLE = "WEFT_CPU_LEVEL"
"""Environment variable that selects a level by name; empty selects the best."""

MACHINE = os.uname().machine if sys.platform == "linux" else ""
"""Processor architecture as reported by the system; empty on systems whose wheels have a single module."""

CPUINFO = Path("/proc/cpuinfo")
FOLDER = Path(__file__).parent.parent

_V2 = frozenset({"pni", "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _V4 | {"avx512_vnni", "avx512_bf16", "avx512vbmi"}
_AMX = _BF16 | {"amx_tile", "amx_int8", "amx_bf16"}

_ARMV8 = frozenset({"fp", "asimd"})
_DOTPROD = _ARMV8 | {"atomics", "asimddp"}
_I8MM = _DOTPROD | {"i8mm"}
_SVE = _I8MM | {"fphp", "asimdhp", "sve", "svei8mm"}


@dataclass(frozen=True)
class Level:
    """An instruction set that a module is compiled for."""

    name: str
    flags: frozenset[str]
    """Required processor features, by Linux's names."""
    kernels: str | None = None
    """Instruction set of Weft's own kernels if a user selects this level, since they are chosen at run time; None is the best
    that the processor supports."""

    @property
    def file(self) -> str:
        """File name of its module, in the folder of `weft/_native.py`."""
        return f"_native_{self.name.replace('-', '_')}.abi3.so"


LEVELS = {
    "x86_64": (
        Level("baseline", _V2, "portable"),
        Level("avx2", _V3, "avx2"),
        Level("avx512", _V4),
        Level("avx512-bf16", _BF16),
        Level("amx", _AMX),
    ),
    "aarch64": (
        Level("armv8", _ARMV8, "neon"),
        Level("dotprod", _DOTPROD, "neon-dot"),
        Level("i8mm", _I8MM),
        Level("sve", _SVE),
    ),
}
"""Levels of each architecture, the slowest first; each includes the features of the previous one. Names are unique."""

_LINES = {"x86_64": "flags", "aarch64": "Features"}
"""Line of `/proc/cpuinfo` that lists the features. An emulator may show its host's file, which lacks that line."""


class NoLevel(ImportError):  # noqa: N818 (the name describes what is missing)
    """None of the available modules supports the processor."""


class WrongLevel(NoLevel):
    """`WEFT_CPU_LEVEL` names a level that is unavailable or not supported by the processor."""


def processor_features(cpuinfo: Path = CPUINFO, machine: str = MACHINE) -> frozenset[str] | None:
    """Returns the features of the processor that programs may use, by Linux's names; None if they cannot be read."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as lines:
            found = next((line for line in lines if line.partition(":")[0].strip() == _LINES.get(machine)), None)
    except OSError:
        return None
    return frozenset(found.partition(":")[2].split()) if found else None


def choose_level(available: tuple[Level, ...], features: frozenset[str] | None, environ: Mapping[str, str]) -> Level:
    """Returns the level to load: the one in `WEFT_CPU_LEVEL`, or the best available one for this processor.

    If the features of the processor are unknown, returns the slowest.

    Raises:
        WrongLevel: The selected level is unavailable, or not supported by the processor.
        NoLevel: No level supports the processor.
    """
    if named := environ.get(VARIABLE):
        selected = next((level for level in available if level.name == named), None)
        if selected is None:
            raise WrongLevel(f"{VARIABLE} is {named!r}, which is not a CPU level; {_describe(available, features)}")
        if features is not None and (missing := selected.flags - features):
            raise WrongLevel(
                f"{VARIABLE} is {named!r}, and the processor lacks {_join(sorted(missing))}; {_describe(available, features)}"
            )
        return selected
    if features is None:
        return available[0]
    fitting = [level for level in available if level.flags <= features]
    if not fitting:
        missing = available[0].flags - features
        raise NoLevel(
            f"the processor lacks {_join(sorted(missing))}, which this wheel requires;"
            " `make wheel` in a checkout builds one for it"
        )
    return fitting[-1]


def _describe(available: tuple[Level, ...], features: frozenset[str] | None) -> str:
    """Returns the available levels, and the levels supported by the processor, as a phrase."""
    all_of_them = f"this wheel has {_join([level.name for level in available])}"
    if features is None:
        return f"{all_of_them}, and the processor's features cannot be read"
    fitting = [level.name for level in available if level.flags <= features]
    return f"{all_of_them}, of which this processor supports {_join(fitting) or 'none'}"


def _join(names: Sequence[str]) -> str:
    """Joins names for a sentence: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def current_level() -> Level | None:
    """Returns the level that `weft._native` loads, without importing it; None if it was compiled for this machine only.

    Raises:
        WrongLevel, NoLevel: See `choose_level`; the import raises the same.
    """
    available = _available_levels()
    return choose_level(available, processor_features(), os.environ) if available else None


def load(name: str) -> ModuleType:
    """Loads the compiled module for this processor under a name. Called once, during the import of `weft._native`.

    Raises:
        WrongLevel, NoLevel: See `choose_level`.
        ImportError: There is no compiled module.
    """
    available = _available_levels()
    if not available:
        raise ImportError(f"there is no compiled module in {FOLDER}; in a checkout, `make extension` builds it", name=name)
    level = choose_level(available, processor_features(), os.environ)
    if os.environ.get(VARIABLE) and level.kernels:
        # Read once by the module, when it selects kernels. A value set by the user has priority.
        os.environ.setdefault("WEFT_INSTRUCTIONS", level.kernels)
    path = str(FOLDER / level.file)
    loader = ExtensionFileLoader(name, path)
    spec = spec_from_loader(name, loader)
    assert spec is not None, "the loader is given"
    module = module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _available_levels() -> tuple[Level, ...]:
    return tuple(level for level in LEVELS.get(MACHINE, ()) if (FOLDER / level.file).exists())
