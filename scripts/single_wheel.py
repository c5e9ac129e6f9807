"""Builds a wheel with one compiled module into dist/: for a GPU, and for machines without Linux.

`make wheels` builds the wheels for Linux, which hold one for each level of CPUs. A wheel for a GPU is a distribution of its own:
the package inside is the same, `weft`.
"""

# ruff: noqa: T201  (it prints what it made)

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from wheels import AUDITWHEEL, DIST, POLICY, ROOT, packed, run, uvx

BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "single-wheel"
DISTRIBUTION = "weft-llm"

CPUS = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}
"""What the module is compiled for, by the machine; Weft's own kernels choose at run time. On ARM it is what compilers
choose unasked, ARMv8 on Linux and the M1 on a Mac: llama.cpp's build names a processor to clang as an architecture (`-march`),
which on ARM it is not."""


@dataclass(frozen=True)
class Variant:
    """A kind of wheel."""

    name: str
    """Of the distribution."""
    feature: str | None = None
    """Of the crate, beside Python's."""
    driver: str | None = None
    """The library that the machine's driver brings, left out of the wheel; weft/installed/driver.py says where it is missing."""


VARIANTS = {
    "cpu": Variant(DISTRIBUTION),
    "metal": Variant(DISTRIBUTION, "metal"),
    "cuda12": Variant("weft-llm-cuda12", "cuda", "libcuda.so.1"),
    "vulkan": Variant("weft-llm-vulkan", "vulkan", "libvulkan.so.1"),
}


def main() -> int:
    """Builds what is asked for; 1 if a command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=VARIANTS)
    variant = VARIANTS[parser.parse_args().variant]
    try:
        wheel = renamed(build(variant), variant.name, BUILT)
        DIST.mkdir(exist_ok=True)
        print(audited(wheel, variant) if sys.platform == "linux" else shutil.copy(wheel, DIST))
    except subprocess.CalledProcessError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 1
    return 0


def build(variant: Variant) -> Path:
    """The wheel as maturin makes it, under the name of `weft-llm`."""
    out = BUILT / "built"
    shutil.rmtree(out, ignore_errors=True)
    features = ",".join(filter(None, ("python", variant.feature)))
    command = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--strip", "--features", features]
    command += ["--compatibility", "linux"] if sys.platform == "linux" else []
    environ = {
        "CARGO_TARGET_DIR": str(BUILT),
        "CARGO_PROFILE_RELEASE_DEBUG": "false",
        "RUSTFLAGS": f"-C target-cpu={cpu}" if (cpu := CPUS.get(platform.machine())) else "",
    }
    run([*command, "--out", str(out)], environ)
    [wheel] = out.glob("*.whl")
    return wheel


def renamed(wheel: Path, name: str, folder: Path) -> Path:
    """The wheel as one of another distribution."""
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    [metadata] = unpacked.glob("*.dist-info")
    version = metadata.name.removesuffix(".dist-info").rpartition("-")[2]
    metadata = metadata.rename(unpacked / f"{name.replace('-', '_')}-{version}.dist-info")
    described = (metadata / "METADATA").read_text(encoding="utf-8")
    (metadata / "METADATA").write_text(re.sub(r"(?m)^Name: .*$", f"Name: {name}", described, count=1), encoding="utf-8")
    return packed(unpacked, folder / "packed")


def audited(wheel: Path, variant: Variant) -> Path:
    """The wheel in dist/, once auditwheel has found that it runs where its name says. The driver stays the machine's."""
    excluded = ("--exclude", variant.driver) if variant.driver else ()
    out = BUILT / "audited"
    shutil.rmtree(out, ignore_errors=True)
    uvx(AUDITWHEEL, "repair", "--plat", f"{POLICY}_{platform.machine()}", *excluded, "--wheel-dir", str(out), str(wheel))
    [repaired] = out.glob("*.whl")
    return Path(shutil.copy(repaired, DIST))


if __name__ == "__main__":
    sys.exit(main())
