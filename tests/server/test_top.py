"""`weft top` shows what a server does, in a terminal and in plain text."""

import asyncio
import fcntl
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NoReturn

import httpx
import pytest
from rich.console import Console

from tests.server.live import LiveServer, environ
from weft.cli.main import main
from weft.cli.top.client import Server
from weft.cli.top.command import top
from weft.cli.top.server_access import NoAnswerError
from weft.cli.top.state import Cache, Cells, HostCache, Node, Properties, Rates, ServerState, Slot, metrics
from weft.cli.top.view import page

PROMPT = "Once upon a time, there was a fox who lived in the forest near the old village by the river."
KEY = "sesame"


@pytest.fixture(autouse=True)
def at_a_terminal() -> Iterator[None]:
    """Ctrl-C means something: where tests run in the background of a script it is ignored, which processes inherit."""
    handled = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handled)


@pytest.fixture(scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server with metrics and a key, and something in its cache."""
    arguments = ("--metrics", "--api-key", KEY, "-np", "4", "-c", "4096")
    with LiveServer(tmp_path_factory.mktemp("top") / "log", *arguments) as server:
        await server.ready()
        await asyncio.to_thread(complete, server, 3)
        yield server


def complete(server: LiveServer, n: int, n_predict: int = 4) -> None:
    body = {"prompt": PROMPT, "n": n, "n_predict": n_predict, "ignore_eos": True}
    httpx.post(f"{server.url}/completion", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=30).raise_for_status()


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "top", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, env=environ() | more)


async def test_once_is_plain_text_with_all_that_is_told(watched: LiveServer) -> None:
    ran = await asyncio.to_thread(run, watched.url, "--once", "--api-key", KEY, "--interval", "0.1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    lines = [line.rstrip() for line in ran.stdout.splitlines()]
    assert lines[0].startswith(f"weft top · {watched.url} · ")
    assert "slots   0 of 4 busy    queue 0" in lines
    assert any(re.fullmatch(r"cells   [#.]{30} [\d,]+ of 4,096 \(\d+ %\), [\d,]+ idle", line) for line in lines)
    assert any(re.fullmatch(r"host    [\d.,]+ of [\d.,]+ MiB of host cache, \d+ nodes", line) for line in lines)
    assert "tokens  generated 0.0/s    prompt computed 0.0/s    cached 0.0/s" in lines
    # The prompt was computed once for three.
    assert "hits    - of prompt tokens now, 67 % since the start" in lines
    assert sum(line.endswith("idle") and line.split()[0].isdigit() for line in lines) == 4
    assert any(re.fullmatch(r" *2 +\d+ +\w+ +<s>Once upon a time, there was .*", line) for line in lines), ran.stdout


async def test_rates_are_of_the_time_between_two_looks(watched: LiveServer) -> None:
    asking = Server(watched.url, KEY)
    before = await asyncio.to_thread(asking.fetch_state)
    await asyncio.to_thread(complete, watched, 2, 10)
    now = await asyncio.to_thread(asking.fetch_state)
    rates, elapsed_s = Rates.between(before, now), now.when_s - before.when_s
    assert rates.generated is not None
    assert rates.generated * elapsed_s == pytest.approx(20)
    assert rates.computed is not None
    assert rates.computed * elapsed_s == pytest.approx(1)
    assert rates.cached is not None
    n_prompt = round((rates.cached + rates.computed) * elapsed_s) // 2
    assert rates.hit_rate == pytest.approx((2 * n_prompt - 1) / (2 * n_prompt))


async def test_the_key_may_stand_in_the_environment_and_is_asked_for(watched: LiveServer) -> None:
    ran = await asyncio.to_thread(lambda: run(watched.url, "--once", "--interval", "0.1", LLAMA_API_KEY=KEY))
    assert ran.returncode == 0
    for more in ([], ["--api-key", "wrong"]):
        ran = await asyncio.to_thread(run, watched.url, "--once", *more)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr == f"top: {watched.url} requires an API key; set it with --api-key or LLAMA_API_KEY\n"


@contextmanager
def terminal(*arguments: str) -> "Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str]]]":
    """`weft top` in a terminal of 30 lines, and what waits until something is on its screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "weft", "top", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ() | {"TERM": "xterm"})
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        while True:
            try:
                seen.extend(os.read(ours, 65_536))
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()

    def shows(text: str) -> str:
        end = time.monotonic() + 20
        while text.encode() not in seen:
            assert time.monotonic() < end, bytes(seen)
            time.sleep(0.01)
        return seen.decode()

    try:
        yield process, shows
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(ours)


async def test_a_terminal_is_filled_again_and_again_until_ctrl_c(watched: LiveServer) -> None:
    def watch() -> None:
        with terminal(watched.url, "--api-key", KEY, "--interval", "0.1") as (process, shows):
            assert "\x1b[?1049h" in shows("4 busy")
            complete(watched, 5)
            shows("Once upon a time")
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            # The screen of before is there again, with its cursor.
            assert "\x1b[?25h" in shows("\x1b[?1049l")

    await asyncio.to_thread(watch)


def test_a_ctrl_c_is_not_lost_where_a_destructor_swallows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swallowing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def look(_: Server) -> NoReturn:
        Swallowing()
        raise NoAnswerError("it is gone")

    monkeypatch.setattr(Server, "fetch_state", look)
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    assert top(None, url="http://127.0.0.1:1") == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


async def test_a_server_that_goes_and_comes_is_waited_for(tmp_path: Path) -> None:
    first = LiveServer(tmp_path / "first")
    with first:
        await first.ready()
    with terminal(first.url, "--interval", "0.1") as (_, shows):
        await asyncio.to_thread(shows, "does not respond")
        with LiveServer(tmp_path / "second", port=first.port) as second:
            await second.ready()
            await asyncio.to_thread(shows, "started without --metrics")
            await asyncio.to_thread(shows, "8 busy")


async def test_what_is_no_terminal_gets_page_after_page_until_nobody_reads(watched: LiveServer) -> None:
    def watch() -> None:
        command = [sys.executable, "-m", "weft", "top", watched.url, "--interval", "0.1", "--api-key", KEY]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ()) as process:
            assert process.stdout is not None
            n_pages = 0
            while n_pages < 3:
                n_pages += process.stdout.readline().startswith("weft top · ")
            process.stdout.close()
            assert process.wait(20) == 1
            assert process.stderr is not None
            assert process.stderr.read() == ""

    await asyncio.to_thread(watch)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://example.org"], "is not the URL of a server"),
        (["file:///etc/passwd"], "is not the URL of a server"),
        (["http://"], "is not the URL of a server"),
        (["http://a?b=c"], "is not the URL of a server"),
        (["--interval", "0"], "argument --interval: 0.0 is not between 0.1 and 3600"),
        (["--interval", "nan"], "argument --interval: 'nan' is not a finite number"),
        (["--often"], "unknown argument --often"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # `main` sets the level of "weft" for its process; `caplog` restores it for the tests that follow.
    with caplog.at_level(logging.ERROR, "weft"), pytest.raises(SystemExit) as ended:
        main(["top", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_tells_what_it_is() -> None:
    ran = run("--help")
    assert ran.returncode == 0
    assert "--interval S" in ran.stdout


class Told(BaseHTTPRequestHandler):
    """Answers as a test says."""

    answers: ClassVar[dict[str, tuple[int, bytes]]]
    asked: ClassVar[list[tuple[str, str | None]]]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append((path, self.headers["Authorization"]))
        status, body = self.answers.get(path, (501, b'{"error": {"message": "not \\u001b[31m there"}}'))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body.decode())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pretended() -> Iterator[tuple[str, type[Told]]]:
    """A server that says what it is told to."""

    class Handler(Told):
        answers: ClassVar[dict[str, tuple[int, bytes]]] = {"/props": (200, b"{}")}
        asked: ClassVar[list[tuple[str, str | None]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Handler
        server.shutdown()
        thread.join()


CACHE = b'{"cells": {"total": 9, "used": 1, "idle": 0}, "host_cache": {"n_bytes": 1, "max_bytes": 9}, "n_nodes": 0, "nodes": []}'


def test_a_server_at_rest_is_not_asked_for_its_cache_again(pretended: tuple[str, type[Told]]) -> None:
    url, told = pretended
    told.answers |= {"/cache": (200, CACHE), "/slots": (200, b'[{"id": 0, "is_processing": false}]')}
    asking = Server(url)

    def n_asked() -> int:
        asking.fetch_state()
        return [path for path, _ in told.asked].count("/cache")

    assert [n_asked(), n_asked(), n_asked()] == [1, 1, 1]
    told.answers["/slots"] = (200, b'[{"id": 0, "is_processing": true}]')
    assert [n_asked(), n_asked()] == [2, 3]
    told.answers["/slots"] = (200, b'[{"id": 0, "is_processing": false}]')
    assert [n_asked(), n_asked()] == [4, 4]
    told.answers["/metrics"] = (200, b'llamacpp:tokens_predicted_total 1\nweft:step_seconds_total{stage="receive"} 1\n')
    assert [n_asked(), n_asked()] == [5, 5]
    told.answers["/metrics"] = (200, b'llamacpp:tokens_predicted_total 1\nweft:step_seconds_total{stage="receive"} 2\n')
    assert n_asked() == 5
    told.answers["/metrics"] = (200, b"llamacpp:tokens_predicted_total 2\n")
    assert n_asked() == 6
    told.answers["/props"] = (200, b'{"is_sleeping": true}')
    assert [n_asked(), asking.fetch_state().cache] == [6, None]
    told.answers["/props"] = (200, b"{}")
    assert n_asked() == 7


def test_a_key_is_shown_to_the_server_that_was_named_alone(pretended: tuple[str, type[Told]]) -> None:
    url, told = pretended
    told.answers = {"/props": (302, f"{url}/elsewhere".encode())}
    with pytest.raises(NoAnswerError, match="responded with 302"):
        Server(url, KEY).fetch_state()
    assert told.asked == [("/props", f"Bearer {KEY}")]


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"/props": (200, b"no JSON")}, "/props did not return a response of Weft"),
        ({"/props": (200, b"\xff")}, "/props did not return a response of Weft"),
        ({"/props": (500, b'{"error": {"message": "a \\u001b[31m b"}}')}, "responded with 500: a ␛"),
        ({"/props": (500, b"x")}, "responded with 500: Internal Server Error"),
        ({"/cache": (200, b'{"nodes": 5}')}, "did not return a response of Weft"),
        ({"/slots": (200, b'[{"id": 0, "is_processing": true, "n_prompt_tokens": -1}]')}, "did not return a response of Weft"),
    ],
)
def test_an_answer_that_cannot_be_understood_is_told(
    pretended: tuple[str, type[Told]], answers: dict[str, tuple[int, bytes]], message: str
) -> None:
    url, told = pretended
    told.answers |= answers
    with pytest.raises(NoAnswerError) as raised:
        Server(url).fetch_state()
    assert message in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_metrics_are_read_with_their_labels_and_summed_without() -> None:
    text = '# HELP a b\n# TYPE a counter\na{x="1"} 2\na{x="2"} 3.5\nb 1e3\nc_total NaN\n'
    found = metrics(text)
    assert found["a"] == 5.5
    assert (found['a{x="2"}'], found["b"]) == (3.5, 1000)


def look(when_s: float, *counts: float) -> ServerState:
    names = ("llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total")
    return ServerState(when_s, Properties(), None, dict(zip(names, counts, strict=True)), None)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, look(1, 9, 1, 3), Rates(total_hit_rate=0.75)),
        (look(1, 9, 1, 3), look(3, 29, 2, 6), Rates(10, 0.5, 1.5, 0.75, 0.75)),
        (look(1, 9, 1, 3), look(3, 9, 1, 3), Rates(0, 0, 0, None, 0.75)),
        # Started anew meanwhile.
        (look(1, 9, 1, 3), look(3, 5, 2, 6), Rates(total_hit_rate=0.75)),
        (look(1, 0, 0, 0), look(3, 0, 0, 0), Rates(0, 0, 0, None, None)),
        (look(1, 0, 0, 0), ServerState(3, Properties(), None, None, None), Rates()),
    ],
)
def test_rates_are_differences_over_time(before: ServerState | None, now: ServerState, expected: Rates) -> None:
    assert Rates.between(before, now) == expected


@pytest.mark.parametrize("height", [10, 30, 60])
def test_a_page_is_no_higher_than_its_terminal_and_says_what_is_left_out(height: int) -> None:
    slots = [Slot(place, is_processing=place >= 250, id_task=place) for place in range(256)]
    nodes = [Node(0, 10, f"text {hits}\x1b[31m", "device", [], is_pinned=False, n_hits=hits) for hits in range(100)]
    cache = Cache(Cells(9, 1, 0), HostCache(1, 1), 100, nodes)
    console = Console(width=100, height=height, highlight=False, markup=False)
    with console.capture() as captured:
        now = datetime(2020, 1, 1, tzinfo=UTC)
        console.print(page("URL", ServerState(0, Properties(), slots, {}, cache), Rates(), height=height, width=100, now=now))
    lines = captured.get().splitlines()
    assert len(lines) <= max(height, 20)
    assert "slots   6 of 256 busy    queue 0" in lines
    first = lines.index(next(line for line in lines if line.startswith("slot ")))
    # Those that run come first.
    assert lines[first + 1].split()[0] == "250"
    left_out = [int(found) for line in lines for found in re.findall(r"… and ([\d,]+) more", line)]
    n_slots = next(n for n, line in enumerate(lines[first:]) if "… and" in line) - 1
    assert left_out[0] == 256 - n_slots
    assert "\x1b" not in captured.get()
    hits = [int(line.split()[0]) for line in lines if "text" in line and line.split()[0].isdigit()]
    assert hits == list(range(99, 99 - len(hits), -1))
    assert left_out[1] == 99 - len(hits)
