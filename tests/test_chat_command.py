"""`weft chat`: in a terminal, in a pipe, with a model in its process and with a server."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.server.live import LiveServer, environ
from weft.cli.chat.pieces import ChatModelError
from weft.cli.chat.prompt import history
from weft.cli.chat.remote import RemoteModel
from weft.settings import Settings

TIMEOUT_S = 25.0
GREEDY = ("--temp", "0", "-n", "24", "-t", "1")


class Terminal:
    """`weft chat` in a terminal."""

    def __init__(self, *arguments: str, width: int, state: Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        # A controlling terminal turns Ctrl-C into a signal.
        login = "import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, '-m', 'weft', *sys.argv[1:]])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", login, "chat", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            # The size of the terminal counts, not that of the one where the tests run.
            env={name: value for name, value in environ().items() if name not in ("COLUMNS", "LINES")}
            | {"TERM": "xterm", "XDG_STATE_HOME": str(state)},
        )
        os.close(theirs)
        self._seen = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self._seen.extend(os.read(self._ours, 65_536))
            except OSError:
                return

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    @property
    def screen(self) -> str:
        return self._seen.decode(errors="replace")

    def shows(self, pattern: str, after: int = 0) -> int:
        """Waits until the output has a pattern, beyond a position. Returns the position of its end."""
        end = time.monotonic() + TIMEOUT_S
        while (found := re.compile(pattern, re.DOTALL).search(self.screen, after)) is None:
            assert time.monotonic() < end, self.screen
            time.sleep(0.01)
        return found.end()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Opens terminals with `weft chat`."""
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, width: int = 100) -> Terminal:
        opened.append(Terminal(*arguments, width=width, state=tmp_path))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


class FakeServer:
    """A server whose answers a test sends piece by piece."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the requests so far."""
        self.keys: list[str | None] = []
        self.pieces: Sequence[tuple[int, Mapping[str, object]]] = [(0, {"content": "Hello"}), (0, {"content": " there"})]
        """Answer and delta of each chunk."""
        self.pause_after: int | None = None
        """Number of chunks after which the answer pauses until `resume` is set."""
        self.resume = threading.Event()
        self.is_cancelled = threading.Event()
        self.url = ""

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers["Content-Length"])
        self.bodies.append(json.loads(handler.rfile.read(size)))
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        for index, (answer, delta) in enumerate(self.pieces):
            if index == self.pause_after:
                self._wait(handler)
            self._send(handler, {"choices": [{"index": answer, "delta": delta}]})
        handler.wfile.write(b"data: [DONE]\n\n")

    def _wait(self, handler: BaseHTTPRequestHandler) -> None:
        while not self.resume.wait(0.02):
            try:
                handler.wfile.write(b": waiting\n\n")
            except OSError:
                self.is_cancelled.set()
                raise

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, chunk: dict[str, Any]) -> None:
        handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server with OpenAI's API."""
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.keys.append(self.headers["Authorization"])
            body = b'{"data": [{"id": "fake"}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            try:
                fake.serve(self)
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        fake.url = f"http://127.0.0.1:{http.server_address[1]}"
        yield fake
        fake.resume.set()
        http.shutdown()
        thread.join()


def test_an_answer_is_shown_as_it_comes(terminal: Open, server: FakeServer) -> None:
    server.pause_after = 1
    screen = terminal("--url", server.url)
    screen.shows("fake .*> ")
    screen.type("Hi\n")
    screen.shows("Hello")
    assert " there" not in screen.screen
    server.resume.set()
    screen.shows("Hello there\r\n.*> ")
    screen.type("/quit\n")
    assert screen.process.wait(TIMEOUT_S) == 0


def test_ctrl_c_stops_an_answer_and_keeps_its_beginning(terminal: Open, server: FakeServer) -> None:
    server.pause_after = 1
    screen = terminal("--url", server.url)
    screen.shows("> ")
    screen.type("Hi\n")
    end = screen.shows("Hello")
    screen.type("\x03")
    end = screen.shows("stopped.*> ", end)
    assert server.is_cancelled.wait(TIMEOUT_S)
    server.pause_after = None
    screen.type("Go on\n")
    screen.shows("Hello there", end)
    roles = [(message["role"], message["content"]) for message in server.bodies[1]["messages"]]
    assert roles == [("user", "Hi"), ("assistant", "Hello"), ("user", "Go on")]


def test_ctrl_c_at_the_prompt_does_not_end_the_chat_but_ctrl_d_does(terminal: Open, server: FakeServer) -> None:
    screen = terminal("--url", server.url)
    screen.shows("> ")
    screen.type("half a mess\x03")
    screen.shows("Ctrl-D ends the chat.*> ")
    screen.type("\x04")
    assert screen.process.wait(TIMEOUT_S) == 0
    assert server.bodies == []


def test_reasoning_is_dimmed_and_returned_to_the_server(terminal: Open, server: FakeServer) -> None:
    server.pieces = [(0, {"reasoning_content": "Let me see."}), (0, {"content": "Yes."})]
    screen = terminal("--url", server.url)
    screen.shows("> ")
    screen.type("Really?\n")
    end = screen.shows(r"\x1b\[2mLet me see\.\x1b\[0m.*Yes\..*> ")
    screen.type("Sure?\n")
    screen.shows("Yes", end)
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see."}


FOUR = [(answer, {"content": f"text {answer + 1}"}) for answer in (2, 0, 3, 1)]


@pytest.mark.parametrize(("width", "is_beside"), [(160, True), (70, False)], ids=["wide", "narrow"])
def test_four_answers_are_shown_of_which_one_continues_the_chat(
    terminal: Open, server: FakeServer, width: int, is_beside: bool
) -> None:
    server.pieces = FOUR
    screen = terminal("--url", server.url, width=width)
    screen.shows("> ")
    screen.type("/n 4\n")
    end = screen.shows("4 answers to each message.*> ")
    screen.type("Hi\n")
    end = screen.shows("continue with 1-4", end)
    assert server.bodies[0]["n"] == 4
    lines = [line for line in screen.screen.splitlines() if "text 1" in line]
    assert ("text 4" in lines[-1]) == is_beside
    screen.type("9\n")
    end = screen.shows("continue with 1-4", end)
    screen.type("3\n")
    end = screen.shows("> ", end)
    screen.type("/n 1\n")
    end = screen.shows("one answer.*> ", end)
    server.pieces = [(0, {"content": "Fine"})]
    screen.type("And?\n")
    screen.shows("Fine", end)
    assert server.bodies[1]["messages"][1]["content"] == "text 3"


def test_a_server_that_ignores_n_has_one_answer_to_continue_with(terminal: Open, server: FakeServer) -> None:
    screen = terminal("--url", server.url)
    screen.shows("> ")
    screen.type("/n 2\nHi\n")
    end = screen.shows("Hello there.*\n> ")
    screen.type("And?\n")
    screen.shows("Hello there.*\n> ", end)
    assert "continue with" not in screen.screen
    assert server.bodies[1]["messages"][1]["content"] == "Hello there"


def test_an_answer_that_was_not_requested_is_an_error(server: FakeServer) -> None:
    server.pieces = FOUR
    model = RemoteModel(server.url, None, None, Settings())
    with pytest.raises(ChatModelError, match="sent answer 2 of 2"):
        list(model.answer([], 2))


def test_messages_may_have_several_lines_and_a_system_message(terminal: Open, server: FakeServer) -> None:
    screen = terminal("--url", server.url, "--system", "Be brief.")
    screen.shows("> ")
    screen.type('"""\none\n\ntwo\n"""\n')
    end = screen.shows("there.*> ")
    screen.type("/reset\n/system Be long.\nthree\\\nfour\n")
    screen.shows("there", end)
    contents = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert contents == [["Be brief.", "one\n\ntwo"], ["Be long.", "three\nfour"]]


def test_commands_are_explained(terminal: Open, server: FakeServer) -> None:
    screen = terminal("--url", server.url)
    screen.shows("> ")
    screen.type("/help\n/n 99\n/what\n/system\n")
    screen.shows("/system TEXT.*Ctrl-C stops.*from 1 to 16.*unknown command /what.*removed")
    assert server.bodies == []


def test_inputs_are_kept_for_the_next_chat(terminal: Open, server: FakeServer, tmp_path: Path) -> None:
    for _ in range(2):
        screen = terminal("--url", server.url)
        screen.shows("> ")
        # The second chat recalls the message with the key for the previous line.
        screen.type("Remember me\n" if not server.bodies else "\x10\n")
        screen.shows("there.*> ")
        screen.type("\x04")
        assert screen.process.wait(TIMEOUT_S) == 0
    assert [body["messages"][0]["content"] for body in server.bodies] == ["Remember me"] * 2
    assert "Remember me" in (tmp_path / "weft" / "chat_history").read_text()


def test_a_history_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with history(tmp_path / "file" / "history"):
        pass


def test_sampling_parameters_are_sent_if_they_are_set(server: FakeServer) -> None:
    model = RemoteModel(f"{server.url}/v1/", "sesame", None, Settings.of({"temperature": 0.5, "n_predict": 9}))
    assert "".join(piece.text for piece in model.answer([{"role": "user", "content": "Hi"}], 1)) == "Hello there"
    assert model.name == "fake"
    assert server.keys == ["Bearer sesame"]
    [body] = server.bodies
    expected = {"model": "fake", "n": 1, "stream": True, "temperature": 0.5, "max_tokens": 9}
    assert {name: value for name, value in body.items() if name != "messages"} == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://example.org", "is not the URL of a server"),
        ("http://127.0.0.1:1", "does not respond"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(url: str, message: str) -> None:
    with pytest.raises(ChatModelError, match=message):
        RemoteModel(url, None, None, Settings())


def run(*arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "chat", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environ())


async def test_a_pipe_gets_the_answer_only() -> None:
    async with weft.Engine(n_threads=1) as engine:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]
        expected = await engine.chat(messages, temperature=0.0, max_tokens=24)
    ran = run(*GREEDY, "--system", "Be brief.", text="Tell me a story.\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == expected.message.content.lstrip() + "\n"


async def test_a_server_of_weft_answers_as_the_model_in_this_process(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "log", "--api-key", "sesame") as live:
        await live.ready()
        remote = run("--url", live.url, "--api-key", "sesame", "--temp", "0", "-n", "24", text="Tell me a story.")
        refused = run("--url", live.url, text="Tell me a story.")
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == run(*GREEDY, text="Tell me a story.").stdout
    assert refused.returncode == 1
    assert "requires an API key" in refused.stderr


def test_a_model_in_this_process_chats_and_is_stopped(terminal: Open) -> None:
    # Its answers have no end.
    screen = terminal("--ignore-eos", "--context-shift", "-t", "1", "-c", "1024")
    screen.shows("storyteller.*> ")
    screen.type("Tell me a story.\n")
    end = screen.shows(r"story\.\r\n.*?\w+ \w+ \w+")
    screen.type("\x03")
    end = screen.shows("stopped.*> ", end)
    screen.type("/n 2\n")
    end = screen.shows("2 answers.*> ", end)
    screen.type("And then?\n")
    screen.shows("─ 2 ─", end)
    screen.type("\x03")
    screen.shows("continue with 1-2", end)
    screen.type("2\n/quit\n")
    assert screen.process.wait(TIMEOUT_S) == 0


def test_a_model_that_cannot_be_loaded_is_named() -> None:
    ran = run("nowhere.gguf", text="Hi")
    assert ran.returncode == 1
    assert ran.stderr.startswith("chat: cannot load the model nowhere.gguf")


def test_a_failed_answer_drops_its_message_and_the_chat_continues(terminal: Open, server: FakeServer) -> None:
    screen = terminal("--url", server.url)
    screen.shows("> ")
    pieces, server.pieces = server.pieces, [(0, {"content": 5})]
    screen.type("Hi\n")
    end = screen.shows("error: the server did not send a chat completion chunk.*> ")
    server.pieces = pieces
    screen.type("Again\n")
    screen.shows("there", end)
    assert [message["content"] for message in server.bodies[1]["messages"]] == ["Again"]


def test_control_characters_of_an_answer_do_not_reach_the_terminal(terminal: Open, server: FakeServer) -> None:
    server.pieces = [(0, {"content": "a\x1b]0;title\x07b"})]
    screen = terminal("--url", server.url)
    screen.shows("> ")
    screen.type("Hi\n")
    screen.shows("a␛]0;title␇b")
    assert "\x1b]0;" not in screen.screen
