"""What the log says of requests, as text and as JSON."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How, wait_until
from tests.server.conftest import PROMPT, answers
from tests.server.live import LiveServer, environ, free_port
from tests.server.scripted import connect
from weft.cli.main import parse
from weft.server import create_app
from weft.serving.logs import FIELDS, JsonLines, TextLines, log_config
from weft.settings import Settings


def record(message: str, *args: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("weft.test", level, "file", 1, message, args, None)
    made.created = 1_769_863_200.5
    made.__dict__ |= extra
    return made


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({}, r"\d\d:\d\d:\d\d WARNING 3 words"),
        ({"timestamps": False}, r"WARNING 3 words"),
        ({"prefix": False}, r"\d\d:\d\d:\d\d 3 words"),
        ({"timestamps": False, "prefix": False}, r"3 words"),
        ({"colors": True, "timestamps": False}, "\033\\[33mWARNING\033\\[0m 3 words"),
    ],
)
def test_a_line_of_text_has_what_was_asked_for(options: dict[str, bool], pattern: str) -> None:
    made = record("%d words", 3, level=logging.WARNING)
    assert re.fullmatch(pattern, TextLines(**options).format(made))
    assert made.levelname == "WARNING"


def test_a_line_of_json_is_one_object_with_the_fields_of_its_record() -> None:
    made = record("a\nb é")
    setattr(made, FIELDS, {"status": 200, "path": Path("/a")})
    line = JsonLines().format(made)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-01-31T12:40:00.500Z",
        "level": "info",
        "logger": "weft.test",
        "message": "a\nb é",
        "status": 200,
        "path": "/a",
    }


def test_a_line_of_json_holds_what_was_raised() -> None:
    try:
        raise ValueError("no such luck")
    except ValueError:
        made = record("it failed", exc_info=sys.exc_info())
    assert json.loads(JsonLines().format(made))["exception"].endswith("ValueError: no such luck")


@pytest.mark.parametrize(
    ("arguments", "handlers"),
    [
        ("", {"stream": ("ext://sys.stderr", "weft.serving.logs.TextLines")}),
        ("--log-format json", {"stream": ("ext://sys.stdout", "weft.serving.logs.JsonLines")}),
        ("--log-disable --log-file x", {"none": (None, None)}),
    ],
)
def test_lines_go_where_they_are_wanted(arguments: str, handlers: dict[str, tuple[str | None, str | None]]) -> None:
    config = log_config(parse(arguments.split(), {}).settings)
    assert config["root"]["handlers"] == list(handlers)
    for name, (stream, formatter) in handlers.items():
        handler = config["handlers"][name]
        assert handler.get("stream") == stream
        assert config["formatters"].get(handler.get("formatter"), {}).get("()") == formatter


@pytest.mark.parametrize(
    ("arguments", "level"), [("-lv 0", "ERROR"), ("-lv 2", "WARNING"), ("", "INFO"), ("-lv 4", "INFO"), ("-v", "DEBUG")]
)
def test_the_verbosity_is_the_level(arguments: str, level: str) -> None:
    config = log_config(parse(arguments.split(), {}).settings)
    assert logging.getLevelName(config["root"]["level"]) == level


@pytest.mark.parametrize(
    ("colors", "no_color", "is_terminal", "expected"),
    [
        ("on", "1", False, True),
        ("off", "", True, False),
        ("auto", "", True, True),
        ("auto", "", False, False),
        ("auto", "1", True, False),
    ],
)
def test_levels_have_colours_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, colors: str, no_color: str, *, is_terminal: bool, expected: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("NO_COLOR", no_color)
    config = log_config(parse(["--log-colors", colors, "--log-file", "x"], {}).settings)
    assert config["formatters"]["stream"]["colors"] is expected
    assert config["formatters"]["file"]["colors"] is False


async def test_a_request_is_one_line_with_its_tokens_and_times(caplog: pytest.LogCaptureFixture) -> None:
    app = create_app(weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        caplog.set_level(logging.INFO, "weft.server.request_line")
        body = {"prompt": PROMPT, "n": 3, "n_predict": 8, "ignore_eos": True}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200
        await client.post("/completion", json={"prompt": PROMPT, "n_predict": 1, "stream": True})
        await client.get("/no/such%0Aroute")
        await client.get("/health")
        pairs = [(await client.post("/completion", json=body | {"n": 1, "n_predict": 2})).status_code for _ in range(5)]
    n_prompt = answer.json()["usage"]["prompt_tokens"]
    first, second, third, *of_two = [made for made in caplog.records if made.name == "weft.server.request_line"]
    fields: dict[str, Any] = getattr(first, FIELDS)
    assert fields == fields | {
        "method": "POST",
        "path": "/v1/completions",
        "client": "testclient",
        "status": 200,
        "n": 3,
        "n_finished": 3,
        "prompt_tokens_computed": n_prompt,
        "prompt_tokens_cached": 2 * n_prompt,
        "tokens_predicted": 24,
    }
    assert fields["ms"] >= fields["predicted_ms"] > 0
    assert fields["queue_ms"] >= 0
    assert fields["prompt_ms"] > 0
    assert fields["tokens_per_second"] == pytest.approx(1000 * 21 / fields["predicted_ms"], rel=0.2)
    assert re.fullmatch(
        rf"POST /v1/completions 200 \d+ ms: 3 completions, prompt {n_prompt} computed \+ {2 * n_prompt} cached"
        r" in \d+ ms after \d+ ms in the queue, 24 predicted in \d+ ms, \d+\.\d tokens/s",
        first.getMessage(),
    )
    fields = getattr(second, FIELDS)
    assert (fields["n"], fields["tokens_predicted"], fields["tokens_per_second"]) == (1, 1, 0)
    assert fields["prompt_tokens_computed"] + fields["prompt_tokens_cached"] == n_prompt
    assert re.fullmatch(r"GET /no/such%0Aroute 404 \d+ ms, refused: no_route", third.getMessage())
    # Two tokens mostly arrive together; that is no reason to call it 0 tokens a second.
    assert pairs == [200] * len(of_two)
    assert all(getattr(line, FIELDS)["tokens_per_second"] > 0 for line in of_two)


@pytest.mark.parametrize("how", ["stream", "whole"])
async def test_a_request_whose_client_leaves_tells_how_far_it_came(caplog: pytest.LogCaptureFixture, how: How) -> None:
    app = create_app(weft.Engine(n_slots=2, n_ctx=512, kv_unified=True, n_threads=1), Settings(ping_s=None))
    body = {"prompt": PROMPT, "n": 2, "ignore_eos": True, "stream": how == "stream"}
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        caplog.set_level(logging.INFO, "weft.server.request_line")
        await connect(app, "/completion", body, lambda sent: how == "whole" or len(sent) > 3)
    [line] = [made for made in caplog.records if made.name == "weft.server.request_line"]
    fields = getattr(line, FIELDS)
    status, answered = (200, "200") if how == "stream" else (None, "no answer")
    assert (fields["status"], fields["n"], fields["n_finished"], fields["client"]) == (status, 2, 0, "-")
    # Of a whole answer, nobody knows how much was drawn by the time that the client left.
    assert how == "whole" or fields["tokens_predicted"] > 0
    assert re.match(rf"POST /completion {answered} \d+ ms: 0 of 2 completions, \d+ predicted", line.getMessage())


@contextmanager
def _serving(folder: Path, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen([sys.executable, "-m", "weft", *arguments], stdout=out, stderr=err, env=environ())
    with process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_server_writes_json_to_its_output_and_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"message": "an earlier start"}\n')
    arguments = ["--port", str(free_port()), "-t", "1", "--log-format", "json", "--log-file", str(file), "--defrag-thold", "2"]
    with _serving(tmp_path, arguments) as process:
        await wait_until(lambda: '"ready after' in file.read_text(), 120)
        process.terminate()
        await wait_until(lambda: process.poll() is not None)
    assert process.returncode == 0
    earlier, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert earlier == {"message": "an earlier start"}
    assert [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()] == lines
    assert (tmp_path / "err").read_text() == ""
    assert lines[0] == lines[0] | {
        "level": "warning",
        "logger": "weft",
        "message": "argument --defrag-thold has no meaning here: the cache is compacted automatically",
    }
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)


async def test_a_log_that_is_switched_off_is_empty(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "--log-disable", "-nocb") as server:
        await server.ready()
    assert server.log == ""


def test_a_log_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "weft", "--log-file", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
        env=environ(),
    )
    assert ended.returncode == 1
    assert ended.stderr == f"cannot log to {tmp_path}: [Errno 21] Is a directory: '{tmp_path}'\n"
