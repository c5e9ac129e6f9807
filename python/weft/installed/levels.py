"""Instruction sets that a wheel has code for, and which of them this processor gets.

A wheel for Linux holds the compiled module once for each level: llama.cpp's code for a CPU is compiled for one set of
instructions, and so is ours but for its kernels. The best one that the processor has is loaded.

On ARM a level is what llama.cpp has other code for: the product of bytes, that of matrices of bytes, and vectors of any length.
Nothing in it asks for bf16, and SVE2 makes one of its helpers another; SME is for a library that is not built. What it has for
halves sums in halves, and is wrong by hundredths where a row is long: it is left out but for SVE, whose own code comes first and
sums in floats. SVE without the products (Fujitsu's A64FX) is no level.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

__all__ = ["LEVELS", "MACHINE", "VARIABLE", "Level", "NoLevel", "WrongLevel", "chosen", "here", "load", "processor"]

VARIABLE = "WEFT_CPU_LEVEL"
"""The environment variable that asks for a level by its name; empty asks for none."""

MACHINE = os.uname().machine if sys.platform == "linux" else ""
"""The kind of processor, as the system calls it; empty where wheels have one module."""

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
    """A set of instructions that a module is compiled for."""

    name: str
    flags: frozenset[str]
    """What a processor must have, by Linux's names."""
    kernels: str | None = None
    """The instruction set of Weft's own kernels where a user asks for this level, since these choose theirs at run time; None is
    the best that the processor has."""

    @property
    def file(self) -> str:
        """The file of its module, beside `weft/_native.py`."""
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
"""Those of each machine, the slowest first; each has all that the one before it has. No two have the same name."""

_LINES = {"x86_64": "flags", "aarch64": "Features"}
"""The line of `/proc/cpuinfo` that tells them. An emulator may show that of the machine it runs on, which tells nothing."""


class NoLevel(ImportError):  # noqa: N818 (it says what is missing, as `NoSuchFile` would)
    """None of the modules that are there fits the processor."""


class WrongLevel(NoLevel):
    """`WEFT_CPU_LEVEL` names none of the levels that are there, or one that the processor cannot do."""


def processor(cpuinfo: Path = CPUINFO, machine: str = MACHINE) -> frozenset[str] | None:
    """What the processor has and the system lets programs use, by Linux's names; None where that cannot be read."""
    try:
        with cpuinfo.open(encoding="ascii", errors="replace") as lines:
            found = next((line for line in lines if line.partition(":")[0].strip() == _LINES.get(machine)), None)
    except OSError:
        return None
    return frozenset(found.partition(":")[2].split()) if found else None


def chosen(there: tuple[Level, ...], has: frozenset[str] | None, environ: Mapping[str, str]) -> Level:
    """The level to load: the one that `WEFT_CPU_LEVEL` names, or the best of those that are there for this processor.

    A processor that tells nothing of itself gets the slowest.

    Raises:
        WrongLevel: The one that is asked for is not there, or needs what the processor lacks.
        NoLevel: None fits the processor.
    """
    if named := environ.get(VARIABLE):
        asked = next((level for level in there if level.name == named), None)
        if asked is None:
            raise WrongLevel(f"{VARIABLE} is {named!r}, which is no level; {_told(there, has)}")
        if has is not None and (lacks := asked.flags - has):
            raise WrongLevel(f"{VARIABLE} is {named!r}, and the processor lacks {_list(sorted(lacks))}; {_told(there, has)}")
        return asked
    if has is None:
        return there[0]
    fitting = [level for level in there if level.flags <= has]
    if not fitting:
        lacks = there[0].flags - has
        raise NoLevel(
            f"the processor lacks {_list(sorted(lacks))}, which this wheel needs; `make wheel` in a checkout builds one for it"
        )
    return fitting[-1]


def _told(there: tuple[Level, ...], has: frozenset[str] | None) -> str:
    """Which levels there are, and which of them can be asked for."""
    all_of_them = f"this wheel has {_list([level.name for level in there])}"
    if has is None:
        return f"{all_of_them}, and what the processor has cannot be read"
    fitting = [level.name for level in there if level.flags <= has]
    return f"{all_of_them}, of which this processor has {_list(fitting) or 'none'}"


def _list(names: Sequence[str]) -> str:
    """Names as a sentence has them: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def here() -> Level | None:
    """The level that `weft._native` has here, without importing it; None where it was compiled for this machine alone.

    Raises:
        WrongLevel, NoLevel: As `chosen` says: importing it would raise the same.
    """
    there = _there()
    return chosen(there, processor(), os.environ) if there else None


def load(name: str) -> ModuleType:
    """The compiled module under this name, for this processor. Called once, while `weft._native` is imported.

    Raises:
        WrongLevel, NoLevel: As `chosen` says.
        ImportError: Nothing was compiled.
    """
    there = _there()
    if not there:
        raise ImportError(f"there is no compiled module in {FOLDER}; in a checkout, `make extension` builds it", name=name)
    level = chosen(there, processor(), os.environ)
    if os.environ.get(VARIABLE) and level.kernels:
        # Read by the module, once, when it first looks for kernels. What the user says of them holds.
        os.environ.setdefault("WEFT_INSTRUCTIONS", level.kernels)
    path = str(FOLDER / level.file)
    loader = ExtensionFileLoader(name, path)
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a loader that is given makes a specification"
    module = module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _there() -> tuple[Level, ...]:
    return tuple(level for level in LEVELS.get(MACHINE, ()) if (FOLDER / level.file).exists())
