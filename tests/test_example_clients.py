"""The clients in examples/clients, each against a server of the demo model."""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import httpx
import pytest

from tests.programs import printed
from tests.server.live import LiveServer, events_of

CLIENTS = Path(__file__).parent.parent / "examples" / "clients"

SMALL = ("-np", "8", "-c", "4096", "--kv-unified")


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    flags = ("--path", str(CLIENTS / "page"), "-spf", str(CLIENTS / "system_prompt.json"))
    with LiveServer(tmp_path_factory.mktemp("clients") / "log", *SMALL, *flags) as server:
        await server.ready()
        yield server


def ran(name: str, url: str, typed: str = "") -> str:
    """What a client prints."""
    file = CLIENTS / name
    program = {".sh": "bash", ".py": sys.executable, ".js": "node", ".mjs": "node"}[file.suffix]
    return printed(program, file, typed=typed, API_URL=url)


def test_every_client_is_in_the_table_and_tested() -> None:
    told = re.findall(r"\]\((?!\.)([\w./]+)\)", (CLIENTS / "README.md").read_text(encoding="utf-8"))
    there = {path.relative_to(CLIENTS).as_posix() for path in CLIENTS.rglob("*") if path.is_file()} - {"README.md"}
    assert set(told) == there
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in there if f'"{name}"' not in source and f'"{Path(name).parent}"' not in source] == []


def test_a_text_comes_by_curl(server: LiveServer) -> None:
    answer = json.loads(ran("complete.sh", server.url))
    assert answer["prompt"].endswith("Once upon a time, there was a fox who")
    assert 0 < answer["tokens_predicted"] <= 64
    assert answer["content"]


def test_a_text_comes_by_node(server: LiveServer) -> None:
    assert len(ran("complete.js", server.url).split()) > 3


@pytest.mark.parametrize("name", ["chat.sh", "chat.mjs"])
def test_a_talk_goes_on_where_it_was(server: LiveServer, name: str) -> None:
    told = ran(name, server.url, typed="Tell me of a fox.\nWhat then?\n\nnever asked\n")
    assert re.fullmatch(r"> .+\n> .+\n> \n", told, re.DOTALL), told
    assert "Human:" not in told
    assert "never asked" not in told


class Scripted(BaseHTTPRequestHandler):
    """Answers in two events, of which the first is longer than what is read at once; or with the status and text of `failure`."""

    long = "ü" + "x" * 100_000
    prompts: ClassVar[list[str]] = []
    failure: ClassVar[tuple[int, str] | None] = None

    def do_POST(self) -> None:
        self.prompts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("prompt"))
        events = f'data: {{"content": " {self.long}"}}\n\n: ping\n\ndata: {{"content": " two", "stop": true}}\n\n'
        status, text = self.failure or (200, events)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nobody wants to know."""


@pytest.fixture
def scripted() -> Iterator[str]:
    Scripted.prompts.clear()
    Scripted.failure = None
    with HTTPServer(("127.0.0.1", 0), Scripted) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", ["chat.sh", "chat.mjs"])
def test_each_question_comes_after_all_that_was_said(scripted: str, name: str) -> None:
    assert ran(name, scripted, typed="First?\nSecond?\n").count(f"{Scripted.long} two\n> ") == 2
    first, second = Scripted.prompts
    assert first.endswith("\nHuman: First?\nAssistant:")
    assert second == f"{first} {Scripted.long} two\nHuman: Second?\nAssistant:"


@pytest.mark.parametrize("end", ["\n", ""], ids=["whole line", "no end of line"])
@pytest.mark.parametrize("name", ["chat.sh", "chat.mjs"])
def test_a_talk_may_be_read_from_a_file_and_written_to_one(scripted: str, name: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "questions").write_text(f"First?\nSecond?{end}")
    command = f'{"bash" if name.endswith(".sh") else "node"} "$1" < "$2/questions" > "$2/talk"'
    printed("bash", "-c", command, "bash", CLIENTS / name, tmp_path, API_URL=scripted)
    told = (tmp_path / "talk").read_text(encoding="utf-8").split("\n")
    assert [line.removeprefix("> ").strip() for line in told] == [f"{Scripted.long} two", f"{Scripted.long} two", "", ""]


ASKING = [
    *("chat.sh", "chat.mjs", "complete.sh", "complete.js", "chat_completion.sh", "chat_completion.py", "embeddings.sh"),
    *("many_completions.sh", "several_users.sh", "plain_text.sh"),
]


@pytest.mark.parametrize("name", ASKING)
def test_a_client_that_is_refused_ends_with_the_servers_reason(scripted: str, name: str) -> None:
    Scripted.failure = 400, '{"error": {"code": 400, "message": "the moon is full", "type": "invalid_request_error"}}'
    with pytest.raises(AssertionError, match="the moon is full"):
        ran(name, scripted, typed="Hello\n")


@pytest.mark.parametrize("name", ["chat.sh", "chat.mjs"])
def test_an_answer_that_fails_ends_a_talk_with_the_reason(scripted: str, name: str) -> None:
    error = '{"error": {"code": 503, "message": "the engine has stopped", "type": "unavailable_error"}}'
    Scripted.failure = 200, f'data: {{"content": " One"}}\n\ndata: {error}\n\n'
    with pytest.raises(AssertionError, match=r"(?s)> ?.*One.*the engine has stopped"):
        ran(name, scripted, typed="Hello\nStill there?\n")
    assert len(Scripted.prompts) == 1


@pytest.mark.parametrize("name", ["chat.sh", "chat.mjs", "complete.sh", "complete.js", "chat_completion.sh"])
def test_a_server_that_is_not_there_ends_a_client_with_the_reason(name: str) -> None:
    with pytest.raises(AssertionError, match=r"curl: \(7\)|ECONNREFUSED|fetch failed"):
        ran(name, "http://127.0.0.1:9", typed="Hello\n")


def test_a_chat_is_answered_by_curl(server: LiveServer) -> None:
    [choice] = json.loads(ran("chat_completion.sh", server.url))["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]


def test_a_chat_is_answered_by_openais_library(server: LiveServer) -> None:
    assert len(ran("chat_completion.py", server.url).split()) > 3


def test_vectors_come_by_curl(server: LiveServer) -> None:
    one, two = map(json.loads, ran("embeddings.sh", server.url).splitlines())
    assert [len(one["data"]), len(two["data"])] == [1, 2]
    assert len(one["data"][0]["embedding"]) == 192


def test_the_file_of_a_system_prompt_is_followed_from_the_start(server: LiveServer) -> None:
    told = json.loads((CLIENTS / "system_prompt.json").read_text(encoding="utf-8"))["system_prompt"]
    props = server.get("/props")
    assert (props["user_name"], props["assistant_name"]) == (told["anti_prompt"], told["assistant_name"])
    answer = httpx.post(f"{server.url}/completion", json={"prompt": " Hello", "n_predict": 1}).json()
    assert answer["prompt"] == f"<s>{told['prompt']} Hello"


def test_a_page_of_ones_own_has_a_text_written(server: LiveServer, tmp_path: Path) -> None:
    page = httpx.get(f"{server.url}/").text
    assert page == (CLIENTS / "page" / "index.html").read_text(encoding="utf-8")
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    assert "import { llama } from '/completion.js'" in script
    # Node.js imports from files, and has no document.
    module = httpx.get(f"{server.url}/completion.js").text.replace("import.meta.url", json.dumps(f"{server.url}/completion.js"))
    (tmp_path / "completion.mjs").write_text(module)
    shown = "const shown = [], document = { getElementById: () => ({ append: text => shown.push(text) }) };\n"
    program = tmp_path / "page.mjs"
    program.write_text(shown + script.replace("'/completion.js'", "'./completion.mjs'") + "console.log(shown.join(''));\n")
    assert len(printed("node", program).removeprefix("Once upon a time, there was a fox who").split()) > 3


async def test_eight_continuations_come_as_events(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "--compat", "srb", *SMALL) as server:
        await server.ready()
        events = [json.loads(event) for event in events_of(ran("many_completions.sh", server.url))]
    assert (events[0], events[-1]) == ({"event": "start", "count": 8}, {"event": "done", "count": 8})
    assert sorted(event["index"] for event in events if event["event"] == "stop") == list(range(8))


async def test_a_question_is_answered_after_a_system_prompt(tmp_path: Path) -> None:
    # The flags of the document's quick start, but for the model, its GPU and its threads.
    quick_start = ("--ctx_size", "2048", "--batch-size", "512", "--parallel", "3", "-n", "512", "--cont-batching")
    with LiveServer(tmp_path / "log", "--compat", "parallel", *quick_start) as server:
        await server.ready()
        events = [json.loads(event) for event in events_of(ran("several_users.sh", server.url))]
        props = server.get("/props")
    assert len(events) > 3
    assert all(event.keys() == {"content"} for event in events)
    assert (props["user_name"], props["assistant_name"]) == ("Human:", "Assistant:")


async def test_a_text_comes_as_plain_lines_and_its_prompt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with LiveServer(tmp_path / "log", "--compat", "stream") as server:
        await server.ready()
        first, *tokens = ran("plain_text.sh", server.url).splitlines()
    assert first == "Once upon a time"
    assert len(tokens) > 3
    assert (tmp_path / "weft" / "prompts" / "prompt-42.bin").is_file()
