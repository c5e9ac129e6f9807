"""The page at `/`, and that of several chats."""

import json
import re
from base64 import b64encode
from hashlib import sha256

import pytest
from litestar.testing import AsyncTestClient

from tests.server.inline import only, run_script
from tests.server.scripted import ScriptedEngine
from tests.server.serving import serving
from weft.server import create_app
from weft.server.page import text_of

PAGE, CHATS = (text_of(name) for name in ("page.html", "parallel.html"))

both = pytest.mark.parametrize(("page", "compat"), [(PAGE, ""), (CHATS, "parallel")], ids=["branches", "chats"])


@pytest.mark.parametrize("path", ["/", "/index.html"])
async def test_the_page_is_there_while_the_model_is_loaded_and_after(path: str) -> None:
    engine = ScriptedEngine()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        loading = await client.get(path)
        engine.loaded.set()
        loaded = await client.get(path)
    assert loading.text == loaded.text == PAGE
    assert loading.headers["content-type"] == "text/html; charset=utf-8"


@both
async def test_the_page_may_run_and_load_only_itself(page: str, compat: str) -> None:
    async with serving(compat=compat) as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    hashes = {name: b64encode(sha256(only(page, name).encode()).digest()).decode() for name in ("script", "style")}
    assert directives == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "script-src": f"'sha256-{hashes['script']}'",
        "style-src": f"'sha256-{hashes['style']}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@both
def test_the_page_names_no_other_place(page: str, compat: str) -> None:
    assert re.findall(r"https?:|//\w|@import|url\(|\bimport\b", only(page, "style") + only(page, "script")) == []
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]
    # The policy would switch these off.
    assert re.findall(r'\son\w+="|\sstyle="', page) == []


def test_every_field_has_a_label() -> None:
    labelled = set(re.findall(r'<label for="(\w+)"', PAGE)) | set(re.findall(r'<label>[^<]*<input id="(\w+)"', PAGE))
    assert (
        labelled
        == set(re.findall(r'<(?:input|textarea) id="(\w+)"', PAGE))
        == {
            "key",
            "prompt",
            "n",
            "n_predict",
            "temperature",
            "seed",
        }
    )


async def test_no_ui_leaves_nothing_at_the_root_but_what_ollamas_clients_look_for() -> None:
    async with serving(ui=False) as client:
        root, index, head = await client.get("/"), await client.get("/index.html"), await client.head("/")
    assert (root.status_code, root.text, root.headers["content-type"]) == (200, "Ollama is running", "text/plain; charset=utf-8")
    assert (index.status_code, index.json()["error"]["type"]) == (404, "not_found_error")
    assert (head.status_code, head.text, head.headers["content-length"]) == (200, "", "17")


EVENTS = [{"index": 0, "content": " a\n\n"}, {"index": 1, "content": "é🙂 data: x"}, {"index": 0, "stop": True}]


@both
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("line_end", "end"), [("\n", "\n\n"), ("\r\n", "\n\n"), ("\n", "\n"), ("\n", "")])
def test_events_are_read_however_the_stream_is_cut(size: int, page: str, compat: str, line_end: str, end: str) -> None:
    stream = ": ping\n\n" + "\n\n".join(f"data: {json.dumps(event, ensure_ascii=False)}" for event in EVENTS) + end
    stream = stream.replace("\n", line_end)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    read = run_script(
        page,
        f"""
        const pieces = {json.dumps(pieces)}, events = [];
        const read = async () => pieces.length ? {{ done: false, value: pieces.shift() }} : {{ done: true }};
        for await (const event of eventsOf({{ getReader: () => ({{ read }}) }})) events.push(event);
        give(events);
    """,
    )
    assert read == EVENTS


def test_the_cost_of_a_run_is_what_its_branches_computed() -> None:
    assert run_script(
        PAGE,
        """
        const tally = new Tally(2);
        const token = (n, now) => tally.token({ tokens: [7], tokens_predicted: n }, now);
        for (const [n, now] of [[1, 1000], [1, 1000], [2, 1500], [2, 1500], [3, 2000]]) token(n, now);
        tally.token({ tokens: [], tokens_predicted: 3 }, 2500);
        tally.end({ tokens_evaluated: 100, timings: { prompt_n: 0 } });
        const left = tally.left;
        tally.end({ tokens_evaluated: 100, timings: { prompt_n: 30 } });
        give([tally.tokens, tally.speed(2000), tally.prompt, tally.computed, tally.cached, left, tally.left]);
    """,
    ) == [5, 3, 100, 30, 70, 1, 0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{ status: 400, json: async () => ({ error: { message: "too long" } }) }', "too long"),
        ("{ status: 502, json: async () => { throw new SyntaxError(); } }", "the server answered 502"),
        ("{ status: 500, json: async () => null }", "the server answered 500"),
    ],
)
def test_an_answer_that_is_an_error_is_told_in_words(answer: str, reason: str) -> None:
    assert run_script(PAGE, f"give(await reasonOf({answer}));") == reason


@pytest.mark.parametrize(
    ("n", "word", "text"),
    [(1, "branch", "1 branch"), (8, "branch", "8 branches"), (1, "token", "1 token"), (200, "token", "200 tokens")],
)
def test_numbers_agree_with_their_words(n: int, word: str, text: str) -> None:
    assert run_script(PAGE, f"give(count({n}, {json.dumps(word)}));") == text
