"""The process: how it starts, how it ends, and what it says."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import weft
from tests.helpers import turn_ns, wait_until
from tests.server.conftest import PROMPT
from tests.server.http2 import Http2Client
from tests.server.live import LiveServer, environ, events_of, free_port
from weft import InvalidConfigError
from weft.serving.protocol import reason_of


async def test_it_says_which_model_it_serves_and_where(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "-np", "2", "-c", "512", "--kv-unified") as server:
        await server.ready()
        await wait_until(lambda: "ready" in server.log)
        first, how, last = server.log.splitlines()
    assert first.endswith("INFO serving the demo model, storyteller-q8_0.gguf; give another with -m")
    assert re.search(r"INFO attention .+, products .+, at most \d+ tokens per decode, \d+ threads", how)
    assert re.search(r"INFO ready after \d+\.\d s: 2 slots, 512 tokens of context, at most 512 for one completion; ", last)
    assert last.endswith(server.url)


@pytest.mark.parametrize(("arguments", "n"), [([], 1), (["--threads-http", "3"], 3)])
async def test_connections_have_as_many_threads_as_are_asked_for(tmp_path: Path, arguments: list[str], n: int) -> None:
    def names() -> list[str]:
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [task.read_text().strip() for child in children for task in Path(f"/proc/{child}/task").glob("*/comm")]

    with LiveServer(tmp_path / "log", "-np", "1", *arguments) as server:
        await server.ready()
        assert names().count("tokio-rt-worker") == n


async def test_it_says_what_every_path_begins_with(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "-np", "1", "--api-prefix", "/llm/") as server:
        await wait_until(lambda: "ready" in server.log, 120)
    assert f"; {server.url}/llm\n" in server.log


async def test_a_named_model_is_served_without_a_word_about_the_demo(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "-m", weft.DEMO_MODEL, "-a", "mine", "-np", "1") as server:
        await server.ready()
        assert server.get("/v1/models")["data"][0]["id"] == "mine"
        assert len(server.get("/slots")) == 1
    assert "demo" not in server.log


async def test_it_listens_while_the_model_is_loaded(tmp_path: Path) -> None:
    # Whoever reads a pipe waits for its writer, so this model is being loaded for as long as we like.
    model = tmp_path / "model.gguf"
    os.mkfifo(model)
    with LiveServer(tmp_path / "log", "-m", str(model)) as server:

        def answer() -> httpx.Response | None:
            try:
                return httpx.get(f"{server.url}/health")
            except httpx.TransportError:
                return None

        await wait_until(lambda: answer() is not None)
        response = answer()
        assert response is not None
        assert response.status_code == 503
        error = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
        assert response.json() == {"status": "loading model", "error": error}


@pytest.mark.parametrize(("data", "reason"), [(None, "there is no such file"), (b"not a model", "it is not a GGUF file")])
def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason_last(tmp_path: Path, data: bytes | None, reason: str) -> None:
    model = tmp_path / "model.gguf"
    if data is not None:
        model.write_bytes(data)
    with LiveServer(tmp_path / "log", "-m", str(model)) as server:
        assert server.process.wait(20) == 1
    assert f"ERROR cannot load the model {model}: {reason}" in server.log.splitlines()[-1]
    assert "Traceback" not in server.log


def test_settings_that_do_not_fit_the_model_end_it_with_the_reason_last(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "-ctv", "q8_0", "-fa", "off") as server:
        assert server.process.wait(20) == 1
    last = server.log.splitlines()[-1]
    assert last.endswith(" ERROR -ctv/--cache-type-v is q8_0, which requires flash attention; turn it on, or use f16")


@pytest.mark.parametrize(
    ("param", "message", "said"),
    [
        (
            "image_min_tokens",
            "image_min_tokens is 9; it must be at most image_max_tokens, 4",
            "--image-min-tokens is 9; it must be at most --image-max-tokens, 4",
        ),
        ("n_ctx", "a context takes 9 bytes; set a smaller n_ctx", "a context takes 9 bytes; set a smaller -c/--ctx-size"),
        ("pooling", "pooling is rank, but the model ranks nothing", "--pooling is rank, but the model ranks nothing"),
        ("lora", "cannot load a.gguf: there is no such file", "--lora: cannot load a.gguf: there is no such file"),
        # What llama.cpp calls a thing, what a file is called, and what is quoted are no settings.
        (
            "mmproj",
            "cannot load /a/qwen-mmproj.gguf: n_embd is not that of mmproj",
            "-mm/--mmproj: cannot load /a/qwen-mmproj.gguf: n_embd is not that of mmproj",
        ),
        (
            "lora",
            "cannot load n_ctx.gguf: blk.0.weight.lora_a is cut",
            "--lora: cannot load n_ctx.gguf: blk.0.weight.lora_a is cut",
        ),
        (
            "chat_template",
            """expected a name, got 'system_prompt', "n_ctx" or `n_batch`""",
            """--chat-template: expected a name, got 'system_prompt', "n_ctx" or `n_batch`""",
        ),
    ],
)
def test_settings_are_named_as_a_user_spells_them_and_nothing_else_is(param: str, message: str, said: str) -> None:
    assert reason_of(InvalidConfigError(param, message)) == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--grammar", "root ::= ("), "--grammar: invalid grammar: line 1, column 11: expected ), found the end"),
        (("-j", '{"type": "word"}'), "-j/--json-schema: the JSON schema is refused in line 1, column 10: "),
        (("-l", "99999+1"), "-l/--logit-bias: token 99999 is not in the vocabulary (2048 tokens)"),
    ],
)
def test_what_every_completion_would_be_refused_for_ends_it(tmp_path: Path, arguments: tuple[str, str], said: str) -> None:
    with LiveServer(tmp_path / "log", "-np", "1", *arguments) as server:
        assert server.process.wait(20) == 1
    assert f" ERROR {said}" in server.log.splitlines()[-1]


def test_a_system_prompt_that_does_not_fit_ends_it_with_its_flag(tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("much " * 2_000)
    with LiveServer(tmp_path / "log", "-np", "1", "-spf", str(file)) as server:
        assert server.process.wait(20) == 1
    assert " ERROR -spf/--system-prompt-file: the prompt of " in server.log.splitlines()[-1]


def test_a_port_that_is_taken_ends_it(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server, socket.socket() as other:
        server.process.kill()
        server.process.wait()
        other.bind(("127.0.0.1", 0))
        other.listen()
        ended = subprocess.run(
            [sys.executable, "-m", "weft", "--port", str(other.getsockname()[1])],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            env=environ(),
        )
    assert ended.returncode == 1
    assert re.fullmatch(r".* ERROR cannot listen on 127\.0\.0\.1:\d+: Address already in use\n", ended.stderr)


async def test_of_two_servers_that_are_started_at_once_at_one_port_one_ends(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "one") as one, LiveServer(tmp_path / "two", port=one.port) as two:
        await wait_until(lambda: (one.process.poll() is None) != (two.process.poll() is None))
        ended, serving = (one, two) if two.process.poll() is None else (two, one)
        await serving.ready()
    assert ended.process.returncode == 1
    assert re.fullmatch(r".* ERROR cannot listen on 127\.0\.0\.1:\d+: Address already in use\n", ended.log)
    assert serving.process.returncode == 0


STOPPED = '{"error":{"code":503,"message":"the engine has stopped","type":"unavailable_error"}}'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_it_within_two_seconds_and_its_answers_with_an_error(tmp_path: Path, number: signal.Signals) -> None:
    with LiveServer(tmp_path / "log", "--context-shift") as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client, Http2Client(server.port) as idle:
            await idle.first_data(await idle.request("GET", "/health"))
            endless = {"prompt": PROMPT, "n": 4, "ignore_eos": True}
            asking = asyncio.create_task(client.post("/completion", json=endless))
            async with client.stream("POST", "/completion", json=endless | {"stream": True}) as streamed:
                await wait_until(lambda: len(server.busy_slots()) == 8)
                signalled = time.monotonic()
                server.process.send_signal(number)
                events = events_of((await streamed.aread()).decode())
            whole = await asking
            await wait_until(lambda: server.process.poll() is not None)
            assert time.monotonic() - signalled < 2
    assert server.process.returncode == 0
    assert (streamed.status_code, events[-1]) == (200, STOPPED)
    assert (whole.status_code, whole.text) == (503, STOPPED)
    assert "ERROR" not in server.log


async def test_a_hangup_that_was_ignored_where_it_was_started_does_not_end_it(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = LiveServer(tmp_path / "log")
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        await server.ready()
        worker = server.worker_id()
        server.process.send_signal(signal.SIGHUP)
        os.kill(worker, signal.SIGHUP)
        await asyncio.sleep(0.5)
        assert server.worker_id() == worker
        assert server.get("/health")["status"] == "ok"


def turns(process: int) -> dict[str, set[int]]:
    """Of its threads, by their names."""
    found: dict[str, set[int]] = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        found.setdefault((task / "comm").read_text().strip(), set()).add(turn_ns(int(task.name)))
    return found


async def test_threads_that_answer_do_not_wait_for_turns_of_those_that_compute(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server:
        await server.ready()
        of_thread = turns(server.worker_id())
    # Linux before 6.12 has no turns to choose.
    answering, computing = (100_000, 20_000_000) if turn_ns(0) else (0, 0)
    assert (of_thread["tokio-rt-worker"], of_thread["weft-worker"]) == ({answering}, {computing})
    assert answering in of_thread["python"]


async def test_a_client_that_does_not_read_cannot_hold_the_end_up(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server, socket.socket() as client:
        await server.ready()
        client.connect(("127.0.0.1", server.port))
        body = b'{"prompt": "Once", "n": 200, "ignore_eos": true, "stream": true, "n_probs": 100}'
        client.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await wait_until(lambda: len(server.busy_slots()) == 8)
        signalled = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: server.process.poll() is not None)
        assert time.monotonic() - signalled < 2
    assert server.process.returncode == 0


async def test_a_signal_ends_it_while_it_loads(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    os.mkfifo(model)
    with LiveServer(tmp_path / "log", "-m", str(model)) as server:
        await wait_until(lambda: _listens(server.port))
        signalled = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await wait_until(lambda: server.process.poll() is not None)
        assert time.monotonic() - signalled < 2
    assert server.process.returncode == 0
    assert "ERROR" not in server.log


async def test_native_code_that_crashes_is_started_again(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server:
        await server.ready()
        crashed = server.worker_id()
        os.kill(crashed, signal.SIGSEGV)
        await wait_until(lambda: crashed not in server.worker_ids())
        await server.ready()
        assert server.worker_id() != crashed


DYING = """
import signal
import weft
from weft.cli.main import main

start = weft.Engine.start

async def start_mortal(engine):
    await start(engine)
    signal.signal(signal.SIGUSR1, lambda *_: engine._native.stop())

weft.Engine.start = start_mortal
if __name__ == "__main__":
    main()
"""
"""The server, with an engine that a signal to the worker kills."""


async def test_an_engine_that_dies_is_logged_told_to_its_clients_and_started_again(tmp_path: Path) -> None:
    program = tmp_path / "dying.py"
    program.write_text(DYING)
    with LiveServer(tmp_path / "log", program=[str(program)]) as server:
        await server.ready()
        dying = server.worker_id()
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            asking = asyncio.create_task(client.post("/completion", json={"prompt": PROMPT, "n": 100, "ignore_eos": True}))
            await wait_until(lambda: len(server.busy_slots()) == 8, 15)
            os.kill(dying, signal.SIGUSR1)
            answer = await asking
        await wait_until(lambda: dying not in server.worker_ids(), 15)
        await server.ready()
        assert server.worker_id() != dying
    assert (answer.status_code, answer.text) == (503, STOPPED)
    assert server.log.count("CRITICAL the engine has died") == 1
    assert server.process.returncode == 0


async def test_a_worker_whose_supervisor_was_killed_ends_too(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log") as server:
        await server.ready()
        worker = Path(f"/proc/{server.worker_id()}")
        server.process.kill()
        await wait_until(lambda: not worker.exists())


@contextmanager
def serving_at(terminal: int, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "weft", "--port", str(free_port()), "-t", "1", *arguments]
    with subprocess.Popen(command, stderr=terminal, env=environ()) as process:
        try:
            yield process
        finally:
            # Leaving waits for the process, without a deadline.
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def shown_on_a_terminal(*arguments: str, n_columns: int | None = None) -> str:
    """What a terminal shows of a server from its start until it is ready and ended."""
    ours, theirs = os.openpty()
    if n_columns is not None:
        termios.tcsetwinsize(theirs, (24, n_columns))
    with serving_at(theirs, *arguments) as process:
        os.close(theirs)
        os.set_blocking(ours, False)
        shown = ""

        def is_ready() -> bool:
            nonlocal shown
            with suppress(BlockingIOError):
                shown += os.read(ours, 65_536).decode()
            return " ready after " in shown

        await wait_until(is_ready, 120)
        process.send_signal(signal.SIGTERM)
        await wait_until(lambda: process.poll() is not None)
    os.close(ours)
    return shown


async def test_a_terminal_sees_how_much_is_loaded() -> None:
    assert f"\rloading storyteller-q8_0.gguf [{'#' * 30}] 100%" in await shown_on_a_terminal()
