"""What is printed in place of serving."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from weft import _native
from weft.cli.flags_without_setting import ACCEPTED
from weft.cli.main import SERVE, TUNE, Command, parse
from weft.settings import table

ROOT = Path(__file__).parent.parent


def _printed(arguments: list[str], capsys: pytest.CaptureFixture[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environ or {})
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_shows_every_setting_and_every_variable_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["--help"], capsys)
    heads = [line[2:].split("  ")[0] for line in shown.splitlines() if line.startswith("  -")]
    spelt = Counter(name.split(" ")[0].rstrip(",") for head in heads for name in head.split(", "))
    rows = [flag for flag in table().values() if flag.spellings]
    assert all(spelt[name] == 1 for flag in rows for name in flag.spellings)
    assert all(shown.count(f"[{flag.env}]") == 1 for flag in rows if flag.env is not None)


def test_help_begins_with_what_is_needed_most(capsys: pytest.CaptureFixture[str]) -> None:
    first = _printed(["--help"], capsys).splitlines()[:12]
    words = {word for line in first for word in line.split()}
    assert {"-m", "-c", "-np", "--host", "--port", "--api-key", "--config"} <= words


@pytest.mark.parametrize("command", [SERVE, TUNE], ids=["serve", "tune"])
def test_the_examples_of_help_are_command_lines(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weft.toml").touch()
    assert [parse(flags.split(), {}, command).warnings for flags, _ in command.examples] == [()] * len(command.examples)


def test_help_lists_flags_without_a_meaning_last_and_is_no_wider_than_its_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["-h"], capsys)
    settings, _, rest = shown.partition("always on:")
    assert "accepted, with a warning" in rest
    assert "not supported:" in rest
    words = set(rest.split())
    assert all(name in words for accepted in ACCEPTED for name in accepted.names)
    assert len(rest.splitlines()) < 60
    assert max(map(len, shown.splitlines())) <= 130
    assert "--defrag-thold" not in settings


def test_help_of_tuning_shows_what_tuning_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {}, TUNE)
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "-m, --model FNAME" in shown
    assert "--port" not in shown


def test_help_is_shown_also_where_a_variable_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: " in _printed(["--usage"], capsys, {"LLAMA_ARG_PORT": "http"})


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(["--version"], capsys).startswith("weft ")


def test_bash_completes_flags(capsys: pytest.CaptureFixture[str]) -> None:
    script = _printed(["--completion-bash"], capsys)
    asked = "COMP_WORDS=(weft --ctx-s); COMP_CWORD=1; _weft; echo ${COMPREPLY[@]}"
    answer = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True, timeout=10)
    assert answer.stdout == "--ctx-size\n"


def test_a_flag_of_serving_is_unknown_to_tuning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--port", "80"], {}, TUNE)
    assert ended.value.code == 2
    assert "python -m weft tune: error: unknown argument --port" in capsys.readouterr().err


def test_the_page_of_flags_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/flag_table.py"], capture_output=True, text=True, check=True, timeout=20
    )
    assert (ROOT / "docs/flags.md").read_text(encoding="utf-8") == made.stdout, "scripts/flag_table.py > docs/flags.md"


def test_the_devices_are_listed_with_their_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["--list-devices"], capsys)
    assert shown.startswith("Available devices:\n  ")
    assert ("  (none)\n" in shown) == (_native.devices() == [])
    monkeypatch.setattr(_native, "devices", lambda: [("CUDA0", "Abacus 9000", 2**33, 2**32 + 5)])
    assert _printed(["--list-devices"], capsys) == "Available devices:\n  CUDA0: Abacus 9000 (8192 MiB, 4096 MiB free)\n"
