"""Where a wheel for a GPU finds no driver, it says so, and what to do."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.installed import driver

PACKAGE = Path(weft.__file__).parent
FILE = "libno-such-driver.so.1"


@pytest.fixture(params=sorted(driver.DRIVERS))
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A folder with a distribution for a GPU whose driver no machine has; its compiled module fails as the loader does."""
    name: str = request.param
    shutil.copytree(PACKAGE, tmp_path / "weft", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.gguf"))
    (tmp_path / "weft" / "_native.py").write_text(f'raise ImportError("{FILE}: cannot open shared object file")\n')
    source = (tmp_path / "weft" / "installed" / "driver.py").read_text()
    for each in driver.DRIVERS.values():
        source = source.replace(f'"{each.libraries[sys.platform]}"', f'"{FILE}"')
    (tmp_path / "weft" / "installed" / "driver.py").write_text(source)
    (tmp_path / f"{name.replace('-', '_')}-0.1.0.dist-info").mkdir()
    return name, tmp_path


def run_python(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and what was said."""
    environ = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=25, check=False
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_the_engine_names_the_driver(installed: tuple[str, Path]) -> None:
    name, folder = installed
    code, said = run_python(folder, "-c", "import weft; weft.Engine")
    assert code == 1
    assert f"weft.errors.DriverMissingError: {name} requires {FILE}, which was not found: install " in said
    assert f"pip uninstall {name}" in said


def test_the_server_names_the_driver_and_ends(installed: tuple[str, Path]) -> None:
    name, folder = installed
    code, said = run_python(folder, "-m", "weft", "--port", "0")
    assert code == 1
    assert said.splitlines()[-1].endswith("then install the wheel that `make wheel` builds in a checkout")
    assert f"ERROR {name} requires {FILE}, which was not found: install " in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["tune", "--list-devices"])
def test_other_commands_name_the_driver(installed: tuple[str, Path], command: str) -> None:
    name, folder = installed
    code, said = run_python(folder, "-m", "weft", command)
    assert code == 1
    assert said.startswith(f"weft: error: {name} requires {FILE}, which was not found: install ")


def test_what_needs_no_engine_needs_no_driver(installed: tuple[str, Path]) -> None:
    _, folder = installed
    assert run_python(folder, "-m", "weft", "--help")[0] == 0


def test_another_failure_stays_what_it_is(installed: tuple[str, Path]) -> None:
    _, folder = installed
    [metadata] = folder.glob("*.dist-info")
    metadata.rename(folder / "weft_llm-0.1.0.dist-info")
    code, said = run_python(folder, "-c", "import weft; weft.Engine")
    assert code == 1
    assert said.splitlines()[-1] == f"ImportError: {FILE}: cannot open shared object file"


def test_no_driver_is_to_blame_where_none_is_needed() -> None:
    assert driver.missing_driver() is None
