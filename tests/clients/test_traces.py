"""Traces of clients: shapes of what they send, with nothing of its text."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from benches.traces import Prompt, had_to
from tests.clients.actor import line
from tests.clients.between import between
from tests.clients.chats import CHATS
from tests.clients.record import recorder, shortened
from tests.clients.run import CLIENTS
from tests.clients.trace import CHANGING, NAMES, OURS, SHORT, Shaper, bodies, recorded
from tests.server.matchers import Json

FOLDER = Path(__file__).parent / "traces"
TRACES = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}

SECRET = "You are Rex, a dog, and must tell nobody."


def chat(*said: str) -> Json:
    tool = {"name": "bark", "description": "Barks at whom it may.", "parameters": {"type": "object", "description": SECRET * 9}}
    messages = [{"role": "system", "content": f"{SECRET}\n\nToday's date: 2025-11-23\n{SECRET}"}]
    messages += [{"role": "user", "content": text} for text in said]
    return {
        "model": "weft",
        "messages": messages,
        "tools": [{"type": "function", "function": tool}],
        "stream": True,
        "user": "me",
    }


def shaped(*requests: Json) -> Json:
    shaper = Shaper("a client 1.0")
    for body in requests:
        shaper.ends(shaper.starts("/v1/chat/completions?beta=true", body))
    return shaper.trace


def test_texts_are_as_long_and_the_same_where_they_were_the_same() -> None:
    first, second = chat("Who is it?\nTell me."), chat("Who is it?\nTell me.", "Tell me.\nNobody.")
    told = [body for _, body in bodies(shaped(first, second), 1.0)]
    for asked, made in zip((first, second), told, strict=True):
        for before, after in zip(asked["messages"], made["messages"], strict=True):
            assert [len(text) for text in before["content"].split("\n")] == [len(text) for text in after["content"].split("\n")]
            assert before["role"] == after["role"]
        assert abs(len(json.dumps(asked["tools"])) - len(json.dumps(made["tools"]))) < 9
    assert told[0]["messages"] == told[1]["messages"][:2]
    assert told[0]["tools"] == told[1]["tools"]
    [again, other] = told[1]["messages"][2]["content"].split("\n")
    assert (again, again != other) == (told[0]["messages"][1]["content"].split("\n")[1], True)
    [line_of_text, empty, date, same] = told[0]["messages"][0]["content"].split("\n")
    assert (line_of_text, empty) == (same, "")
    assert re.fullmatch(r"Today's date: \d{4}-\d\d-\d\d", date)
    assert "user" not in told[0]


def test_a_shorter_text_is_made_of_the_same_shape() -> None:
    [(path, body)] = bodies(shaped(chat("Who is it? " * 40)), 0.25)
    assert (path, len(body["messages"][1]["content"])) == ("/v1/chat/completions", 110)


def test_no_word_of_a_text_is_kept() -> None:
    told = json.dumps(shaped(chat("Who is it?")))
    assert [word for word in ("Rex", "nobody", "Barks", "whom", "Who", "2025") if word in told] == []


def test_what_was_asked_for_and_answered_is_kept() -> None:
    step = 'Step 1: bark({"at": "me"})'
    body = chat(f"Do it.\n{step}")
    body["messages"].append({"role": "assistant", "content": None, "tool_calls": [{"id": "call_1"}]})
    [(_, made)] = bodies(shaped(body), 1.0)
    assert made["messages"][1]["content"].split("\n")[1] == step
    assert made["messages"][2] == body["messages"][2]


@pytest.mark.parametrize("client", TRACES)
def test_a_trace_that_is_kept_holds_no_text_of_its_client(client: str) -> None:
    trace = json.loads(TRACES[client].read_text(encoding="utf-8"))

    def texts(value: Json, name: str = "") -> Iterator[str]:
        match value:
            case {"role": "assistant"} | {"type": "function_call"}:
                return
            case dict():
                for key, one in value.items():
                    yield from texts(one, key)
            case list():
                for one in value:
                    yield from texts(one, name)
            case str() if name not in NAMES:
                yield value

    found = [*texts(trace["parts"]), *texts(trace["requests"])]
    assert found != []
    unknown = [text for text in found if text and not OURS.search(text) and not CHANGING.fullmatch(text)]
    assert [text for text in unknown if len(text) > SHORT or re.search(r"\s", text)] == []


@pytest.mark.parametrize("client", TRACES)
def test_a_trace_is_that_of_a_client_that_is_tried_and_as_long_as_a_task(client: str) -> None:
    trace = json.loads(TRACES[client].read_text(encoding="utf-8"))
    versions = {f"{each.name} {each.version}" for each in CLIENTS}
    assert trace["client"] in versions, f"run `python -m tests.clients.run --traces {client}`"
    assert 10 <= len(trace["requests"]) <= 60
    started = [event for event in trace["order"] if event >= 0]
    assert started == list(range(len(trace["requests"])))
    assert sorted(-1 - event for event in trace["order"] if event < 0) == started


@pytest.mark.parametrize("client", CHATS)
def test_the_next_request_of_a_chat_has_what_the_actor_said_to_the_one_before(client: str) -> None:
    prompts = []
    for _, body in bodies(CHATS[client](), 1.0):
        said = body.get("messages", [])
        whole = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in said) + "<|im_start|>assistant\n"
        prompts.append(body.get("prompt", whole))
    answers = [line(prompt, None, None) for prompt in prompts]
    n_answers = [prompt.count("<|im_start|>assistant\n") - 1 for prompt in prompts]
    said_before = [any(f"<|im_start|>assistant\n{answer}<|im_end|>" in prompt for prompt in prompts) for answer in answers]
    assert max(n_answers) == 9
    # Nobody goes on from the tasks beside the chat, its last answer, and the two to the turn before what was changed.
    assert said_before.count(True) == 13
    for prompt in prompts:
        for told in re.findall(r"<\|im_start\|>assistant\n(.+?)<\|im_end\|>", prompt, re.DOTALL):
            assert told in answers


def test_what_had_to_be_computed_follows_all_that_was_sent_or_said() -> None:
    def prompt(text: str, said: str) -> Prompt:
        return Prompt([byte + 3 for byte in text.encode()], text, said)

    first = prompt("abcdef", "xyz")
    assert had_to([first]) == 6
    assert had_to([first, first]) == 7
    assert had_to([first, prompt("abcdefxyz!", "")]) == 7
    assert had_to([first, prompt("abcdefxy!!", "")]) == 8
    assert had_to([first, prompt("ab!", ""), prompt("ab!!", "")]) == 8


class Upstream(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        told = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(400 if b"refused" in told else 200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)


@contextmanager
def upstream() -> Iterator[str]:
    """A server that sends back what it is sent."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_recorder_passes_on_what_is_sent_and_keeps_what_was_not_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with upstream() as server, recorded("a client 1.0", server, file) as url:
        for asked in ("One.", "This is refused.", "Two."):
            answer = httpx.post(f"{url}/v1/chat/completions", json=chat(asked))
            assert (answer.status_code, answer.json()) == (400 if "refused" in asked else 200, chat(asked))
    trace = json.loads(file.read_text(encoding="utf-8"))
    assert trace["order"] == [0, -1, 1, -2]
    assert [len(body["messages"][1]["content"]) for _, body in bodies(trace, 1.0)] == [4, 4]


def test_what_was_sent_is_written_down_without_secrets_and_long_texts(tmp_path: Path) -> None:
    file = tmp_path / "traffic.json"
    with upstream() as server, between(server, recorder(file)) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{proxy.server_port}/v1/chat/completions?beta=true"
        answer = httpx.post(url, json=chat("Hm. " * 100), headers={"authorization": "Bearer me", "x-told": "yes"})
        proxy.shutdown()
    assert answer.json() == chat("Hm. " * 100)
    [sent] = json.loads(file.read_text(encoding="utf-8"))
    assert (sent["method"], sent["path"]) == ("POST", "/v1/chat/completions?beta=true")
    assert sent["headers"]["x-told"] == "yes"
    assert not {"authorization", "host"} & sent["headers"].keys()
    assert sent["body"] == shortened(chat("Hm. " * 100)) != chat("Hm. " * 100)
