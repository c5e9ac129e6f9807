"""The page of several chats at once, which `--compat parallel` serves."""

import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.programs import printed
from tests.server.inline import only, run_script
from tests.server.live import LiveServer
from tests.server.serving import serving
from weft.server.page import text_of

PAGE = text_of("parallel.html")
NAMES = {"common": "", "system": "A talk.", "user": "User:", "assistant": "Bot:", "temperature": 0}

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


async def test_it_may_run_and_load_only_itself() -> None:
    async with serving(compat="parallel") as client:
        policy = (await client.get("/")).headers["content-security-policy"]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    hashes = {name: b64encode(sha256(only(PAGE, name).encode()).digest()).decode() for name in ("script", "style")}
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


def test_it_names_no_other_host() -> None:
    assert re.findall(r"https?:|//\w|@import|url\(|\bimport\b", only(PAGE, "style") + only(PAGE, "script")) == []
    assert re.findall(r'(?:src|href)="([^"]*)"', PAGE) == ["data:,"]
    # The policy would switch these off.
    assert re.findall(r'\son\w+="|\sstyle="', PAGE) == []


EVENTS = [{"index": 0, "content": " a\n\n"}, {"index": 1, "content": "é🙂 data: x"}, {"index": 0, "stop": True}]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(("line_end", "end"), [("\n", "\n\n"), ("\r\n", "\n\n"), ("\n", "\n"), ("\n", "")])
def test_events_are_read_however_the_stream_is_cut(size: int, line_end: str, end: str) -> None:
    stream = ": ping\n\n" + "\n\n".join(f"data: {json.dumps(event, ensure_ascii=False)}" for event in EVENTS) + end
    stream = stream.replace("\n", line_end)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    read = run_script(
        PAGE,
        f"""
        const pieces = {json.dumps(pieces)}, events = [];
        const read = async () => pieces.length ? {{ done: false, value: pieces.shift() }} : {{ done: true }};
        for await (const event of eventsOf({{ getReader: () => ({{ read }}) }})) events.push(event);
        give(events);
    """,
    )
    assert read == EVENTS


def test_a_chat_asks_with_all_that_was_said_in_it() -> None:
    first, second, after_nothing = run_script(
        PAGE,
        f"""
        const names = {json.dumps(NAMES)}, chat = new Chat();
        chat.ask("Hello");
        const first = chat.body(names);
        chat.hear(" Hi, "); chat.hear("you.\\n"); chat.end();
        chat.ask("And?");
        const second = chat.body(names);
        chat.end();
        give([first, second, chat.said(names)]);
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
    assert after_nothing == "User: Hello\nBot: Hi, you."


@pytest.mark.parametrize(
    ("common", "system", "begins"),
    [
        ("", "A talk.", "A talk.\nUser: a"),
        ("", "A talk.\n", "A talk.\nUser: a"),
        ("", "", "User: a"),
        ("", "A talk.\nUser:", "A talk.\nUser: a"),
        ("", "A talk.\nUser: ", "A talk.\nUser: a"),
        ("A talk.\nUser:", "", " a"),
        ("A talk.\nUser: ", "", "a"),
        ("A talk.", "", "\nUser: a"),
        ("A talk.\nUser:", " Hello\nBot: Hi.", " Hello\nBot: Hi.\nUser: a"),
    ],
)
def test_what_stands_before_a_chat_may_end_in_the_users_name(common: str, system: str, begins: str) -> None:
    names = NAMES | {"common": common, "system": system}
    use = f"""
        const chat = new Chat();
        chat.ask("a"); chat.hear("b"); chat.ask("c");
        give(chat.body({json.dumps(names)}).prompt);
    """
    assert run_script(PAGE, use) == f"{begins}\nBot: b\nUser: c\nBot:"


def test_a_chat_forgets_its_older_half_but_never_what_is_asked() -> None:
    use = f"""
        const chat = new Chat(), names = {json.dumps(NAMES)}, seen = [];
        for (const asked of ["a", "b", "c", "d"]) {{ chat.ask(asked); chat.hear("x"); }}
        chat.ask("e");
        do seen.push(chat.body(names).prompt.match(/(?<=User: )\\w/g).join("")); while (chat.forget());
        give([seen, chat.said(names).match(/(?<=User: )\\w/g).join("")]);
    """
    assert run_script(PAGE, use) == [["abcde", "cde", "de", "e"], "abcde"]


SAYING = """
await until(() => elements.user?.value);
const [chat] = elements.chats.children, { input, ".said": said, ".error": error, ".go": go } = chat.parts;
const say = async text => {
  input.value = text;
  chat.heard.submit({ preventDefault() {} });
  await until(() => !go.disabled);
  return [said.textContent, error.textContent, input.value];
};
const sent = [];
globalThis.fetch = new Proxy(globalThis.fetch, { apply: (real, self, [path, options]) => {
  if (options.body) sent.push(JSON.parse(options.body));
  return real(path, options);
} });
"""


def page_program(folder: Path, server: LiveServer, use: str) -> Path:
    """The page in its browser, and what is done with it."""
    program = folder / "page.mjs"
    program.write_text(f"const BASE = {json.dumps(server.url + '/')};\n{BROWSER}\n{only(PAGE, 'script')}\n{use}")
    return program


async def test_a_chat_goes_on_when_its_context_is_full_and_loses_no_question(server: LiveServer, tmp_path: Path) -> None:
    use = f"""{SAYING}
        const long = "The quick brown fox jumps over the lazy dog. ".repeat(20);
        const told = [];
        for (const name of ["one", "two", "three"]) told.push((await say(`${{long}} ${{name}}`))[1]);
        const tooLong = await say(long.repeat(5));
        console.log(JSON.stringify([told, sent.length, said.textContent.includes(" one\\n"), tooLong, long.repeat(5)]));
    """
    told, n_sent, is_shown, (_, error, given_back), long = json.loads(printed("node", page_program(tmp_path, server, use)))
    assert told == ["", "", ""]
    assert n_sent > 4
    assert is_shown
    assert "context" in error
    assert given_back == long


def test_a_chat_follows_the_system_prompt_of_its_server(server: LiveServer, tmp_path: Path) -> None:
    spoken = {"system_prompt": "A talk.\n\nMe:", "anti_prompt": "Me:", "assistant_name": "You:", "prompt": " x", "n_predict": 0}
    httpx.post(f"{server.url}/completion", json=spoken).raise_for_status()
    use = f"""{SAYING}
        await say("Hello");
        elements.user.value = " ";
        elements.assistant.value = "";
        await say("There?");
        console.log(JSON.stringify([elements.system.value, ...sent.map(({{ prompt, stop }}) => [prompt, stop])]));
    """
    system, (first, *_), (second, stop) = json.loads(printed("node", page_program(tmp_path, server, use)))
    assert system == ""
    assert first == " Hello\nYou:"
    assert second.startswith(f"{first} ")
    assert second.endswith("\nMe: There?\nYou:")
    assert stop == ["\nMe:"]


async def test_several_chats_are_answered_at_once_each_with_its_own(server: LiveServer, tmp_path: Path) -> None:
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
    seen = json.loads(printed("node", page_program(tmp_path, server, use)))
    assert seen["names"] == ["Human:", "Assistant:"]
    assert seen["together"] == 4
    for index, (said, error) in enumerate(seen["told"]):
        assert error == ""
        assert said.startswith(f"Human: Tell me of animal {index}.\nAssistant: ")
        assert len(said) > len(f"Human: Tell me of animal {index}.\nAssistant: ")
        assert ("\nHuman: And then?\nAssistant:" in said) == (index == 1)
