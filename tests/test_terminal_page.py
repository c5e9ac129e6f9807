"""The page of commands shows command lines, tables and inputs that there are."""

import re
import shlex
from pathlib import Path

import pytest

from weft.cli.bench import HEAD
from weft.cli.chat.command import HELP
from weft.cli.commands import COMMANDS
from weft.cli.main import parse_command
from weft.cli.tune import table
from weft.work.tuning import Measurement

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "terminal.md").read_text(encoding="utf-8")
LINES = [line.rpartition("| ")[2] for line in re.findall(r"^\$ (.*weft \w+.*)$", PAGE, re.MULTILINE)]


@pytest.mark.parametrize("line", LINES)
def test_each_command_line_is_parsed(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    (_, warnings), _ = parse_command(arguments, {}, COMMANDS[name])
    assert warnings == ()


def test_the_transcripts_are_of_every_command_that_has_a_section() -> None:
    assert {line.split()[1] for line in LINES} == COMMANDS.keys() - {"serve"}


def test_every_command_is_listed_with_its_summary() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed == list(COMMANDS)


def test_the_table_of_the_benchmark_has_its_columns() -> None:
    assert HEAD in PAGE


def test_every_input_of_a_chat_is_explained() -> None:
    assert all(f"`{command}" in PAGE for command in re.findall(r"^/\w+", HELP, re.MULTILINE))


def test_the_table_of_tune_is_the_one_that_the_command_prints() -> None:
    [shown] = re.findall(r"^\$ weft tune .*\n…\n(.*?)\n\nfastest: \d threads, \d for prompts$", PAGE, re.MULTILINE | re.DOTALL)
    measured: list[Measurement] = []
    for line in shown.splitlines()[1:]:
        found = re.fullmatch(r"(?P<title>.*?) {2,}weft +(?P<threads>\d+) +(?P<seconds>[\d.]+) +[\d.]+", line)
        assert found is not None, line
        work = {"a prompt of 1,000 tokens": "prompt", "8 branches of it, 128 tokens each": "branches"}.get(found["title"])
        measured.append(Measurement(work or measured[-1].work, None, int(found["threads"]), float(found["seconds"])))
    # The last column is a ratio of seconds that are not rounded.
    printed, expected = (re.sub(r"\d\.\d\d$", "", text, flags=re.MULTILINE) for text in (table(tuple(measured)), shown))
    assert printed == expected
