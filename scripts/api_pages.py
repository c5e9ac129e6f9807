#!/usr/bin/env python
"""Writes docs/reference/http from the OpenAPI document, scripts/api_pages.toml and recorded answers (docs/recorded/api.json).

`python -m scripts.api_pages --record`, in the repository's root, sends every example to servers with the demo model, and records
their answers first.
"""

import asyncio
import json
import re
import shlex
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx

import weft
from weft.server import create_app

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference" / "http"
RECORDED = ROOT / "docs" / "recorded" / "api.json"
TEXTS = Path(__file__).with_suffix(".toml")

ADDRESS = "http://127.0.0.1:8080"
FLAGS = (
    "-np",
    "4",
    "-c",
    "4096",
    "--kv-unified",
    "--pooling",
    "mean",
    "--metrics",
    "--props",
    "-a",
    "storyteller",
    "--context-shift",
)
"""With a shifting context, requests of the setup run until the example is answered."""

BEGIN, END = "<!-- made by scripts/api_pages.py -->\n", "<!-- end of what is made -->\n"

JSON = Any
"""A value of JSON."""


class Operation(NamedTuple):
    """An operation of the OpenAPI document, with all of its paths."""

    method: str
    paths: tuple[str, ...]
    page: str
    spec: dict[str, JSON]

    @property
    def keys(self) -> list[str]:
        """Names of the operation: its method with each of its paths."""
        return [f"{self.method} {path}" for path in self.paths]


class Example(NamedTuple):
    """A request of the pages."""

    key: str
    """Key of its operation in the texts, as `POST /completion`."""
    position: int
    """Position among the operation's examples."""
    title: str
    path: str
    body: str
    """JSON; empty for none. `$NAME` in path and body stands for a value of the setup."""
    python: str
    """Program with an official client; empty for one with httpx."""
    headers: dict[str, str]
    setup: Sequence[dict[str, str]]
    """Requests before it, each with `send` (method and path), `body`, and `take`, which is `NAME = KEY` or `NAME = header KEY`.

    `hold = TEXT` reads a stream until the text occurs, and keeps it open until the example is answered."""
    server: str
    """`demo` or `reranker`."""

    @property
    def method(self) -> str:
        """HTTP method."""
        return self.key.partition(" ")[0]

    @property
    def name(self) -> str:
        """Name in the recording."""
        return self.key if not self.position else f"{self.key} ({self.title})"


@cache
def texts() -> dict[str, JSON]:
    """Returns the written parts of the pages."""
    return tomllib.loads(TEXTS.read_text(encoding="utf-8"))


@cache
def examples() -> list[Example]:
    """Returns the examples of all operations, in the order of the texts."""
    return [
        Example(
            key=key,
            position=position,
            title=given.get("title", ""),
            path=given.get("path", key.partition(" ")[2]),
            body=given.get("body", "").strip(),
            python=given.get("python", "").strip(),
            headers=given.get("headers", {}),
            setup=given.get("setup", []),
            server=given.get("server", "demo"),
        )
        for key, operation in texts()["operations"].items()
        for position, given in enumerate(operation["examples"])
    ]


@cache
def document() -> dict[str, JSON]:
    """Returns the OpenAPI document."""
    schema: dict[str, JSON] = create_app(weft.Engine(n_slots=1)).litestar.openapi_schema.to_schema()
    return schema


@cache
def operations() -> list[Operation]:
    """Returns the operations of the document; paths with one handler are aliases."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    specs = {}
    for path, item in document()["paths"].items():
        for method, spec in item.items():
            name = (method.upper(), _page_of(spec["tags"][0], path), spec["summary"])
            found[name].append(path)
            specs[name] = spec
    return [
        Operation(method, tuple(paths), page, specs[method, page, summary]) for (method, page, summary), paths in found.items()
    ]


def _page_of(tag: str, path: str) -> str:
    if tag == "OpenAI" and re.match(r"(/v1)?/(responses|conversations)\b", path):
        return "responses"
    return {"llama.cpp": "llamacpp", "other servers": "compat"}.get(tag, tag.lower())


# Sending


def filled(text: str, values: dict[str, str]) -> str:
    """Replaces `$NAME` by values of the setup."""
    return re.sub(r"\$([a-z_]+)", lambda found: values.get(found[1], found[0]), text)


@asynccontextmanager
async def prepared(example: Example, url: str) -> AsyncIterator[dict[str, str]]:
    """Sends the requests before an example, and yields the values that they give it."""
    values: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        await _unpin_all(client)
        for step in example.setup:
            method, path = filled(step["send"], values).split(" ", 1)
            body, headers = filled(step.get("body", ""), values), json.loads(step.get("headers", "{}"))
            answer = await stack.enter_async_context(client.stream(method, path, content=body or None, headers=headers))
            if "hold" in step:
                await stack.enter_async_context(_read_until(answer, step["hold"]))
            else:
                await answer.aread()
            assert answer.is_success, (example.name, step, answer.status_code)
            for taken in filter(None, step.get("take", "").split(",")):
                name, _, key = taken.strip().partition(" = ")
                values[name] = answer.headers[key[7:]] if key.startswith("header ") else str(_member(answer.json(), key))
        yield values


@asynccontextmanager
async def _read_until(answer: httpx.Response, text: str) -> AsyncIterator[None]:
    """Reads a stream until a text occurs. The rest remains unread."""
    # A generator that is garbage-collected closes its stream.
    chunks = answer.aiter_text()
    received = ""
    while text not in received:
        received += await anext(chunks)
    yield
    del chunks


async def _unpin_all(client: httpx.AsyncClient) -> None:
    """Removes the pinned prefixes of earlier examples."""
    for prefix in (await client.get("/prefixes")).json()["prefixes"]:
        await client.delete(f"/prefixes/{prefix['id']}")


def _member(value: JSON, path: str) -> JSON:
    for key in path.split("."):
        value = value[int(key) if key.isdigit() else key]
    return value


class Answer(NamedTuple):
    """An answer as it is recorded."""

    status: int
    content_type: str
    body: JSON
    """JSON, or the text of another type."""
    values: dict[str, str]
    """Values of the setup."""


def answer_of(status: int, content_type: str, text: str, values: dict[str, str]) -> Answer:
    """Returns an answer with its JSON decoded."""
    kind = content_type.partition(";")[0]
    return Answer(status, kind, json.loads(text) if kind == "application/json" and text else text, values)


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Yields the addresses of a server with the demo model and an adapter, and of one with a tiny reranker."""
    from tests.adapters import write_adapter  # noqa: PLC0415 (recording alone needs the tests)
    from tests.engine.tiny_encoders import write_tiny_encoder  # noqa: PLC0415
    from tests.server.live import LiveServer  # noqa: PLC0415

    adapter = write_adapter(folder / "pirate.gguf", seed=1, task_name="pirate")
    write_tiny_encoder("reranker", folder / "reranker.gguf")
    slots = folder / "slots"
    slots.mkdir()
    flags = (*FLAGS, "--slot-save-path", str(slots), "--lora", str(adapter), "--lora-init-without-apply")
    with (
        LiveServer(folder / "demo.log", *flags) as demo,
        LiveServer(folder / "reranker.log", "-m", str(folder / "reranker.gguf"), "-np", "2", "-a", "reranker") as reranker,
    ):
        await demo.ready()
        await reranker.ready()
        yield {"demo": demo.url, "reranker": reranker.url}


async def record() -> None:
    """Sends every example and writes the answers."""
    with tempfile.TemporaryDirectory() as name:
        async with servers(Path(name)) as urls, httpx.AsyncClient(timeout=60) as client:
            found = {}
            for example in examples():
                url = urls[example.server]
                async with prepared(example, url) as values:
                    path, body = filled(example.path, values), filled(example.body, values)
                    sent = await client.request(example.method, url + path, content=body or None, headers=example.headers)
                answer = answer_of(sent.status_code, sent.headers.get("content-type", ""), sent.text, values)
                found[example.name] = _shortened(
                    answer._asdict(), {name: "/srv/weft", str(ROOT / "python" / "weft"): "/opt/weft"}
                )
    RECORDED.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _shortened(value: JSON, folders: dict[str, str]) -> JSON:
    """Returns a value without this machine's folders, and with the beginning of long lists of numbers and long texts."""
    if isinstance(value, dict):
        return {key: _shortened(member, folders) for key, member in value.items()}
    if isinstance(value, list):
        is_long = len(value) > 16 and all(isinstance(member, int | float) for member in value)
        return [_shortened(member, folders) for member in value[: 4 if is_long else None]]
    if isinstance(value, str):
        for folder, name in folders.items():
            value = value.replace(folder, name)
        is_stream = value.startswith(("data: ", "event: ", "{"))
        lines = value.splitlines(keepends=True)
        return value if len(value) < 600 or is_stream else "".join(lines[:12]) if len(lines) > 12 else value[:600]
    return value


# What a test compares


def shape(value: JSON) -> JSON:
    """Returns the keys and types of a value. Elements of a list are merged."""
    if isinstance(value, dict):
        return {key: shape(member) for key, member in sorted(value.items())}
    if isinstance(value, list):
        shapes = {json.dumps(shape(member)): shape(member) for member in value}
        return [shapes[key] for key in sorted(shapes)]
    return {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}[type(value)]


def shape_of(answer: Answer) -> JSON:
    """Returns status, type and shape of an answer; of a stream, each shape of its events in the order of first occurrence."""
    if not isinstance(answer.body, str):
        return [answer.status, answer.content_type, shape(answer.body)]
    if answer.content_type == "text/event-stream":
        frames = [re.sub(r"^(event: .*\n)?data: ", "", frame) for frame in answer.body.strip().split("\n\n")]
        lines = [frame for frame in frames if not frame.startswith(":")]
    elif answer.content_type == "application/x-ndjson":
        lines = answer.body.strip().splitlines()
    else:
        return [answer.status, answer.content_type, bool(answer.body)]
    kinds = [json.dumps(shape(json.loads(line))) if line != "[DONE]" else line for line in lines]
    return [answer.status, answer.content_type, list(dict.fromkeys(kinds))]


# Pages


def curl(example: Example, values: dict[str, str], address: str = ADDRESS) -> str:
    """Returns the shell command of an example."""
    is_streamed = '"stream": true' in example.body or example.path.startswith(("/stream", "/v1/stream?"))
    options = (" -N" if is_streamed else "") + ("" if example.method in ("GET", "POST") else f" -X {example.method}")
    if example.method == "POST" and not example.body:
        options += " -X POST"
    url = address + filled(example.path, values)
    parts = [f"curl{options} {shlex.quote(url) if re.search('[?&=]', url) else url}"]
    parts += [f"-H {shlex.quote(f'{name}: {value}')}" for name, value in example.headers.items()]
    if example.body:
        parts.append(f"-d {shlex.quote(filled(example.body, values))}")
    return " ".join(parts) if sum(map(len, parts)) < 90 else " \\\n  ".join(parts)


def python(example: Example, values: dict[str, str], address: str = ADDRESS) -> str:
    """Returns the Python program of an example."""
    if example.python:
        return filled(example.python, values).replace(ADDRESS, address)
    arguments = [f'"{address}{filled(example.path, values)}"']
    if example.body:
        arguments.append(f"json={_literal(json.loads(filled(example.body, values)), 4)}")
    if example.headers:
        arguments.append(f"headers={_literal(example.headers, 4)}")
    verb = example.method.lower()
    one_line = f"httpx.{verb}({', '.join(arguments)})"
    is_short = "\n" not in one_line and len(one_line) < 88
    many_lines = f"httpx.{verb}(\n    " + ",\n    ".join(arguments) + ",\n)"
    shown = "answer.json()" if _is_json(example) else "answer.text"
    shown = "answer.status_code" if example.method == "DELETE" and not _is_json(example) else shown
    return f"import httpx\n\nanswer = {one_line if is_short else many_lines}\nprint({shown})"


def _literal(value: JSON, indent: int) -> str:
    """Returns the Python literal of JSON, over several lines if it is long."""
    text = _quoted(value)
    if len(text) + indent < 88 or not isinstance(value, dict | list):
        return text
    pad = " " * (indent + 4)
    if isinstance(value, dict):
        members = [f"{_quoted(key)}: {_literal(member, indent + 4)}" for key, member in value.items()]
    else:
        members = [_literal(member, indent + 4) for member in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{pad}" + f",\n{pad}".join(members) + f",\n{' ' * indent}{closing}"


def _quoted(value: JSON) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_quoted(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


@cache
def recorded() -> dict[str, Answer]:
    """Returns the recorded answers by the names of their examples."""
    return {name: Answer(**answer) for name, answer in json.loads(RECORDED.read_text(encoding="utf-8")).items()}


def _is_json(example: Example) -> bool:
    return recorded()[example.name].content_type == "application/json"


WIDTH = 100
CUT = "…"


def _output(answer: Answer) -> Iterator[str]:
    """Yields the lines of an answer, shortened."""
    if answer.content_type == "application/json":
        yield f"```json\n{_shown(answer.body)}\n```"
    elif not answer.body:
        yield f"The answer is {answer.status}, without a body."
    else:
        yield f"```text\n{_lines(answer.body)}\n```"


def _lines(text: str) -> str:
    lines = [line if len(line) <= 2 * WIDTH else line[: 2 * WIDTH] + CUT for line in text.strip("\n").split("\n")]
    return "\n".join(lines if len(lines) <= 16 else [*lines[:8], CUT, *lines[-4:]])


def _shown(value: JSON, indent: int = 0) -> str:
    """Returns JSON with long texts, lists and inner objects cut."""
    text = _inline(value, is_outer=not indent)
    if len(text) + indent <= WIDTH or not isinstance(value, dict | list):
        return text
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        n = len(value) if not indent else 12
        members = [f"{json.dumps(key)}: {_shown(member, indent + 2)}" for key, member in list(value.items())[:n]]
    else:
        n = 4 if all(len(_inline(member)) + indent < WIDTH for member in value) else 2
        members = [_shown(member, indent + 2) for member in value[:n]]
    members += [CUT] * (len(value) > n)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{pad}" + f",\n{pad}".join(members) + f"\n{' ' * indent}{closing}"


def _inline(value: JSON, *, is_outer: bool = False) -> str:
    if isinstance(value, dict):
        n = len(value) if len(value) <= 12 or is_outer else 4
        members = [f"{json.dumps(key)}: {_inline(member)}" for key, member in list(value.items())[:n]]
        return "{" + ", ".join(members + [CUT] * (len(value) > n)) + "}"
    if isinstance(value, list):
        n = 3 if all(isinstance(member, int | float) for member in value) else 8
        return "[" + ", ".join([*map(_inline, value[:n])] + [CUT] * (len(value) > n)) + "]"
    if isinstance(value, str) and len(value) > WIDTH:
        value = value[:WIDTH] + CUT
    return json.dumps(value, ensure_ascii=False)


def _type_of(schema: dict[str, JSON]) -> str:
    """Returns a description of a schema without null: `integer`, `string or list of strings`."""
    if "$ref" in schema:
        return "object"
    if alternatives := schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type_of(one) for one in alternatives if one.get("type") != "null"))
    if schema.get("type") == "array":
        of = _type_of(schema.get("items", {}))
        return "list" if " " in of or of == "any" else f"list of {of}s"
    kind = schema.get("type", "any")
    return " or ".join(one for one in kind if one != "null") if isinstance(kind, list) else str(kind)


def _body_of(operation: Operation) -> dict[str, JSON]:
    """Returns the properties of the request's body."""
    schema = operation.spec.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = next((one for one in schema.get("oneOf", []) if "$ref" in one), schema)
    schema = schema["items"] if schema.get("type") == "array" else schema
    name = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, JSON] = document()["components"]["schemas"][name]["properties"] if name else {}
    return found


def _rows(schemas: dict[str, JSON], meanings: dict[str, list[str]]) -> Iterator[str]:
    yield "| field | type | default | range | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for name, (written, values, meaning) in meanings.items():
        schema = schemas[name]
        default = f"`{json.dumps(schema['default'])}`" if schema.get("default") not in (None, "") else written
        yield f"| `{name}` | {_type_of(schema)} | {default} | {values} | {meaning} |"


def _meanings(names: Sequence[str], own: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: own[name] if name in own else texts()["fields"][name] for name in names}


def _section(key: str) -> Iterator[str]:
    operation = next(one for one in operations() if key in one.keys)
    written = texts()["operations"][key]
    summary = operation.spec["summary"]
    yield f"## {summary}"
    yield f"`{key}`"
    if aliases := [alias for alias in operation.keys if alias != key]:
        yield "Aliases: " + ", ".join(f"`{alias}`" for alias in aliases) + "."
    yield f"{operation.spec['description'].strip()}\n{written.get('text', '').strip()}".strip()
    parameters = {one["name"]: one["schema"] for one in operation.spec.get("parameters", [])}
    if parameters:
        yield "Parameters:"
        yield "\n".join(_rows(parameters, _meanings(list(parameters), written.get("parameters", {})))).replace(
            "| field", "| name"
        )
    body = _body_of(operation)
    if body:
        show = written["show"]
        if show:
            yield "Fields of the body:"
            yield "\n".join(_rows(body, _meanings(show, written.get("fields", {}))))
        if others := [name for name in body if name not in show]:
            link = f"Described in [request fields](../request-fields.md): {', '.join(f'`{name}`' for name in others)}."
            if len(others) > 8:
                yield f'??? note "{len(others)} further fields"\n\n    {link}'
            else:
                yield link
    for example in examples():
        if example.key == key:
            yield from _example(example)


def _example(example: Example) -> Iterator[str]:
    answer = recorded()[example.name]
    if example.title:
        yield f"**{example.title}**"
    yield f'=== "curl"\n\n{_indented("sh", curl(example, answer.values))}'
    yield f'=== "Python"\n\n{_indented("python", python(example, answer.values))}'
    yield from _output(answer)


def _indented(language: str, code: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in [f"```{language}", *code.split("\n"), "```"])


def page(name: str) -> str:
    """Returns the text of a page."""
    head = texts()["pages"][name]
    parts = [f"# {head['title']}", head["intro"].strip()]
    for key in _keys_of(name):
        parts += _section(key)
    return "\n\n".join(parts) + "\n"


def _keys_of(name: str) -> list[str]:
    known = {key: one.page for one in operations() for key in one.keys}
    return [key for key in texts()["operations"] if known[key] == name]


def index(text: str) -> str:
    """Returns the index with its table of operations as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + "\n".join(_index_rows()) + "\n\n" + END + after


def _index_rows() -> Iterator[str]:
    yield "| operation | purpose |"
    yield "| --- | --- |"
    for name in texts()["pages"]:
        for key in _keys_of(name):
            [operation] = [one for one in operations() if key in one.keys]
            summary = operation.spec["summary"]
            anchor = re.sub(r"[^a-z0-9]+", "-", summary.lower()).strip("-")
            yield f"| [`{key}`]({name}.md#{anchor}) | {summary} |"


def pages() -> dict[Path, str]:
    """Returns every page by its path."""
    made = {PAGES / f"{name}.md": page(name) for name in texts()["pages"]}
    return made | {PAGES / "index.md": index((PAGES / "index.md").read_text(encoding="utf-8"))}


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        asyncio.run(record())
    for path, made in pages().items():
        path.write_text(made, encoding="utf-8")
