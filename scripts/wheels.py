"""Builds the wheel that travels, and the source distribution, into dist/: `make wheels`.

The compiled module is built once for each level of `weft.installed.levels`; a wheel of all of them is put together and audited,
and the sizes of its parts are printed. llama.cpp's code outside its CPU backend is the same for all levels: ccache compiles it
once.
"""

# ruff: noqa: T201  (it prints what it made)

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.installed.levels import LEVELS, Level

ROOT = Path(__file__).parent.parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "wheels"
DIST = ROOT / "dist"
POLICY = "manylinux_2_34"
MODULE = "_native.abi3.so"

# Fetched by uv when they are needed, since only wheels need them.
WHEEL = ("wheel==0.48.0", "wheel")
AUDITWHEEL = ("auditwheel==6.8.2", "auditwheel")

RUST_NAMES = {"pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "cx16": "cmpxchg16b", "abm": "lzcnt"}
"""Features of x86-64 that rustc calls otherwise than Linux; the others lose their underscores."""

UNSTABLE = {"lahf_lm", "amx_tile", "amx_int8", "amx_bf16"}
"""Those that a stable rustc does not take, and that our code would gain nothing by."""

CMAKE_NAMES = {
    "sse4_2": "GGML_SSE42",
    "avx": "GGML_AVX",
    "avx2": "GGML_AVX2",
    "bmi2": "GGML_BMI2",
    "f16c": "GGML_F16C",
    "fma": "GGML_FMA",
    "avx512f": "GGML_AVX512",
    "avx512vbmi": "GGML_AVX512_VBMI",
    "avx512_vnni": "GGML_AVX512_VNNI",
    "avx512_bf16": "GGML_AVX512_BF16",
    "amx_tile": "GGML_AMX_TILE",
    "amx_int8": "GGML_AMX_INT8",
    "amx_bf16": "GGML_AMX_BF16",
}
"""Features that llama.cpp's CPU backend is told of; its other code is compiled for any processor, here as in every build."""

ARM_NAMES = {
    "atomics": "lse",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "fphp": "fp16",
    "asimdhp": "fp16",
    "sve": "sve",
    "svei8mm": "i8mm",
}
"""Features of ARM by the names that rustc and clang share; ARMv8 has the others. They are added to ARMv8 one by one: a newer
architecture (`armv8.6-a`) is more than what the processor is asked for."""

ARM_ARCH = ROOT / "scripts" / "arm_arch.cmake"


def main() -> int:
    """Builds what is asked for; 1 if a command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--machine",
        choices=LEVELS,
        default=platform.machine(),
        required=platform.machine() not in LEVELS,
        help="whose; the environment says how to compile for another",
    )
    parser.add_argument("--levels", help="those that the wheel holds, with commas between them; else all")
    parser.add_argument("--packed-only", action="store_true", help="put together the modules that an earlier run has built")
    options = parser.parse_args()
    levels = LEVELS[options.machine]
    names = options.levels.split(",") if options.levels else [level.name for level in levels]
    if unknown := set(names) - {level.name for level in levels}:
        parser.error(f"there is no level {', '.join(sorted(unknown))}")
    # What is packed has the time of its commit, so that equal sources make equal files.
    committed = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, check=False, text=True, cwd=ROOT).stdout
    os.environ.setdefault("SOURCE_DATE_EPOCH", committed.strip() or "315532800")
    try:
        wheels = {}
        for level in (level for level in levels if level.name in names):
            wheels[level] = built(level) if options.packed_only else build(level, options.machine)
        wheel = audited(put_together(wheels), options.machine)
        run([sys.executable, "-m", "maturin", "sdist", "--out", str(DIST)])
    except subprocess.CalledProcessError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 1
    print_sizes(wheel)
    return 0


def run(command: Sequence[str], environ: dict[str, str] | None = None) -> None:
    """Runs it to its end, here."""
    print("+", *command, flush=True)
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | (environ or {}))


def uvx(tool: tuple[str, str], *arguments: str) -> None:
    """Runs a tool of PyPI's."""
    package, command = tool
    run(["uv", "tool", "run", "--from", package, command, *arguments])


def environment(level: Level, machine: str) -> dict[str, str]:
    """What cargo and CMake read."""
    # Features among RUSTFLAGS would be flags of all of llama.cpp's files, and none of them could be shared.
    environ = {"CARGO_TARGET_DIR": str(BUILT), "RUSTFLAGS": "", "CARGO_PROFILE_RELEASE_DEBUG": "false"}
    if machine == "aarch64":
        environ |= {
            "CMAKE_PROJECT_INCLUDE": str(ARM_ARCH),
            "WEFT_ARM_ARCH": "+".join(["armv8-a", *rust_features(level, machine)]),
        }
    else:
        environ |= {name: "ON" if flag in level.flags else "OFF" for flag, name in CMAKE_NAMES.items()}
    if shutil.which("ccache"):
        environ |= {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX")}
    return environ


def rust_features(level: Level, machine: str) -> list[str]:
    """What the level has, by rustc's names."""
    if machine == "aarch64":
        return sorted({ARM_NAMES[flag] for flag in level.flags if flag in ARM_NAMES})
    return [RUST_NAMES.get(flag, flag.replace("_", "")) for flag in sorted(level.flags - UNSTABLE)]


def build(level: Level, machine: str) -> Path:
    """A wheel with this level's module alone."""
    out = BUILT / level.name
    shutil.rmtree(out, ignore_errors=True)
    environ, target = environment(level, machine), f"{machine}-unknown-linux-gnu"
    # llama.cpp's build script configures CMake once in its folder, whatever its environment says later.
    run(["cargo", "clean", "--quiet", "--release", "--target", target, "--package", "llama-cpp-sys-2"], environ)
    features = ",".join(f"+{name}" for name in rust_features(level, machine))
    command = ["build", "--release", "--locked", "--strip", "--target", target, "--compatibility", POLICY, "--out", str(out)]
    run([sys.executable, "-m", "maturin", *command, "--", "-C", f"target-feature={features}"], environ)
    return built(level)


def built(level: Level) -> Path:
    """The wheel that `build` has made."""
    [wheel] = (BUILT / level.name).glob("*.whl")
    return wheel


def put_together(wheels: dict[Level, Path]) -> Path:
    """One wheel of them all, each module under the name that `weft.installed.levels` knows it by."""
    folder = BUILT / "together"
    shutil.rmtree(folder, ignore_errors=True)
    for level, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        (folder / "weft" / MODULE).rename(folder / "weft" / level.file)
    return packed(folder, BUILT / "packed")


def packed(folder: Path, out: Path) -> Path:
    """The wheel of an unpacked one, the same whenever and wherever it is made; `wheel` writes its list of files anew."""
    for sbom in folder.glob("*.dist-info/sboms/*.json"):
        settle(sbom)
    # zipfile forgets modes; a module is no program, so that one mode fits all.
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".so" else 0o644)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    uvx(WHEEL, "pack", "--dest-dir", str(out), str(folder))
    [made] = out.glob("*.whl")
    return made


def settle(sbom: Path) -> None:
    """Takes the number, the time and the folder of this build out of its list of crates (CycloneDX), which needs none of them."""
    told = json.loads(sbom.read_text(encoding="utf-8"))
    told.pop("serialNumber", None)
    told["metadata"].pop("timestamp", None)
    sbom.write_text(json.dumps(told, indent=2).replace(ROOT.as_uri(), "file:///weft"), encoding="utf-8")


def audited(wheel: Path, machine: str) -> Path:
    """The wheel in dist/, once auditwheel has found that it runs where its name says."""
    DIST.mkdir(exist_ok=True)
    for older in DIST.glob("weft_llm-*.whl"):
        older.unlink()
    uvx(AUDITWHEEL, "show", str(wheel))
    # It knows the names of this machine's policies alone, and finds those of others.
    policy = f"{POLICY}_{machine}" if machine == platform.machine() else "auto"
    uvx(AUDITWHEEL, "repair", "--plat", policy, "--wheel-dir", str(DIST), str(wheel))
    [repaired] = DIST.glob("weft_llm-*.whl")
    return repaired


def print_sizes(wheel: Path) -> None:
    """What the wheel is made of, packed and unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        parts = archive.infolist()
    rows = [(part.filename, [part]) for part in parts if part.filename.endswith(".so")]
    rows.append(("the demo model", [part for part in parts if part.filename.endswith(".gguf")]))
    rows.append(("everything else", [part for part in parts if not part.filename.endswith((".so", ".gguf"))]))
    print(f"\n{wheel.name}: {megabytes(wheel.stat().st_size)} MB\n{'part':<36}{'packed MB':>10}{'unpacked MB':>13}")
    for name, held in [*rows, ("in all", parts)]:
        packed, unpacked = sum_of(part.compress_size for part in held), sum_of(part.file_size for part in held)
        print(f"{name:<36}{packed:>10}{unpacked:>13}")


def sum_of(sizes: Iterable[int]) -> str:
    """In megabytes."""
    return megabytes(sum(sizes))


def megabytes(n_bytes: int) -> str:
    """Of a million bytes, as package indexes count."""
    return f"{n_bytes / 1e6:.1f}"


if __name__ == "__main__":
    sys.exit(main())
