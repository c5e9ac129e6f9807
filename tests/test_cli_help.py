"""Output of `--help`, `--completion` and similar flags."""

import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from weft import _native
from weft.cli.commands import COMMANDS, SERVE, TUNE, Command
from weft.cli.flags_without_setting import ACCEPTED
from weft.cli.help import COMMON
from weft.cli.main import main, parse
from weft.settings import table

ROOT = Path(__file__).parent.parent


def _printed(
    arguments: list[str], capsys: pytest.CaptureFixture[str], environ: dict[str, str] | None = None, command: Command = SERVE
) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, environ or {}, command)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_whole_help_shows_every_setting_and_every_variable_once(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["--help-all"], capsys)
    heads = [line[2:].split("  ")[0] for line in shown.splitlines() if line.startswith("  -")]
    spelt = Counter(name.split(" ")[0].rstrip(",") for head in heads for name in head.split(", "))
    rows = [flag for flag in table().values() if flag.spellings]
    assert all(spelt[name] == 1 for flag in rows for name in flag.spellings)
    assert all(shown.count(f"[{flag.env}]") == 1 for flag in rows if flag.env is not None)


PARSED = [pytest.param(command, id=name) for name, command in COMMANDS.items()]


@pytest.mark.parametrize("command", PARSED)
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_is_at_most_100_columns_wide_and_that_of_common_settings_100_lines_long(
    command: Command, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _printed([flag], capsys, command=command).splitlines()
    assert max(map(len, lines)) <= 100
    assert flag == "--help-all" or len(lines) <= 100


def test_help_shows_commands_examples_and_common_settings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["--help"], capsys)
    words = set(shown.replace(",", " ").split())
    assert words >= COMMANDS.keys()
    assert {"-m", "-c", "-np", "--host", "--port", "--api-key", "--config", "--help-all"} <= words
    assert all(words & set(table()[name].spellings) for name in COMMON)
    assert "--defrag-thold" not in shown


@pytest.mark.parametrize("command", PARSED)
def test_the_examples_of_help_are_command_lines(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weft.toml").touch()
    assert [parse(shlex.split(flags), {}, command).warnings for flags, _ in command.examples] == [()] * len(command.examples)


def test_the_whole_help_lists_flags_without_a_meaning_last(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["--help-all"], capsys)
    settings, _, rest = shown.partition("always on:")
    assert "accepted, with a warning" in rest
    assert "not supported:" in rest
    words = set(rest.split())
    assert all(name in words for accepted in ACCEPTED for name in accepted.names)
    assert len(rest.splitlines()) < 60
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


COMPLETED = [
    pytest.param(["--ctx-s"], {"--ctx-size"}, id="flag of the default command"),
    pytest.param(["tu"], {"tune"}, id="command"),
    pytest.param(["tune", "--kern"], {"--kernels"}, id="flag of a command"),
    pytest.param(["tune", "--por"], set(), id="flag of another command"),
    pytest.param(["top", "--int"], {"--interval"}, id="flag of top"),
]


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
@pytest.mark.parametrize("flags", [["--completion-bash"], ["--completion", "bash"]], ids=" ".join)
def test_bash_completes_commands_and_flags(
    flags: list[str], words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = _printed(flags, capsys)
    call = f"COMP_WORDS=(weft {shlex.join(words)}); COMP_CWORD={len(words)}; _weft; echo ${{COMPREPLY[@]}}"
    command = ["bash", "-c", f"{script}\n{call}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, cwd=tmp_path)
    assert set(ran.stdout.split()) == expected


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_fish_completes_commands_and_flags(
    words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "weft.fish").write_text(_printed(["--completion", "fish"], capsys))
    command = ["fish", "--no-config", "-c", f'source weft.fish; complete -C "weft {shlex.join(words)}"']
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, cwd=tmp_path)
    assert {line.split("\t")[0] for line in ran.stdout.splitlines()} == expected


def test_zsh_loads_its_completion_script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "_weft").write_text(_printed(["--completion", "zsh"], capsys))
    call = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump; source {tmp_path}/_weft; print $_comps[weft]"
    ran = subprocess.run(["zsh", "-f", "-c", call], capture_output=True, text=True, check=True, timeout=20)
    assert (ran.stdout, ran.stderr) == ("_weft\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = _printed(["--completion", shell], capsys)
    assert all(name in script for name in COMMANDS)
    assert "defrag-thold" in script


def test_an_unknown_shell_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--completion", "tcsh"], {})
    assert ended.value.code == 2
    assert "'tcsh' is not one of bash, zsh, fish" in capsys.readouterr().err


def test_serve_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--port", "x"])
    assert ended.value.code == 2
    assert "argument --port" in capsys.readouterr().err


def test_a_model_may_be_named_without_a_flag() -> None:
    assert parse(["a.gguf", "-ctk", "q8_0"], {}, TUNE).settings.model == "a.gguf"


def test_a_flag_of_serving_is_unknown_to_tuning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--port", "80"], {}, TUNE)
    assert ended.value.code == 2
    assert "python -m weft tune: error: unknown argument --port" in capsys.readouterr().err


def test_the_page_of_flags_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/flag_table.py"], capture_output=True, text=True, check=True, timeout=20
    )
    assert (ROOT / "docs/reference/flags.md").read_text(encoding="utf-8") == made.stdout, (
        "scripts/flag_table.py > docs/reference/flags.md"
    )


def test_the_devices_are_listed_with_their_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _printed(["--list-devices"], capsys)
    assert shown.startswith("Available devices:\n  ")
    assert ("  (none)\n" in shown) == (_native.devices() == [])
    monkeypatch.setattr(_native, "devices", lambda: [("CUDA0", "Abacus 9000", 2**33, 2**32 + 5)])
    assert _printed(["--list-devices"], capsys) == "Available devices:\n  CUDA0: Abacus 9000 (8192 MiB, 4096 MiB free)\n"
