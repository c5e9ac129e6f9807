"""What pip and uv call to build Weft from source: maturin, once the machine has been found to have what a build needs.

The compiler is chosen, and what is missing is said, by `scripts/toolchain`, as for `make`; here it installs nothing.
"""

# ruff: noqa: ARG001  (the arguments are the interface's)

import os
import re
import subprocess
import sys
from pathlib import Path

import maturin
from maturin import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

ANSWER = Path("target", "toolchain.mk")


def prepare() -> None:
    """Sets the compiler for llama.cpp; ends the build with what is missing, before anything is downloaded or compiled."""
    os.environ["PATH"] += f"{os.pathsep}{Path.home() / '.cargo' / 'bin'}"
    # What is built here is installed here.
    os.environ.setdefault("RUSTFLAGS", "-C target-cpu=native")
    if os.name != "posix":
        return
    ANSWER.parent.mkdir(exist_ok=True)
    asked = subprocess.run(["bash", "scripts/toolchain", str(ANSWER)], env=os.environ | {"WEFT_INSTALL": "no"}, check=False)
    if asked.returncode:
        sys.exit("weft: this is Weft's source, which is compiled: install what is missing and try again")
    found = dict(re.findall(r"^export (\w+) := (.*)$", ANSWER.read_text(encoding="utf-8"), re.MULTILINE))
    os.environ.update({name: value for name, value in found.items() if name not in os.environ})


def get_requires_for_build_wheel(config_settings: dict[str, object] | None = None) -> list[str]:
    """Nothing but what pyproject.toml names."""
    prepare()
    return []


def build_wheel(directory: str, config_settings: dict[str, object] | None = None, metadata_directory: str | None = None) -> str:
    """The file's name in the folder."""
    prepare()
    return maturin.build_wheel(directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(directory: str, config_settings: dict[str, object] | None = None) -> str:
    """The metadata's folder in the folder."""
    prepare()
    return maturin.prepare_metadata_for_build_wheel(directory, config_settings)


def build_editable(
    directory: str, config_settings: dict[str, object] | None = None, metadata_directory: str | None = None
) -> str:
    """The file's name in the folder."""
    prepare()
    return maturin.build_editable(directory, config_settings, metadata_directory)


get_requires_for_build_editable = get_requires_for_build_wheel
