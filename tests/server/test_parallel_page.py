"""The page of several chats at once, which `--compat parallel` serves."""

import json
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.node import node
from tests.server.inline import only, run_script
from tests.server.live import LiveServer
from tests.server.serving import serving

PAGE = (files("weft.server") / "parallel.html").read_text(encoding="utf-8")
NAMES = {"system": "A talk.", "user": "User:", "assistant": "Bot:", "temperature": 0}

BROWSER = """
// As much of a browser as the page needs: its elements, by their ids or by what they were made with.
class Element {
  constructor() { Object.assign(this, { value: "", textContent: "", children: [], heard: {}, parts: {}, disabled: false }); }
  get valueAsNumber() { return Number(this.value); }
  addEventListener(name, hear) { this.heard[name] = hear; }
  querySelector(what) { return this.parts[what] ??= new Element(); }
  setAttribute() {}
  append(child) { this.children.push(child); }
}
const elements = {}, document = {
  getElementById: id => elements[id] ??= new Element(),
  createElement: () => new Element(),
}, fetch = (path, options) => globalThis.fetch(BASE + path, options);
elements["key-field"] = Object.assign(new Element(), { hidden: true });
const until = async holds => { while (!holds()) await new Promise(resolve => setTimeout(resolve, 5)); };
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LiveServer]:
    flags = ("--compat", "parallel", "-np", "4", "-c", "2048", "--kv-unified", "-r", "Human:")
    with LiveServer(tmp_path / "log", *flags) as server:
        await server.ready()
        yield server


async def test_it_is_the_page_of_that_server_alone() -> None:
    async with serving(compat="parallel") as client:
        assert (await client.get("/")).text == PAGE
    async with serving() as client:
        assert (await client.get("/")).text != PAGE


def test_a_chat_asks_with_all_that_was_said_in_it() -> None:
    first, second, after_nothing = run_script(
        PAGE,
        f"""
        const names = {json.dumps(NAMES)}, chat = new Chat();
        const first = chat.ask("Hello", names);
        chat.hear(" Hi, "); chat.hear("you.\\n"); chat.end();
        const second = chat.ask("And?", names);
        chat.end();
        give([first, second, chat.text(names)]);
    """,
    )
    assert first == {
        "prompt": "A talk.\nUser: Hello\nBot:",
        "stop": ["\nUser:"],
        "temperature": 0,
        "n_predict": 256,
        "stream": True,
    }
    assert second["prompt"] == "A talk.\nUser: Hello\nBot: Hi, you.\nUser: And?\nBot:"
    assert after_nothing == "A talk.\nUser: Hello\nBot: Hi, you."


async def test_several_chats_are_answered_at_once_each_with_its_own(server: LiveServer, tmp_path: Path) -> None:
    program = tmp_path / "page.mjs"
    use = """
        await until(() => elements.user?.value);
        const names = [elements.user.value, elements.assistant.value];
        const chats = elements.chats.children, busy = () => chats.filter(chat => chat.parts[".go"].disabled).length;
        const say = (chat, text) => { chat.parts.input.value = text; chat.heard.submit({ preventDefault() {} }); };
        chats.forEach((chat, index) => say(chat, `Tell me of animal ${index}.`));
        const together = busy();
        await until(() => !busy());
        say(chats[1], "And then?");
        await until(() => !busy());
        const told = chats.map(chat => [chat.parts[".said"].textContent, chat.parts[".error"].textContent]);
        console.log(JSON.stringify({ names, together, told }));
    """
    program.write_text(f"const BASE = {json.dumps(server.url + '/')};\n{BROWSER}\n{only(PAGE, 'script')}\n{use}")
    seen = json.loads(node(program))
    assert seen["names"] == ["Human:", "Assistant:"]
    assert seen["together"] == 4
    for index, (said, error) in enumerate(seen["told"]):
        assert error == ""
        assert said.startswith(f"Human: Tell me of animal {index}.\nAssistant: ")
        assert len(said) > len(f"Human: Tell me of animal {index}.\nAssistant: ")
        assert ("\nHuman: And then?\nAssistant:" in said) == (index == 1)
