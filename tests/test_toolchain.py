"""scripts/toolchain: what it says of a machine that lacks something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "toolchain"

INSTALLERS = {"apt-get", "sudo"}
"""Nothing is to be installed here."""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with all programs of this machine but those that install others."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if program.name not in INSTALLERS:
                (programs / program.name).unlink(missing_ok=True)
                (programs / program.name).symlink_to(program)
    return programs


def run_script(machine: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PATH": str(machine), "CARGO_TARGET_DIR": str(machine.parent / "target")}
    command: list[str | Path] = ["bash", SCRIPT, machine.parent / "answer.mk", *programs]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)


def set_version_of_node(machine: Path, version: str) -> None:
    (machine / "node").unlink(missing_ok=True)
    (machine / "node").write_text(f"#!/bin/sh\necho {version}\n")
    (machine / "node").chmod(0o755)


def made(machine: Path, target: str) -> str:
    """What make would do."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environ |= {"PATH": str(machine), "CARGO_TARGET_DIR": str(machine.parent / "target")}
    command = ["make", "-n", "-C", str(SCRIPT.parent.parent), target]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environ).stdout


def test_one_command_builds_and_starts_it(machine: Path) -> None:
    lines = made(machine, "run").splitlines()
    [build] = [at for at, line in enumerate(lines) if line.startswith("maturin develop --release ")]
    [start] = [at for at, line in enumerate(lines) if re.match(r"(exec )?python -m weft\b", line)]
    assert build < start


def test_one_command_makes_a_wheel(machine: Path) -> None:
    assert re.search(r"^maturin build --release .*--out dist$", made(machine, "wheel"), re.MULTILINE)


def test_one_command_makes_the_wheel_that_travels(machine: Path) -> None:
    assert re.search(r"^PYTHONPATH=python python scripts/wheels.py", made(machine, "wheels"), re.MULTILINE)


def test_pip_is_told_what_lacks_and_nothing_is_installed(machine: Path) -> None:
    (machine / "cmake").unlink()
    (machine / "apt-get").write_text("#!/bin/sh\ntouch installed\n")
    (machine / "apt-get").chmod(0o755)
    hook = "import os, build_backend; build_backend.get_requires_for_build_wheel()"
    environ = os.environ | {"PATH": str(machine), "PYTHONPATH": str(SCRIPT.parent), "HOME": str(machine.parent)}
    environ["CARGO_TARGET_DIR"] = str(machine.parent / "target")
    command = [sys.executable, "-c", hook]
    folder = machine.parent / "source"
    folder.mkdir()
    (folder / "scripts").symlink_to(SCRIPT.parent)
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ, cwd=folder)
    assert ran.returncode == 1
    assert "weft: these are missing: cmake\n" in ran.stderr
    assert ran.stderr.endswith("weft: this is Weft's source, which is compiled: install what is missing and try again\n")
    assert not (folder / "installed").exists()


def test_programs_beside_the_build_are_asked_for_only_where_they_are_named(machine: Path) -> None:
    (machine / "jq").unlink()
    assert run_script(machine).returncode == 0
    assert (machine.parent / "answer.mk").read_text().startswith("export CC := ")
    refused = run_script(machine, "curl", "jq", "node")
    assert refused.returncode == 1
    assert "weft: these are missing: jq\n" in refused.stderr


@pytest.mark.parametrize(("version", "is_enough"), [("v16.20.2", False), ("v18.0.0", True), ("v20.20.2", True)])
def test_node_is_to_be_new_enough(machine: Path, version: str, is_enough: bool) -> None:
    set_version_of_node(machine, version)
    told = run_script(machine, "node")

    assert told.returncode == (0 if is_enough else 1)
    assert ("weft: these are missing: Node.js 18 or newer\n" in told.stderr) is not is_enough
