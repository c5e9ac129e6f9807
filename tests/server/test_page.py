"""The page at `/`."""

import json
import re
import subprocess
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

import pytest
from litestar.testing import AsyncTestClient

from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from tests.server.serving import serving
from weft.server import create_app

PAGE = (files("weft.server") / "page.html").read_text(encoding="utf-8")


def only(element: str) -> str:
    [content] = re.findall(f"<{element}>(.*?)</{element}>", PAGE, re.DOTALL)
    return str(content)


@pytest.mark.parametrize("path", ["/", "/index.html"])
async def test_the_page_is_there_while_the_model_is_loaded_and_after(path: str) -> None:
    engine = ScriptedEngine()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        loading = await client.get(path)
        engine.loaded.set()
        loaded = await client.get(path)
    assert loading.text == loaded.text == PAGE
    assert loading.headers["content-type"] == "text/html; charset=utf-8"


async def test_the_page_may_run_and_load_only_itself() -> None:
    async with serving() as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    hashes = {name: b64encode(sha256(only(name).encode()).digest()).decode() for name in ("script", "style")}
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


def test_the_page_names_no_other_place() -> None:
    assert re.findall(r"https?:|//\w|@import|url\(|\bimport\b", only("style") + only("script")) == []
    assert re.findall(r'(?:src|href)="([^"]*)"', PAGE) == ["data:,"]
    # The policy would switch these off.
    assert re.findall(r'\son\w+="|\sstyle="', PAGE) == []


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


async def test_no_ui_leaves_nothing_at_the_root() -> None:
    async with serving(ui=False) as client:
        answers = [await client.get(path) for path in ("/", "/index.html")]
    assert [(answer.status_code, answer.json()["error"]["type"]) for answer in answers] == [(404, "not_found_error")] * 2


def run_script(use: str) -> Json:
    """What a piece of JavaScript, with the page's functions in reach, hands to `give`."""
    functions = only("script").removesuffix("\nmain();\n")
    assert functions != only("script"), "the page begins with its last line"
    program = f"{functions}\nconst give = value => process.stdout.write(JSON.stringify(value));\n(async () => {{ {use} }})();"
    return json.loads(subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True, timeout=20).stdout)


EVENTS = [{"index": 0, "content": " a\n\n"}, {"index": 1, "content": "é🙂 data: x"}, {"index": 0, "stop": True}]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_read_however_the_stream_is_cut(size: int) -> None:
    stream = b": ping\n\n" + b"".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in EVENTS)
    read = run_script(f"""
        const bytes = Uint8Array.from({list(stream)}), events = [];
        const cut = new ReadableStream({{ start(controller) {{
          for (let at = 0; at < bytes.length; at += {size}) controller.enqueue(bytes.slice(at, at + {size}));
          controller.close();
        }} }});
        for await (const event of eventsOf(cut)) events.push(event);
        give(events);
    """)
    assert read == EVENTS


def test_the_cost_of_a_run_is_what_its_branches_computed() -> None:
    assert run_script("""
        const tally = new Tally();
        for (const [n, now] of [[1, 1000], [1, 1000], [2, 1500], [2, 1500], [3, 2000]]) tally.token({ tokens_predicted: n }, now);
        tally.end({ tokens_evaluated: 100, timings: { prompt_n: 30 } });
        tally.end({ tokens_evaluated: 100, timings: { prompt_n: 0 } });
        give([tally.tokens, tally.speed(2000), tally.prompt, tally.computed, tally.cached]);
    """) == [5, 3, 100, 30, 70]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('new Response(JSON.stringify({ error: { message: "too long" } }), { status: 400 })', "too long"),
        ('new Response("<html>", { status: 502 })', "the server answered 502"),
        ("new Response(null, { status: 500 })", "the server answered 500"),
    ],
)
def test_an_answer_that_is_an_error_is_told_in_words(answer: str, reason: str) -> None:
    assert run_script(f"give(await reasonOf({answer}));") == reason


@pytest.mark.parametrize(
    ("n", "word", "text"),
    [(1, "branch", "1 branch"), (8, "branch", "8 branches"), (1, "token", "1 token"), (2000, "token", "2,000 tokens")],
)
def test_numbers_agree_with_their_words(n: int, word: str, text: str) -> None:
    assert run_script(f"give(count({n}, {json.dumps(word)}));") == text
