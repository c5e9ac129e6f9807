"""Which compiled module of a wheel a processor gets, and what the wheel's parts are compiled for."""

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from pathlib import Path

import pytest

import weft
from weft import _native
from weft.installed import levels
from weft.installed.distribution import version
from weft.installed.levels import LEVELS, MACHINE, Level, NoLevel, WrongLevel

X86_64 = LEVELS["x86_64"]
BASELINE, AVX2, AVX512, AVX512_BF16, AMX = X86_64
ARMV8, DOTPROD, I8MM, SVE = LEVELS["aarch64"]
HERE = LEVELS[MACHINE]

CPUINFO = {
    "x86_64": """\
processor\t: 0
model name\t: A processor
flags\t\t: fpu sse {}
vmx flags\t: none

processor\t: 1
flags\t\t: none
""",
    "aarch64": """\
processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd {}
CPU implementer\t: 0x41

processor\t: 1
Features\t: none
""",
}

OF_ARM = {
    "Cortex-A53": (ARMV8, "aes pmull sha1 sha2 crc32 cpuid"),
    "A64FX": (ARMV8, "sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm fcma dcpop sve"),
    "Neoverse N1": (DOTPROD, "aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"),
    "M2": (I8MM, "aes atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc asimddp asimdfhm dit uscat flagm frint i8mm bf16 bti"),
    "Neoverse V1": (SVE, "aes atomics fphp asimdhp cpuid asimdrdm fcma asimddp sve asimdfhm svei8mm svebf16 i8mm bf16 dgh rng"),
}
"""Some of what Linux tells of processors of ARM's kind, and the level that each gets."""


PAGE = (Path(__file__).parent.parent / "docs" / "start" / "install.md").read_text(encoding="utf-8")


def test_the_page_tells_every_level() -> None:
    tables = [table.split("\n\n")[0] for table in PAGE.split("\n\n| level | needs")[1:]]
    told = [re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) for table in tables]
    assert told == [[level.name for level in levels] for levels in LEVELS.values()]


@pytest.mark.parametrize("machine", LEVELS)
def test_each_level_has_all_that_the_one_before_it_has(machine: str) -> None:
    for slower, faster in pairwise(LEVELS[machine]):
        assert slower.flags < faster.flags


def test_no_two_levels_have_the_same_name() -> None:
    files = [level.file for levels in LEVELS.values() for level in levels]
    assert len(set(files)) == len(files)


@pytest.mark.parametrize(("machine", "first"), [("x86_64", {"fpu", "sse"}), ("aarch64", {"fp", "asimd"})])
def test_a_processor_is_read_by_its_first_core(machine: str, first: set[str], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO[machine].format("more most"))
    assert levels.processor_features(tmp_path / "cpuinfo", machine) == frozenset(first | {"more", "most"})


@pytest.mark.parametrize("machine", LEVELS)
@pytest.mark.parametrize(
    "content", [None, "", "processor\t: 0\n", *CPUINFO.values()], ids=["no file", "empty", "a core", *CPUINFO]
)
def test_a_processor_that_tells_nothing_gets_the_slowest(machine: str, content: str | None, tmp_path: Path) -> None:
    if content == CPUINFO[machine]:
        content = None
    if content is not None:
        (tmp_path / "cpuinfo").write_text(content)
    has = levels.processor_features(tmp_path / "cpuinfo", machine)
    assert has is None
    assert levels.choose_level(LEVELS[machine], has, {}) is LEVELS[machine][0]


STEPS = [step for chain in LEVELS.values() for step in pairwise(chain)]


@pytest.mark.parametrize(("slower", "faster"), STEPS, ids=[faster.name for _, faster in STEPS])
def test_a_processor_gets_the_best_that_it_has(slower: Level, faster: Level) -> None:
    [chain] = (chain for chain in LEVELS.values() if faster in chain)
    assert levels.choose_level(chain, faster.flags | {"fpu"}, {}) is faster
    for flag in faster.flags - slower.flags:
        assert levels.choose_level(chain, faster.flags - {flag}, {}) is slower


@pytest.mark.parametrize(("level", "features"), OF_ARM.values(), ids=OF_ARM)
def test_processors_of_arm_get_their_levels(level: Level, features: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO["aarch64"].format(features))
    assert levels.choose_level(LEVELS["aarch64"], levels.processor_features(tmp_path / "cpuinfo", "aarch64"), {}) is level


def test_a_processor_that_is_too_old_is_told_what_helps() -> None:
    with pytest.raises(
        NoLevel, match=r"^the processor lacks ssse3, which this wheel requires; `make wheel` in a checkout builds one"
    ):
        levels.choose_level(X86_64, BASELINE.flags - {"ssse3"}, {})


def test_a_wheel_may_lack_levels() -> None:
    assert levels.choose_level((BASELINE, AVX512), AMX.flags, {}) is AVX512


def test_the_variable_asks_for_a_slower_one() -> None:
    assert levels.choose_level(X86_64, AMX.flags, {"WEFT_CPU_LEVEL": "avx2"}) is AVX2
    # Who asks is believed where nothing is known.
    assert levels.choose_level(X86_64, None, {"WEFT_CPU_LEVEL": "avx512"}) is AVX512
    assert levels.choose_level(X86_64, AVX2.flags, {"WEFT_CPU_LEVEL": ""}) is AVX2


@pytest.mark.parametrize(
    ("has", "name", "message"),
    [
        pytest.param(
            AVX512.flags,
            "avx512-bf16",
            "WEFT_CPU_LEVEL is 'avx512-bf16', and the processor lacks avx512_bf16, avx512_vnni and avx512vbmi; "
            "this wheel has baseline, avx2, avx512, avx512-bf16 and amx, of which this processor supports baseline, "
            "avx2 and avx512",
            id="more than the processor has",
        ),
        pytest.param(
            BASELINE.flags,
            "neon",
            "WEFT_CPU_LEVEL is 'neon', which is not a CPU level; "
            "this wheel has baseline, avx2, avx512, avx512-bf16 and amx, of which this processor supports baseline",
            id="no level",
        ),
        pytest.param(
            None,
            "AVX2",
            "WEFT_CPU_LEVEL is 'AVX2', which is not a CPU level; "
            "this wheel has baseline, avx2, avx512, avx512-bf16 and amx, and the processor's features cannot be read",
            id="an unknown processor",
        ),
        pytest.param(
            frozenset({"sse"}),
            "fast\nest",
            "WEFT_CPU_LEVEL is 'fast\\nest', which is not a CPU level; "
            "this wheel has baseline, avx2, avx512, avx512-bf16 and amx, of which this processor supports none",
            id="an old processor, and a line feed",
        ),
    ],
)
def test_a_level_that_is_asked_for_in_vain_is_refused_with_what_there_is(
    has: frozenset[str] | None, name: str, message: str
) -> None:
    with pytest.raises(WrongLevel, match=f"^{re.escape(message)}$"):
        levels.choose_level(X86_64, has, {"WEFT_CPU_LEVEL": name})


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The package as a wheel has it, in a folder of its own: this machine's module stands for that of every level."""
    package = Path(weft.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", *(f"*{suffix}" for suffix in EXTENSION_SUFFIXES))
    shutil.copytree(package, tmp_path / "weft", ignore=ignored)
    assert _native.__file__ is not None
    for level in HERE:
        (tmp_path / "weft" / level.file).symlink_to(_native.__file__)
    return tmp_path


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the package there."""
    environ = {name: value for name, value in os.environ.items() if name not in ("WEFT_CPU_LEVEL", "WEFT_INSTRUCTIONS")}
    environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | variables
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=25, env=environ, cwd=folder)


LOADED = """
import os, sys
from weft import Model, _native
assert sys.modules["weft._native"] is _native is sys.modules[Model.__module__]
print(os.path.basename(_native.__file__), os.environ.get("WEFT_INSTRUCTIONS"))
"""


def test_the_module_is_loaded_by_its_one_name(wheel: Path) -> None:
    has = levels.processor_features()
    ran = run(wheel, "-c", LOADED)
    assert (ran.stdout.split(), ran.stderr) == ([levels.choose_level(HERE, has, {}).file, "None"], "")


def test_a_level_that_is_asked_for_restrains_the_kernels_too(wheel: Path) -> None:
    slowest = HERE[0]
    assert run(wheel, "-c", LOADED, WEFT_CPU_LEVEL=slowest.name).stdout.split() == [slowest.file, slowest.kernels]
    said = run(wheel, "-c", LOADED, WEFT_CPU_LEVEL=slowest.name, WEFT_INSTRUCTIONS="other")
    assert said.stdout.split() == [slowest.file, "other"]


def test_the_version_tells_the_level(wheel: Path) -> None:
    assert run(wheel, "-m", "weft", "--version", WEFT_CPU_LEVEL=HERE[0].name).stdout == f"weft {version()} ({HERE[0].name})\n"


def test_the_version_is_told_without_metadata(wheel: Path) -> None:
    # Without the packages that are installed beside this one, nothing says what this one is but its compiled module.
    ran = run(wheel, "-S", "-m", "weft", "--version", WEFT_CPU_LEVEL=HERE[0].name)
    assert ran.stdout == f"weft {_native.VERSION} ({HERE[0].name})\n"


def refusal() -> str:
    """What is said here where `fastest` is asked for."""
    has = levels.processor_features()
    assert has is not None, "Linux tells what a processor has"
    there, fitting = (listed([level.name for level in of]) for of in (HERE, [level for level in HERE if level.flags <= has]))
    return (
        f"WEFT_CPU_LEVEL is 'fastest', which is not a CPU level; this wheel has {there}, "
        f"of which this processor supports {fitting}"
    )


def listed(names: list[str]) -> str:
    """As a sentence has them."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--port", "0"], ["tune"], ["--list-devices"]], ids=["version", "server", "tune", "devices"]
)
def test_a_command_says_in_one_line_that_the_variable_is_wrong(wheel: Path, arguments: list[str]) -> None:
    ran = run(wheel, "-m", "weft", *arguments, WEFT_CPU_LEVEL="fastest")
    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", f"weft: error: {refusal()}\n")


def test_an_import_says_that_the_variable_is_wrong(wheel: Path) -> None:
    code = """
import weft
for name in ("Engine", "Model", "Engine"):
    try:
        getattr(weft, name)
    except ImportError as error:
        print(error)
"""
    ran = run(wheel, "-c", code, WEFT_CPU_LEVEL="fastest")
    assert (ran.returncode, ran.stdout.splitlines(), ran.stderr) == (0, [refusal()] * 3, "")


def test_what_needs_no_compiled_module_asks_for_no_level(wheel: Path) -> None:
    ran = run(wheel, "-m", "weft", "--help", WEFT_CPU_LEVEL="fastest")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--version"], ["--port", "0"]], ids=["version", "server"])
def test_a_command_says_in_one_line_that_the_processor_is_too_old(wheel: Path, arguments: list[str]) -> None:
    too_old = "import sys; from weft.installed import levels; levels.processor_features = lambda: frozenset({'swp'})"
    ran = run(wheel, "-c", f"{too_old}; from weft.cli.main import main; main()", *arguments)
    [line] = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert line.startswith(f"weft: error: the processor lacks {listed(sorted(HERE[0].flags))}, which this wheel")


def test_a_package_without_a_compiled_module_says_how_to_build_it(wheel: Path) -> None:
    for level in HERE:
        (wheel / "weft" / level.file).unlink()
    ran = run(wheel, "-c", "import weft; weft.Model")
    assert re.search(r"^ImportError: there is no compiled module in .*, `make extension` builds it$", ran.stderr, re.MULTILINE)
