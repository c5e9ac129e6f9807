"""Clients that are installed for development are tried as `make clients` tries all of them; the page tells of each."""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clients.run import BEGIN, CLIENTS, END, PAGE, Client, page
from tests.server.live import LiveServer

HERE = Path(__file__).parent

LIGHT = ("openai_python.py", "anthropic_python.py", "ollama_python.py")
"""Programs whose clients are installed for development."""


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("clients") / "log", "-np", "4", program=("-m", "tests.clients.actor")) as server:
        await server.ready()
        yield server


@pytest.mark.parametrize("script", LIGHT)
def test_every_feature_of_a_client_works(server: LiveServer, script: str) -> None:
    command = [sys.executable, str(HERE / "scripts" / script), server.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    told = ran.stdout.splitlines()
    assert [line for line in told if not line.startswith("PASS ")] == [], ran.stderr
    assert (ran.returncode, len(told) > 5) == (0, True)


def test_a_feature_that_fails_is_told_and_ends_with_1(tmp_path: Path) -> None:
    script = tmp_path / "tries.py"
    script.write_text(
        "from report import feature, run\n"
        "@feature('one')\ndef one(): assert True\n"
        "@feature('two')\ndef two(): raise ValueError('no  such\\nthing')\n"
        "run()\n"
    )
    ran = subprocess.run(
        [sys.executable, script, "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PYTHONPATH": str(HERE / "scripts")},
    )
    assert (ran.returncode, ran.stdout.splitlines()) == (1, ["PASS one", "FAIL two: ValueError: no such thing"])


def test_every_program_is_tried_and_every_pin_is_one() -> None:
    programs = {path.name for path in (HERE / "scripts").iterdir() if path.is_file() and path.stem != "report"}
    assert programs == {client.script for client in CLIENTS}
    pins = {path.name for path in (HERE / "requirements").iterdir()}
    assert pins == {client.requirements for client in CLIENTS}
    for client in CLIENTS:
        pattern = r"(@[\w-]+/)?[\w.-]+@\d[\w.-]*" if client.is_node else r"[\w.-]+(\[[\w,]+\])?==\d[\w.]*"
        assert all(re.fullmatch(pattern, package) for package in client.packages), client.packages


def test_the_page_tells_of_every_client_in_the_version_that_is_pinned() -> None:
    told = PAGE.read_text(encoding="utf-8")
    for client in CLIENTS:
        row = re.search(rf"^\| {re.escape(client.name)}(?:, [^|]+)? \| ([^|]+) \|", told, re.MULTILINE)
        assert row is not None, f"{client.name} is not on the page; run `make clients`"
        assert row[1] == client.version, f"{client.name} was tried in another version; run `make clients`"


def test_a_client_of_several_dialects_has_a_row_for_each() -> None:
    found: dict[str, dict[str, bool]] = {client.name: {"chat": True} for client in CLIENTS}
    found["litellm"] = {"chat (openai)": True, "tools (openai)": False, "chat (ollama)": True, "odd (ollama)": False}
    told = page(found)
    version = _named("litellm").version
    assert f"| litellm, openai | {version} |  | ✓ |  | ✗ |" in told
    assert f"| litellm, ollama | {version} |  | ✓ |  |  |" in told
    assert "| odd (ollama) ✗ |" in told
    kept = PAGE.read_text(encoding="utf-8")
    assert (told.partition(BEGIN)[0], told.partition(END)[2]) == (kept.partition(BEGIN)[0], kept.partition(END)[2])
    assert told.count(BEGIN) == told.count(END) == 1


def test_the_page_has_the_tables_that_the_generator_writes() -> None:
    kept = PAGE.read_text(encoding="utf-8")
    for client in CLIENTS:
        assert f"[`{client.script}`](../../tests/clients/scripts/{client.script})" in kept
    head = page({client.name: {"chat": True} for client in CLIENTS})
    for line in [line for line in head.splitlines() if line.startswith(("| client", "| ---"))]:
        assert line in kept


def _named(name: str) -> Client:
    return next(client for client in CLIENTS if client.name == name)
