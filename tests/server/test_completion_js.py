"""`/completion.js`: what a page imports to have texts written."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import AsyncTestClient

from tests.helpers import wait_until
from tests.programs import printed
from tests.server.conftest import PROMPT
from tests.server.live import LiveServer
from tests.server.matchers import Json
from tests.server.scripted import ScriptedEngine
from tests.server.serving import serving
from weft.server import create_app
from weft.settings import Settings

GREEDY = "{ n_predict: 12, temperature: 0 }"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that asks for a key, below a prefix."""
    folder = tmp_path_factory.mktemp("keyed")
    with LiveServer(folder / "log", "-np", "2", "-c", "1024", "--kv-unified", "--api-key", "k", "--api-prefix", "/llm") as server:
        yield server


class Module:
    """The module of a server, as a file that knows where it came from."""

    def __init__(self, folder: Path, url: str) -> None:
        text = httpx.get(f"{url}/completion.js").raise_for_status().text
        self._folder = folder
        # A browser would have imported it from there; Node.js imports files.
        (folder / "completion.mjs").write_text(text.replace("import.meta.url", json.dumps(f"{url}/completion.js")))

    def run(self, use: str) -> Json:
        """What a piece of JavaScript, with all that the module exports in reach, hands to `give`."""
        program = self._folder / "program.mjs"
        program.write_text(
            'import * as exported from "./completion.mjs";\n'
            "const { llama, llamaComplete, llamaEventTarget, llamaModelInfo, llamaPromise } = exported;\n"
            "const give = value => console.log(JSON.stringify(value));\n"
            f"const prompt = {json.dumps(PROMPT)};\n{use}\n"
        )
        return json.loads(printed("node", program))


@pytest.fixture
def module(live: LiveServer, tmp_path: Path) -> Module:
    return Module(tmp_path, live.url)


@pytest.fixture
def expected(live: LiveServer) -> str:
    """The whole text that every way is to bring."""
    answer = httpx.post(f"{live.url}/completion", json={"prompt": PROMPT, "n_predict": 12, "temperature": 0})
    return str(answer.json()["content"])


async def test_it_is_there_while_the_model_is_loaded_and_without_a_key() -> None:
    async with AsyncTestClient(create_app(ScriptedEngine().as_engine(), Settings(api_keys=("k",)))) as client:
        assert (await client.get("/props")).status_code == 503
        loaded = await client.get("/completion.js")
    async with serving(api_keys=("k",)) as client:
        assert (await client.get("/completion.js")).text == loaded.text
    assert loaded.status_code == 200
    assert loaded.headers["content-type"] == "text/javascript; charset=utf-8"
    assert re.findall(r"^export (?:async )?function\*? (\w+)", loaded.text, re.MULTILINE) == [
        *("llama", "llamaPromise", "llamaComplete", "llamaEventTarget", "llamaModelInfo"),
    ]


async def test_a_file_of_that_name_in_the_folder_takes_its_place_and_no_ui_takes_it_away(tmp_path: Path) -> None:
    async with serving(static_path=str(tmp_path)) as client:
        ours = await client.get("/completion.js")
        (tmp_path / "completion.js").write_text("let mine")
        assert (await client.get("/completion.js")).text == "let mine"
    async with serving() as client:
        assert (await client.get("/completion.js")).text == ours.text
    async with serving(ui=False) as client:
        assert (await client.get("/completion.js")).status_code == 404


def test_chunks_hold_what_events_say_and_the_end_returns_the_text(module: Module, expected: str) -> None:
    chunks, returned = module.run(f"""
        const chunks = [], running = llama(prompt, {GREEDY});
        let step;
        while (!(step = await running.next()).done) chunks.push(step.value);
        give([chunks, step.value]);
    """)
    assert returned == expected == "".join(chunk["data"]["content"] for chunk in chunks)
    assert [chunk["data"]["stop"] for chunk in chunks] == [False] * 12 + [True]
    assert chunks[-1]["data"]["generation_settings"]["n_predict"] == 12


def test_every_way_brings_the_same_text(module: Module, expected: str) -> None:
    promised, called, told = module.run(f"""
        const promised = await llamaPromise(prompt, {GREEDY});
        let called = "";
        await llamaComplete({{ prompt, ...{GREEDY} }}, new AbortController(), chunk => {{ called += chunk.data.content; }});
        const target = llamaEventTarget(prompt, {GREEDY}), told = {{ text: "" }};
        target.addEventListener("message", event => {{ told.text += event.detail.content; }});
        target.addEventListener("generation_settings", event => {{ told.limit = event.detail.n_predict; }});
        target.addEventListener("timings", event => {{ told.written = event.detail.predicted_n; }});
        const done = await new Promise(resolve => target.addEventListener("done", resolve));
        told.content = done.detail.content;
        give([promised, called, told]);
    """)
    assert promised == called == expected
    assert told == {"text": expected, "content": expected, "limit": 12, "written": 12}


def test_an_answer_that_is_not_streamed_is_one_chunk(module: Module, expected: str) -> None:
    assert module.run(f"""
        const texts = [];
        for await (const chunk of llama(prompt, {{ ...{GREEDY}, stream: false }})) texts.push(chunk.data.content);
        give(texts);
    """) == [expected]


def test_leaving_the_loop_and_the_controller_end_the_request(module: Module, live: LiveServer) -> None:
    use = """
        const busy = async () => (await (await fetch(URL)).json()).some(slot => slot.is_processing);
        const idle = async () => { while (await busy()) await new Promise(resolve => setTimeout(resolve, 5)); };
        const controllers = [new AbortController(), new AbortController()];
        for await (const chunk of llama(prompt, {}, { controller: controllers[0] })) break;
        await idle();
        let thrown;
        try {
            for await (const chunk of llama(prompt, {}, { controller: controllers[1] })) controllers[1].abort();
        } catch (error) { thrown = error.name; }
        await idle();
        const whole = new AbortController();
        await llamaPromise(prompt, { n_predict: 1 }, { controller: whole });
        give([controllers.map(controller => controller.signal.aborted), thrown, whole.signal.aborted]);
    """
    assert module.run(use.replace("URL", json.dumps(f"{live.url}/slots"))) == [[True, True], "AbortError", False]


@pytest.mark.parametrize("stream", ["true", "false"])
def test_several_completions_are_a_list_of_texts(module: Module, expected: str, stream: str) -> None:
    promised, done, indexes = module.run(f"""
        const params = {{ ...{GREEDY}, n: 3, stream: {stream} }}, indexes = new Set();
        const target = llamaEventTarget([prompt, prompt], params);
        target.addEventListener("message", event => indexes.add(event.detail.index));
        const done = await new Promise(resolve => target.addEventListener("done", resolve));
        give([await llamaPromise(prompt, params), done.detail.content, [...indexes].sort()]);
    """)
    assert promised == [expected] * 3
    assert done == [expected] * 6
    assert indexes == list(range(6))


def test_another_route_with_content_and_no_other_server(module: Module, expected: str) -> None:
    use = f"""
        give([await llamaPromise(prompt, {GREEDY}, {{ endpoint: "/completions", api_url: null }}),
              await llamaPromise(prompt, {GREEDY}, {{ api_url: "" }})]);
    """
    assert module.run(use) == [expected] * 2


def test_a_callback_that_throws_ends_the_request(module: Module) -> None:
    assert module.run("""
        const controller = new AbortController();
        const failing = llamaComplete({ prompt }, controller, () => { throw new Error("enough"); });
        const thrown = await failing.catch(error => error.message);
        give([thrown, controller.signal.aborted]);
    """) == ["enough", True]


FAILURES = [
    ('500, "null"', "the server answered 500", 500),
    ('502, "<html>"', "the server answered 502", 502),
    ("400, '{\"error\": null}'", "the server answered 400", 400),
    ('503, \'{"error": {"message": "loading"}}\'', "loading", 503),
    ('200, \'data: {"content": "a"}\\n\\ndata: {"error": {"code": 503, "message": "stopped"}}\\n\\n\'', "stopped", 503),
]


@pytest.mark.parametrize(("answer", "message", "status"), FAILURES)
def test_what_is_no_success_is_an_error_whatever_it_says(module: Module, answer: str, message: str, status: int) -> None:
    use = f"""
        const answered = (status, text) => new Response(text, {{ status, headers: {{ "Content-Type": "text/event-stream" }} }});
        globalThis.fetch = async () => answered({answer});
        const failure = error => [error.message, error.status];
        const failures = [await llamaPromise("").catch(failure)];
        if ({status} !== 503) failures.push(await llamaModelInfo().catch(failure));
        give(failures);
    """
    failures = module.run(use)
    assert failures == [[message, status]] * len(failures)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["\n\ndata: [DONE]\n\n", "\n\n", "\n", ""])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_read_however_their_bytes_are_cut(module: Module, size: int, end: str, line_end: str) -> None:
    contents = ["a\n\n", "é🙂 data: x", ""]
    events = ": ping\n\n" + "\n\n".join(f"data: {json.dumps({'content': text}, ensure_ascii=False)}" for text in contents)
    stream = (events + end).replace("\n", line_end)
    read = module.run(f"""
        const bytes = new TextEncoder().encode({json.dumps(stream)});
        globalThis.fetch = async () => new Response(new ReadableStream({{
            start(stream) {{
                for (let at = 0; at < bytes.length; at += {size}) stream.enqueue(bytes.slice(at, at + {size}));
                stream.close();
            }},
        }}), {{ headers: {{ "Content-Type": "text/event-stream" }} }});
        const read = [];
        for await (const chunk of llama("")) read.push(chunk.data.content);
        give(read);
    """)
    assert read == contents


def test_what_the_server_refuses_is_an_error_with_its_reason(module: Module) -> None:
    thrown, told = module.run("""
        const bad = { top_k: "many" };
        const thrown = await llamaPromise(prompt, bad).catch(error => [error.message, error.status, error.type]);
        const target = llamaEventTarget(prompt, bad);
        const told = await new Promise(resolve => target.addEventListener("error", event => resolve(event.detail.status)));
        give([thrown, told]);
    """)
    assert "top_k" in thrown[0]
    assert thrown[1:] == [400, "invalid_request_error"]
    assert told == 400


async def test_it_finds_its_server_below_a_prefix_and_shows_a_key(keyed: LiveServer, module: Module, tmp_path: Path) -> None:
    folder = tmp_path / "keyed"
    folder.mkdir()
    own = Module(folder, await reached(keyed))
    use = f"""
        const without = await llamaPromise(prompt, {GREEDY}, CONFIG).catch(error => error.status);
        const shown = await llamaPromise(prompt, {GREEDY}, {{ ...CONFIG, api_key: "k" }});
        const asked = await llamaPromise(prompt, {{ ...{GREEDY}, api_key: "k" }}, CONFIG);
        const about = await llamaModelInfo({{ ...CONFIG, api_key: "k" }});
        give([without, shown === asked && shown.length > 0, about.n_ctx]);
    """
    assert own.run(use.replace("CONFIG", "{}")) == [401, True, 1024]
    # The module of another server, told where this one is.
    assert module.run(use.replace("CONFIG", json.dumps({"api_url": f"{keyed.url}/llm/"}))) == [401, True, 1024]


async def reached(server: LiveServer) -> str:
    """The address below the prefix, once the model is loaded there."""

    def is_ready() -> bool:
        try:
            return httpx.get(f"{server.url}/llm/health").status_code == 200
        except httpx.TransportError:
            return False

    await wait_until(is_ready, 120)
    return f"{server.url}/llm"
