"""Documents over HTTP: their nodes, the branches that the server writes into them, and the stream of events."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
import weft.documents
from tests.helpers import wait_until
from tests.page.engine import WordEngine
from tests.server.conftest import PROMPT, answers
from tests.server.live import LiveServer
from tests.server.matchers import Json
from weft.documents import nodes as nodes_of_file
from weft.documents.catalog import DocumentChange
from weft.documents.nodes import Content
from weft.documents.records import DocumentKey
from weft.server import create_app
from weft.server.documents_api import events as events_of_feed
from weft.server.documents_api import feed as feeds
from weft.server.documents_api.service import DocumentService
from weft.server.documents_api.writers import BranchWriter
from weft.settings import Settings


@asynccontextmanager
async def served(path: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ANN401 (settings)
    """The application over the demo model, with its documents in a file."""
    engine = weft.Engine(n_slots=8, n_ctx=4096, kv_unified=True, n_threads=1, speculation="off")
    app = create_app(engine, Settings(documents_path=str(path), **settings))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        yield client


@asynccontextmanager
async def live(path: Path, *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """A server in a process of its own, which streams, unlike the client of the application."""
    common = ("-np", "8", "-c", "4096", "--kv-unified", "--spec-type", "none", "--documents", str(path))
    with LiveServer(path.with_suffix(".log"), *common, *flags) as server:
        await server.ready()
        async with httpx.AsyncClient(base_url=server.url, timeout=25) as client:
            SERVERS[client] = server
            yield client


SERVERS: WeakKeyDictionary[httpx.AsyncClient, LiveServer] = WeakKeyDictionary()
"""The server of each client that `live` has made."""


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with live(tmp_path_factory.mktemp("documents") / "documents.sqlite") as client:
        yield client


async def post(client: httpx.AsyncClient, path: str, body: object, status: int = 200, **more: Any) -> Json:  # noqa: ANN401
    answer = await client.post(path, json=body, **more)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture
async def document(client: httpx.AsyncClient) -> str:
    """The path of a new document."""
    return await new_document(client)


async def new_document(client: httpx.AsyncClient, **more: Any) -> str:  # noqa: ANN401 (options of httpx)
    made = await post(client, "/documents", {"title": "The fox"}, 201, **more)
    return f"/documents/{made['id']}"


async def add(client: httpx.AsyncClient, document: str, text: str, parent: int | None = None) -> int:
    made = await post(client, f"{document}/nodes", {"text": text, "parent": parent}, 201)
    return int(made["id"])


async def nodes(client: httpx.AsyncClient, document: str, **more: Any) -> dict[int, Json]:  # noqa: ANN401 (as above)
    answer = (await client.get(f"{document}/nodes", **more)).raise_for_status().json()
    return {node["id"]: node for node in answer["nodes"]}


async def ended(client: httpx.AsyncClient, document: str) -> dict[int, Json]:
    """The nodes, once no branch is running."""
    async with asyncio.timeout(20):
        while True:
            found = await nodes(client, document)
            if all(node["state"] != "running" for node in found.values()):
                return found
            await asyncio.sleep(0.02)


class Events:
    """Reads the stream of events, and applies it to the nodes as a page would."""

    def __init__(self, client: httpx.AsyncClient, **query: str) -> None:
        self._client = client
        self._query = query
        self.events: list[Json] = []
        self.texts: dict[tuple[str, int], str] = {}
        self.states: dict[tuple[str, int], str] = {}
        self.last_id = ""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        await self.until(lambda: bool(self.events))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        async with self._client.stream("GET", "/documents/events", params=self._query) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("id: "):
                    self.last_id = line[4:]
                elif line.startswith("data: "):
                    self._apply(json.loads(line[6:]))

    def _apply(self, event: Json) -> None:
        self.events.append(event)
        if event["type"] == "nodes":
            for node in event["nodes"]:
                self.texts[event["document"], node["id"]] = node["text"]
                self.states[event["document"], node["id"]] = node["state"]
        elif event["type"] == "tokens":
            for branch in event["branches"]:
                key = event["document"], branch["node"]
                assert len(self.texts[key]) == branch["start"], "every text follows the one before"
                self.texts[key] += branch["text"]

    async def until(self, is_there: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_there():
                assert not self._task.done() or self._task.exception() is None
                await asyncio.sleep(0.01)

    def of_type(self, kind: str) -> list[Json]:
        return [event for event in self.events if event["type"] == kind]


async def test_documents_are_listed_changed_and_deleted(client: httpx.AsyncClient) -> None:
    document = await new_document(client)
    changed = await client.patch(document, json={"title": "The owl", "settings": {"memory": "old"}, "is_trashed": True})
    assert changed.json() | {"title": "The owl", "is_trashed": True, "settings": {"memory": "old"}} == changed.json()
    listed = (await client.get("/documents")).json()
    assert [one for one in listed["documents"] if document.endswith(one["id"])] == [changed.json()]
    assert listed["quotas"]["max_nodes"] == 100_000
    assert (await client.delete(document)).status_code == 204
    assert (await client.get(document)).status_code == 404
    assert (await client.delete(document)).status_code == 404


async def test_branches_are_written_by_the_server(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    made = await post(client, f"{document}/nodes/{top}/continue", {"n": 3, "n_predict": 12, "seed": 5, "n_probs": 4}, 201)
    assert [node["state"] for node in made["nodes"]] == ["running"] * 3
    assert made["n_retokenized"] == 0
    found = await ended(client, document)
    plain = await post(client, "/completion", {"prompt": PROMPT, "n": 3, "n_predict": 12, "seed": 5})
    assert sorted(found[node["id"]]["text"] for node in made["nodes"]) == sorted(one["content"] for one in plain)
    for node in made["nodes"]:
        assert found[node["id"]]["finish_reason"] == "length"
        assert found[node["id"]]["parameters"]["n_predict"] == 12
        tokens = (await client.get(f"{document}/nodes/{node['id']}/tokens")).json()
        assert len(tokens["tokens"]) == 12
        assert "".join(token["text"] for token in tokens["tokens"]) == found[node["id"]]["text"]
        assert [len(token["alternatives"]) for token in tokens["tokens"]] == [4] * 12
        assert tokens["is_current"]


async def test_a_path_of_generated_text_is_continued_by_its_tokens(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    [first] = (await post(client, f"{document}/nodes/{top}/continue", {"n_predict": 20, "seed": 1}, 201))["nodes"]
    await ended(client, document)
    made = await post(client, f"{document}/nodes/{first['id']}/continue", {"n": 2, "n_predict": 4}, 201)
    tokens = (await post(client, "/tokenize", {"content": PROMPT, "add_special": True}))["tokens"]
    assert made["n_prompt"] == len(tokens) + 20
    await ended(client, document)


async def test_branches_begin_at_an_alternative_inside_of_a_node(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    [first] = (await post(client, f"{document}/nodes/{top}/continue", {"n_predict": 10, "n_probs": 3, "seed": 2}, 201))["nodes"]
    text = (await ended(client, document))[first["id"]]["text"]
    tokens = (await client.get(f"{document}/nodes/{first['id']}/tokens")).json()["tokens"]
    other = next(one for one in tokens[4]["alternatives"] if one["id"] != tokens[4]["id"])
    body = {"n": 2, "n_predict": 3, "at": {"token": 4}, "append": [other["id"]]}
    made = await post(client, f"{document}/nodes/{first['id']}/continue", body, 201)
    found = await ended(client, document)
    head = "".join(token["text"] for token in tokens[:4])
    assert found[first["id"]]["text"] == head
    assert [found[node["id"]]["text"] for node in made["changed"][:2]] == [head, text[len(head) :]]
    for node in made["nodes"]:
        assert found[node["id"]]["text"].startswith(other["text"])
        assert found[node["id"]]["parent"] == first["id"]
        assert len((await client.get(f"{document}/nodes/{node['id']}/tokens")).json()["tokens"]) == 4


async def test_a_running_branch_is_forked_and_continues_in_the_rest(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    body = {"n_predict": 200, "seed": 3, "ignore_eos": True}
    async with Events(client) as events:
        [first] = (await post(client, f"{document}/nodes/{top}/continue", body, 201))["nodes"]
        name = document.rpartition("/")[2]
        await events.until(lambda: len(events.texts.get((name, first["id"]), "")) > 60)
        fork = {"n": 2, "n_predict": 5, "at": {"character": 30}}
        made = await post(client, f"{document}/nodes/{first['id']}/continue", fork, 201)
        rest = made["changed"][1]
        assert rest["state"] == "running"
        found = await ended(client, document)
        await events.until(lambda: events.states.get((name, rest["id"])) == "done")
        assert {node: found[node]["text"] for node in found if node != top} == {
            node: text for (of, node), text in events.texts.items() if of == name and node != top
        }
    [whole] = [await post(client, "/completion", {"prompt": PROMPT, **body})]
    assert found[first["id"]]["text"] + found[rest["id"]]["text"] == whole["content"]
    assert len(found[first["id"]]["text"]) == 30


async def test_a_branch_is_stopped_and_keeps_its_text(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    body = {"n": 2, "n_predict": 2_000, "ignore_eos": True}
    async with Events(client) as events:
        first, second = (await post(client, f"{document}/nodes/{top}/continue", body, 201))["nodes"]
        name = document.rpartition("/")[2]
        await events.until(lambda: len(events.texts.get((name, first["id"]), "")) > 20)
        await post(client, f"{document}/nodes/{first['id']}/stop", {})
        await events.until(lambda: events.states[name, first["id"]] == "done")
        await events.until(lambda: events.states[name, second["id"]] == "done")
        other = (await client.get(f"{document}/nodes/{second['id']}")).json()
        assert other["finish_reason"] == "context_full"
        stopped = (await client.get(f"{document}/nodes/{first['id']}")).json()
        assert stopped["finish_reason"] == "cancelled"
        assert stopped["text"] == events.texts[name, first["id"]]
        await client.delete(f"{document}/nodes/{second['id']}")
    assert list(await ended(client, document)) == [top, first["id"]]
    for _ in range(1000):
        running = [one for one in (await client.get("/requests")).json()["requests"] if one["n_running"]]
        if not running:
            break
        await asyncio.sleep(0.01)
    assert running == []


@pytest.mark.parametrize(
    ("until", "expression"), [("sentence", r"[.!?]['\"]?$"), ("paragraph", r"^[^\n]*\S$|\n\S[^\n]*\S$")], ids=["sentence", "line"]
)
async def test_branches_end_at_a_sentence_or_paragraph(
    client: httpx.AsyncClient, document: str, until: str, expression: str
) -> None:
    top = await add(client, document, PROMPT)
    body = {"n": 4, "n_predict": 300, "until": until, "seed": 4}
    made = await post(client, f"{document}/nodes/{top}/continue", body, 201)
    found = await ended(client, document)
    for node in made["nodes"]:
        text, reason = found[node["id"]]["text"], found[node["id"]]["finish_reason"]
        assert reason in ("stop", "end")
        assert re.search(expression, text), text


async def test_branches_have_parameters_of_their_own(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    body = {"n_predict": 9, "branches": [{"n_predict": 3, "temperature": 0}, {"seed": 7}]}
    made = await post(client, f"{document}/nodes/{top}/continue", body, 201)
    first, second = made["nodes"]
    assert first["parameters"] == {"n_predict": 3, "temperature": 0, "seed": first["parameters"]["seed"]}
    assert second["parameters"] == {"n_predict": 9, "seed": 7}
    await ended(client, document)


async def test_a_prompt_replaces_the_path(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, "Never read.")
    body = {"prompt": ["A memory. ", PROMPT], "n_predict": 8, "seed": 6}
    [node] = (await post(client, f"{document}/nodes/{top}/continue", body, 201))["nodes"]
    found = await ended(client, document)
    plain = await post(client, "/completion", {"prompt": "A memory. " + PROMPT, "n_predict": 8, "seed": 6})
    assert found[node["id"]]["text"] == plain["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"at": {"token": 1, "character": 2}}, "at"),
        ({"at": {"token": 99}}, "at"),
        ({"at": {"character": -1}}, "at"),
        ({"n_probs": 21}, "n_probs"),
        ({"n": 0}, "n"),
        ({"stream": True}, "stream"),
        ({"until": "chapter"}, "until"),
        ({"temperature": "hot"}, "temperature"),
        ({"branches": [{"stream": True}]}, "branches"),
    ],
    ids=str,
)
async def test_an_invalid_request_adds_no_node(client: httpx.AsyncClient, document: str, body: Json, param: str) -> None:
    top = await add(client, document, PROMPT)
    answer = await client.post(f"{document}/nodes/{top}/continue", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert list(await nodes(client, document)) == [top]


async def test_nodes_have_the_number_of_prompt_tokens_that_were_computed(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, f"{PROMPT} there was a fox in {document}.")
    body: Json = {"n": 2, "n_predict": 6, "n_probs": 3, "seed": 2, "ignore_eos": True}
    async with Events(client) as events:
        made = await post(client, f"{document}/nodes/{top}/continue", body, 201)
        assert {(node["n_computed"], node["n_cached"]) for node in made["nodes"]} == {(None, None)}
        found = await ended(client, document)
        name = document.rpartition("/")[2]
        await events.until(lambda: [events.states.get((name, node["id"])) for node in made["nodes"]] == ["done", "done"])
        last = {node["id"]: node for event in events.of_type("nodes") for node in event["nodes"]}
    for node in made["nodes"]:
        assert last[node["id"]] == found[node["id"]]
        assert found[node["id"]]["n_computed"] + found[node["id"]]["n_cached"] == made["n_prompt"]
    assert (found[top]["n_computed"], found[top]["n_cached"]) == (None, None)

    # A click on an alternative: the text before it is in the cache.
    first = made["nodes"][0]["id"]
    tokens = (await client.get(f"{document}/nodes/{first}/tokens")).json()["tokens"]
    other = next(one for one in tokens[3]["alternatives"] if one["id"] != tokens[3]["id"])
    body = {"n": 3, "n_predict": 2, "at": {"token": 3}, "append": [other["id"]]}
    made = await post(client, f"{document}/nodes/{first}/continue", body, 201)
    found = await ended(client, document)
    assert sum(found[node["id"]]["n_computed"] for node in made["nodes"]) == 1


async def test_an_empty_path_has_nothing_to_continue(tmp_path: Path, client: httpx.AsyncClient, document: str) -> None:
    answer = await client.post(f"{document}/nodes/1/continue", json={})
    assert answer.status_code == 404


async def test_two_editors_of_one_node_lose_nothing(client: httpx.AsyncClient, document: str) -> None:
    node = f"{document}/nodes/{await add(client, document, 'Once.')}"
    edits = [client.patch(node, json={"version": 1, "text": f"Editor {nth}."}) for nth in range(8)]
    answers = [answer.json() for answer in await asyncio.gather(*edits)]
    assert sum(not answer["is_sibling"] for answer in answers) == 1
    texts = {each["text"] for each in (await nodes(client, document)).values()}
    assert texts == {f"Editor {nth}." for nth in range(8)}
    titles = [client.patch(document, json={"title": f"Title {nth}"}) for nth in range(8)]
    last = {answer.json()["title"] for answer in await asyncio.gather(*titles)}
    assert (await client.get(document)).json()["title"] in last


async def test_split_merge_and_move(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, "one two")
    other = await add(client, document, "three")
    head, rest = (await post(client, f"{document}/nodes/{top}/split", {"at": {"character": 4}}))["nodes"]
    assert (head["text"], rest["text"], rest["parent"]) == ("one ", "two", top)
    await post(client, f"{document}/nodes/{other}/move", {"parent": top, "index": 0})
    answer = await client.post(f"{document}/nodes/{top}/merge", json={})
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "conflict_error")
    await post(client, f"{document}/nodes/{other}/move", {"parent": None})
    merged = await post(client, f"{document}/nodes/{top}/merge", {})
    assert ([node["text"] for node in merged["nodes"]], merged["deleted"]) == (["one two"], [rest["id"]])


async def test_nodes_are_labelled_bookmarked_and_trashed(client: httpx.AsyncClient, document: str) -> None:
    node = f"{document}/nodes/{await add(client, document, 'text')}"
    change = {"label": "Chapter", "note": "short", "is_bookmarked": True, "is_trashed": True}
    changed = (await client.patch(node, json=change)).json()["node"]
    assert {name: changed[name] for name in change} == change
    assert (await client.get(node)).json() == changed


async def test_search_finds_text_without_diacritics(client: httpx.AsyncClient, document: str) -> None:
    node = await add(client, document, "Ein déjà vu")
    found = (await client.get("/documents/search", params={"q": "DEJA"})).json()
    name = document.rpartition("/")[2]
    [hit] = [hit for hit in found["hits"] if hit["document"] == name]
    assert (hit["node"], hit["start"], hit["length"]) == (node, 4, 4)
    assert (await client.get("/documents/search", params={"q": " "})).status_code == 400


async def test_a_document_is_exported_and_imported(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, "There was a fox.")
    await add(client, document, " It ran.", top)
    exported = await client.get(f"{document}/export")
    assert exported.headers["content-disposition"] == 'attachment; filename="document.json"'
    assert exported.headers["x-content-type-options"] == "nosniff"
    body = {"format": "json", "content": exported.text, "title": "Copy"}
    made = await post(client, "/documents/import", body, 201)
    assert (made["title"], made["n_nodes"]) == ("Copy", 2)
    text = await client.get(f"/documents/{made['id']}/export", params={"format": "text"})
    assert text.text == "There was a fox. It ran."
    assert (await client.get(f"{document}/export", params={"format": "html"})).status_code == 400
    assert (await client.post("/documents/import", json={"format": "json", "content": "[]"})).status_code == 400


async def test_events_carry_all_changes_and_each_text_once(client: httpx.AsyncClient) -> None:
    async with Events(client) as events:
        assert events.events[0] == {"type": "ready"}
        document = await new_document(client)
        name = document.rpartition("/")[2]
        top = await add(client, document, PROMPT)
        made = await post(client, f"{document}/nodes/{top}/continue", {"n": 4, "n_predict": 30, "ignore_eos": True}, 201)
        await client.patch(f"{document}/nodes/{made['nodes'][0]['id']}", json={"label": "while it runs"})
        found = await ended(client, document)
        await events.until(lambda: list(events.states.values()).count("done") == 5)
        assert {node: events.texts[name, node] for node in found} == {node: one["text"] for node, one in found.items()}
        steps = [event for event in events.of_type("tokens") if event["document"] == name]
        assert max(len(event["branches"]) for event in steps) == 4, "the branches of a step are in one event"
        assert sum(len(branch["tokens"]) for event in steps for branch in event["branches"]) == 4 * 30
        await client.delete(f"{document}/nodes/{top}")
        await client.delete(document)
        await events.until(lambda: bool(events.of_type("document_deleted")))
        assert sorted(events.of_type("nodes_deleted")[-1]["nodes"]) == sorted(found)


async def test_events_continue_from_a_response_or_the_last_event(client: httpx.AsyncClient, document: str) -> None:
    cursor = (await client.get(f"{document}/nodes")).json()["cursor"]
    await add(client, document, "missed")
    async with Events(client, after=cursor) as events:
        await events.until(lambda: bool(events.of_type("nodes")))
        last = events.last_id
    await add(client, document, "later")
    async with client.stream("GET", "/documents/events", headers={"Last-Event-ID": last}) as answer:
        lines = answer.aiter_lines()
        async with asyncio.timeout(10):
            received = [json.loads(line[6:]) async for line in _data(lines, 2)]
    assert [event["type"] for event in received] == ["ready", "nodes"]
    assert received[1]["nodes"][0]["text"] == "later"


async def _data(lines: AsyncIterator[str], n: int) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith("data: "):
            yield line
            if not (n := n - 1):
                return


@pytest.mark.parametrize("cursor", ["", "x", "other-0", "0-99999", "-1", "🦊"])
async def test_a_lost_position_asks_the_client_to_read_again(client: httpx.AsyncClient, cursor: str) -> None:
    async with Events(client, after=cursor) as events:
        assert events.events == [{"type": "reset" if cursor else "ready"}]


async def test_a_client_that_does_not_read_events_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_FEED_BYTES", 20_000)
    feed = feeds.Feeds().of(None)
    may_send = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: Any) -> None:  # noqa: ANN401 (an ASGI message)
        sent.append(message.get("body", b""))
        await may_send.wait()

    async def receive() -> Any:  # noqa: ANN401 (as above)
        await asyncio.get_running_loop().create_future()

    reading = asyncio.create_task(feeds.FeedResponse(feed, None, 1.0)(cast("Any", {}), receive, send))
    for nth in range(400):
        await asyncio.sleep(0)
        feed.publish(events_of_feed.DocumentDeleted(f"{nth}" * 100))
    assert feed.n_bytes <= 20_000
    assert len(sent) == 1
    may_send.set()
    await wait_until(lambda: b"reset" in b"".join(sent))
    feed.publish(events_of_feed.DocumentDeleted("last"))
    await wait_until(lambda: b'"last"' in b"".join(sent))
    feed.close()
    await asyncio.wait_for(reading, 5)
    assert sent[-1] == b""


async def test_branches_continue_after_their_client_has_left_and_end_in_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with live(path) as client:
        document = await new_document(client)
        top = await add(client, document, PROMPT)
        body = {"n": 3, "n_predict": 3_000, "ignore_eos": True, "n_probs": 2}
        await post(client, f"{document}/nodes/{top}/continue", body, 201)
        await wait_until_text(client, document, 40)
    async with live(path) as client:
        found = await nodes(client, document)
        assert [node["state"] for node in found.values()] == ["done", *["interrupted"] * 3]
        assert all(len(node["text"]) >= 20 for node in found.values() if node["parent"])
        assert {node["error"] for node in found.values() if node["parent"]} == {"the engine has stopped"}
        [resumed] = (await post(client, f"{document}/nodes/2/resume", {}))["nodes"]
        assert resumed["state"] == "running"
        assert resumed["text"] == found[2]["text"]
        await wait_until_text(client, document, len(found[2]["text"]) + 20)
        await post(client, f"{document}/nodes/2/stop", {})
        after = (await ended(client, document))[2]
        assert after["text"].startswith(found[2]["text"])
        assert after["state"] == "done"
        tokens = (await client.get(f"{document}/nodes/2/tokens")).json()["tokens"]
        assert "".join(token["text"] for token in tokens) == after["text"]
        assert all(token["id"] is not None for token in tokens)
        answer = await client.post(f"{document}/nodes/2/resume", json={})
        assert answer.status_code == 409


async def test_all_interrupted_branches_are_resumed_with_one_request(client: httpx.AsyncClient) -> None:
    parameters = {"n_predict": 6, "seed": 1}
    interrupted = {"parent": 1, "text": " there", "is_interrupted": True, "parameters": parameters}
    saved = [
        {"id": 1, "text": PROMPT},
        *({"id": node, **interrupted} for node in (2, 3, 4)),
        {"id": 5, **interrupted, "is_trashed": True},
        {"id": 6, **interrupted, "parent": 5},
        {"id": 7, **interrupted, "parameters": {"temperature": "hot"}},
        {"id": 8, "parent": 1, "text": " done"},
    ]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    document = f"/documents/{(await post(client, '/documents/import', {'format': 'json', 'content': content}, 201))['id']}"
    result = await post(client, f"{document}/resume", {})
    assert [node["id"] for one in result["resumed"] for node in one["nodes"]] == [2, 3, 4]
    assert [one["node"] for one in result["failed"]] == [7]
    alone = await client.post(f"{document}/nodes/7/resume", json={})
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "parameters")
    assert result["failed"][0]["message"] == alone.json()["error"]["message"]
    found = await ended(client, document)
    assert [node for node, one in found.items() if one["state"] == "interrupted"] == [5, 6, 7]
    assert {found[node]["finish_reason"] for node in (2, 3, 4)} == {"length"}
    assert await post(client, f"{document}/resume", {}) == {"resumed": [], "failed": result["failed"]}
    assert (await client.post("/documents/none/resume", json={})).status_code == 404


async def test_a_document_is_duplicated_with_its_settings_and_nodes(client: httpx.AsyncClient, document: str) -> None:
    await client.patch(document, json={"settings": {"memory": "A fox."}, "folder": "stories"})
    top = await add(client, document, PROMPT)
    await post(client, f"{document}/nodes/{top}/continue", {"n": 2, "n_predict": 3, "n_probs": 2}, 201)
    await ended(client, document)
    copy = await post(client, f"{document}/duplicate", {}, 201)
    assert (copy["title"], copy["folder"], copy["settings"]) == ("The fox", "stories", {"memory": "A fox."})
    exports = [(await client.get(f"{each}/export")).json() for each in (document, f"/documents/{copy['id']}")]
    assert exports[0] == exports[1]
    renamed = await post(client, f"{document}/duplicate", {"title": "The owl", "folder": ""}, 201)
    assert (renamed["title"], renamed["folder"], renamed["n_nodes"]) == ("The owl", "", 3)
    assert (await client.post("/documents/none/duplicate", json={})).status_code == 404


async def wait_until_text(client: httpx.AsyncClient, document: str, n_characters: int) -> None:
    async with asyncio.timeout(20):
        while True:
            written = [node["text"] for node in (await nodes(client, document)).values() if node["parent"]]
            if max(map(len, written)) >= n_characters:
                return
            await asyncio.sleep(0.02)


async def test_text_survives_the_death_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    # No branch ends by itself: a full context is shifted.
    async with live(path, "--context-shift") as client:
        document = await new_document(client)
        top = await add(client, document, PROMPT)
        name = document.rpartition("/")[2]
        async with Events(client) as events:
            body = {"n": 8, "n_predict": -1, "ignore_eos": True}
            made = await post(client, f"{document}/nodes/{top}/continue", body, 201)
            ids = [node["id"] for node in made["nodes"]]
            await events.until(lambda: min(len(events.texts.get((name, node), "")) for node in ids) > 200)
            before = dict(events.texts)
            # The file is read without the server, which would store the latest text to answer.
            async with weft.documents.open(path) as documents, asyncio.timeout(20):
                while True:
                    stored = {node.id: node.text for node in await documents.nodes(name)}
                    if all(stored[node].startswith(before[name, node]) for node in ids):
                        break
                    await asyncio.sleep(0.02)
            for _ in range(20):
                await add(client, document, "typed", top)
            assert all(events.states[name, node] == "running" for node in ids)
            os.kill(SERVERS[client].worker_id(), signal.SIGKILL)
            SERVERS[client].process.kill()
    async with live(path) as client:
        found = await nodes(client, document)
        assert [found[node]["state"] for node in ids] == ["interrupted"] * 8
        for node in ids:
            text = found[node]["text"]
            assert text.startswith(stored[node])
            assert events.texts[name, node].startswith(text) or text.startswith(events.texts[name, node])
            tokens = (await client.get(f"{document}/nodes/{node}/tokens")).json()["tokens"]
            assert "".join(token["text"] for token in tokens).startswith(text[:-8])
        assert [node["text"] for node in found.values()].count("typed") == 20
        resumed = await post(client, f"{document}/nodes/{ids[0]}/resume", {})
        assert resumed["nodes"][0]["text"] == found[ids[0]]["text"]


FOX = [248, 167, 174, 146]
"""Tokens of the demo model for the bytes of 🦊."""


def forced(token: int) -> Json:
    """Fields of a branch that writes one token."""
    return {"n_predict": 1, "logit_bias": [[token, 1_000]], "seed": 1}


async def tokens_of(client: httpx.AsyncClient, document: str, node: int) -> list[int | None]:
    return [token["id"] for token in (await client.get(f"{document}/nodes/{node}/tokens")).json()["tokens"]]


async def branch(client: httpx.AsyncClient, document: str, node: int, body: Json) -> Json:
    """Continues a node with one branch; returns its node once it has ended."""
    made = await post(client, f"{document}/nodes/{node}/continue", body, 201)
    return (await ended(client, document))[made["nodes"][0]["id"]]


@pytest.mark.parametrize("n", [1, 2, 3])
async def test_a_character_is_whole_whose_first_tokens_are_appended(client: httpx.AsyncClient, document: str, n: int) -> None:
    top = await add(client, document, PROMPT)
    async with Events(client) as events:
        node = await branch(client, document, top, {"append": FOX[:n], **forced(FOX[n])})
        name = document.rpartition("/")[2]
        await events.until(lambda: events.states.get((name, node["id"])) == "done")
        assert events.texts[name, node["id"]] == node["text"]
    assert node["text"] == ("🦊" if n == 3 else "")
    assert await tokens_of(client, document, node["id"]) == FOX[: n + 1]
    # The path has all tokens, so that another branch can complete the character.
    rest = await branch(client, document, node["id"], {"append": FOX[n + 1 : 3], **forced(FOX[3])})
    if n < 3:
        assert rest["text"] == "🦊"
        assert await tokens_of(client, document, rest["id"]) == FOX[n + 1 :]
    n_prompt = len((await post(client, "/tokenize", {"content": PROMPT, "add_special": True}))["tokens"])
    made = await post(client, f"{document}/nodes/{rest['id']}/continue", {"n_predict": 1}, 201)
    assert made["n_prompt"] == n_prompt + 4 + (n == 3)
    await ended(client, document)


async def test_a_character_is_whole_whose_first_tokens_end_a_prompt(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, "Never read.")
    node = await branch(client, document, top, {"prompt": [PROMPT, *FOX[:3]], **forced(FOX[3])})
    assert node["text"] == "🦊"
    assert await tokens_of(client, document, node["id"]) == FOX[3:]


async def test_a_character_that_a_branch_does_not_complete_is_replaced_and_keeps_its_tokens(
    client: httpx.AsyncClient, document: str
) -> None:
    top = await add(client, document, PROMPT)
    [word] = (await post(client, "/tokenize", {"content": " a"}))["tokens"]
    node = await branch(client, document, top, {"append": FOX[:2], **forced(word)})
    assert node["text"] == "\ufffd a"
    assert await tokens_of(client, document, node["id"]) == [*FOX[:2], word]


async def test_text_does_not_follow_an_incomplete_character(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    node = await branch(client, document, top, {"append": FOX[:1], **forced(FOX[1])})
    below = await add(client, document, " there was", node["id"])
    made = await post(client, f"{document}/nodes/{below}/continue", {"n_predict": 1}, 201)
    whole = await post(client, "/tokenize", {"content": PROMPT + " there was", "add_special": True})
    assert made["n_prompt"] == len(whole["tokens"])
    await ended(client, document)


async def test_an_interrupted_character_is_completed_after_it_was_resumed(client: httpx.AsyncClient) -> None:
    digest = await digest_of(client)
    spans: list[Json] = [[0, token, None, []] for token in FOX[:3]]
    parameters = {**forced(FOX[3]), "n_predict": 4}
    saved = [
        {"id": 1, "text": PROMPT},
        {"id": 2, "parent": 1, "text": "", "spans": spans, "digest": digest, "is_interrupted": True, "parameters": parameters},
    ]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    made = await post(client, "/documents/import", {"format": "json", "content": content}, 201)
    document = f"/documents/{made['id']}"
    await post(client, f"{document}/nodes/2/resume", {})
    assert (await ended(client, document))[2]["text"] == "🦊"
    assert await tokens_of(client, document, 2) == FOX


async def digest_of(client: httpx.AsyncClient) -> str:
    """The digest of the model, which exported nodes have."""
    document = await new_document(client)
    node = await branch(client, document, await add(client, document, PROMPT), {"n_predict": 1})
    saved = (await client.get(f"{document}/export")).json()["nodes"]
    return str(next(each["digest"] for each in saved if each["id"] == node["id"]))


PERIOD = 2000
"""A token of the demo model."""


async def test_a_prompt_is_not_stored_with_its_branches(client: httpx.AsyncClient, document: str) -> None:
    top = await add(client, document, PROMPT)
    memory = "A long memory. " * 100

    async def growth(**fields: Json) -> tuple[int, int]:
        """Bytes of the document and of the events that eight branches add."""
        before = (await client.get(document)).json()["n_bytes"]
        cursor = (await client.get(f"{document}/nodes")).json()["cursor"]
        body = {"n": 8, "n_predict": 1, "logit_bias": [[PERIOD, 1_000]], "seed": 1, **fields}
        made = await post(client, f"{document}/nodes/{top}/continue", body, 201)
        assert memory not in json.dumps(made)
        assert all("prompt" not in node["parameters"] for node in made["nodes"])
        found = await ended(client, document)
        assert all("prompt" not in (node["parameters"] or {}) for node in found.values())
        # The last event of each branch is there once its end can be read.
        n_events = len((await client.get("/documents/events", params={"after": cursor, "max_s": 0.2})).content)
        return (await client.get(document)).json()["n_bytes"] - before, n_events

    short, long = await growth(), await growth(prompt=[memory, PROMPT])
    assert abs(long[0] - short[0]) < 100
    assert abs(long[1] - short[1]) < len(memory)
    assert memory not in (await client.get(f"{document}/export")).text


async def test_an_old_file_with_prompts_is_opened_without_them(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    parameters = {"prompt": "stored before", "n_predict": 3, "seed": 1, "ignore_eos": True}
    saved = [{"id": 1, "text": PROMPT}, {"id": 2, "parent": 1, "text": " there", "is_interrupted": True}]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    async with served(path) as client:
        made = await post(client, "/documents/import", {"format": "json", "content": content}, 201)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE nodes SET parameters = ? WHERE id = 2", (json.dumps(parameters),))
    async with served(path) as client:
        document = f"/documents/{made['id']}"
        found = await nodes(client, document)
        assert found[2]["parameters"] == {"n_predict": 3, "seed": 1, "ignore_eos": True}
        assert "stored before" not in (await client.get(f"{document}/export")).text
        await post(client, f"{document}/nodes/2/resume", {})
        assert (await ended(client, document))[2]["finish_reason"] == "length"
        # An exported file of an earlier version has prompts too.
        saved[1]["parameters"] = parameters
        content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
        made = await post(client, "/documents/import", {"format": "json", "content": content}, 201)
        assert "prompt" not in (await nodes(client, f"/documents/{made['id']}"))[2]["parameters"]


async def test_a_resumed_branch_has_the_prompt_that_is_sent_again(client: httpx.AsyncClient) -> None:
    interrupted = {"parent": 1, "text": " there", "is_interrupted": True, "parameters": {"n_predict": 2, "seed": 1}}
    saved = [{"id": 1, "text": "Never read."}, {"id": 2, **interrupted}, {"id": 3, **interrupted}]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    document = f"/documents/{(await post(client, '/documents/import', {'format': 'json', 'content': content}, 201))['id']}"
    result = await post(client, f"{document}/resume", {"prompts": {"2": ["A memory. ", PROMPT]}})
    expected = [["A memory. " + PROMPT + " there"], ["Never read. there"]]
    n_prompts = [len((await post(client, "/tokenize", {"content": text, "add_special": True}))["tokens"]) for [text] in expected]
    assert [one["n_prompt"] for one in result["resumed"]] == n_prompts
    await ended(client, document)
    saved = [{"id": 1, "text": "Never read."}, {"id": 2, **interrupted}]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    document = f"/documents/{(await post(client, '/documents/import', {'format': 'json', 'content': content}, 201))['id']}"
    alone = await post(client, f"{document}/nodes/2/resume", {"prompt": ["A memory. ", PROMPT]})
    assert alone["n_prompt"] == n_prompts[0]
    await ended(client, document)
    answer = await client.post(f"{document}/nodes/2/resume", json={"prompt": {"prompt_string": "x", "multimodal_data": ["y"]}})
    assert answer.status_code in (400, 409)


async def test_tokens_are_current_before_the_first_branch(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with served(path) as client:
        document = await new_document(client)
        node = await branch(client, document, await add(client, document, PROMPT), {"n_predict": 2})
    async with served(path) as client:
        assert (await client.get(f"{document}/nodes/{node['id']}/tokens")).json()["is_current"]


@asynccontextmanager
async def loading(path: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, WordEngine]]:  # noqa: ANN401 (settings)
    """The application while its model is loaded, until a test sets `loaded` of the engine."""
    engine = WordEngine()
    app = create_app(engine.as_engine(), Settings(documents_path=str(path), **settings))
    async with AsyncTestClient(app) as client:
        await answers(client, 503)
        yield client, engine


async def test_documents_are_read_and_changed_while_the_model_is_loaded(tmp_path: Path) -> None:
    async with loading(tmp_path / "documents.sqlite") as (client, engine):
        document = await new_document(client)
        top = await add(client, document, "Once")
        assert (await client.patch(document, json={"title": "The owl"})).json()["title"] == "The owl"
        await client.patch(f"{document}/nodes/{top}", json={"version": 1, "text": "Twice upon"})
        await post(client, f"{document}/nodes/{top}/split", {"at": {"character": 5}})
        assert [node["text"] for node in (await nodes(client, document)).values()] == ["Twice", " upon"]
        exported = await client.get(f"{document}/export")
        body = {"format": "json", "content": exported.text}
        assert (await post(client, "/documents/import", body, 201))["n_nodes"] == 2
        assert len((await client.get("/documents")).json()["documents"]) == 2
        assert (await client.get("/documents/search", params={"q": "twice"})).json()["hits"]
        assert not (await client.get(f"{document}/nodes/{top}/tokens")).json()["is_current"]
        assert b"event: ready" in (await client.get("/documents/events", params={"max_s": 0.05})).content
        await post(client, f"{document}/nodes/{top}/stop", {})
        assert (await client.get("/documents/none")).status_code == 404
        for path in (f"{document}/nodes/{top}/continue", f"{document}/nodes/{top}/resume", f"{document}/resume", "/tokenize"):
            answer = await client.post(path, json={"content": "a"} if path == "/tokenize" else {})
            assert (answer.status_code, answer.json()["error"]["message"]) == (503, "Loading model"), path
            assert answer.headers["retry-after"] == "1"
        engine.loaded.set()
        await answers(client, 200)
        await post(client, f"{document}/nodes/{top}/continue", {"n_predict": 2}, 201)
        assert (await ended(client, document))[3]["text"] == " The fox"


async def test_documents_need_their_key_while_the_model_is_loaded(tmp_path: Path) -> None:
    async with loading(tmp_path / "documents.sqlite", api_keys=("key",)) as (client, _):
        assert (await client.get("/documents")).status_code == 401
        assert (await client.get("/documents", headers={"authorization": "Bearer key"})).status_code == 200
        foreign = {"authorization": "Bearer key", "origin": "https://evil.example"}
        assert (await client.get("/documents", headers=foreign)).status_code == 403


async def test_documents_are_read_and_changed_while_the_model_is_unloaded(tmp_path: Path) -> None:
    engine = weft.Engine(n_slots=2, n_ctx=1024, kv_unified=True, n_threads=1, speculation="off")
    app = create_app(engine, Settings(documents_path=str(tmp_path / "documents.sqlite"), sleep_idle_s=1))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        await wait_until(lambda: engine.is_asleep)
        document = await new_document(client)
        top = await add(client, document, PROMPT)
        # Larger than any body that the model's context would permit.
        body = {"format": "text", "content": "a fox " * 1_500_000}
        assert (await post(client, "/documents/import", body, 201))["n_nodes"] == 1
        assert len((await client.get("/documents")).json()["documents"]) == 2
        assert engine.is_asleep
        node = await branch(client, document, top, {"n_predict": 2})
        assert node["finish_reason"] == "length"


async def test_an_import_reports_what_was_assumed(client: httpx.AsyncClient) -> None:
    book = json.dumps({"entries": [{"keys": ["fox"], "content": "red", "position": 4, "depth": 2}]})
    made = await post(client, "/documents/import", {"format": "sillytavern", "content": book}, 201)
    assert made["notes"][0] == "1 lore entry has a depth in messages, of which a text has none; the number was kept, in lines."
    assert made["settings"]["lore"][0]["unit"] == "lines"
    assert "notes" not in (await client.get(f"/documents/{made['id']}")).json()
    plain = await post(client, "/documents/import", {"format": "text", "content": "a"}, 201)
    assert plain["notes"] == []


async def test_a_full_quota_stops_branches_and_is_507(tmp_path: Path) -> None:
    limits = {"max_documents": 1, "max_nodes": 8, "max_bytes": 6_000}
    async with served(tmp_path / "documents.sqlite", **{f"documents_{name}": value for name, value in limits.items()}) as client:
        document = await new_document(client)
        quotas = (await client.get("/documents")).json()["quotas"]
        assert {name: quotas[name] for name in limits} == limits
        error = (await post(client, "/documents", {}, 507))["error"]
        assert error["type"] == "insufficient_storage_error"
        assert "at most 1 documents" in error["message"]
        top = await add(client, document, PROMPT)
        answer = await client.post(f"{document}/nodes/{top}/continue", json={"n": 8, "n_predict": 4})
        assert (answer.status_code, "at most 8 nodes" in answer.text) == (507, True)
        assert [one for one in (await client.get("/requests")).json()["requests"] if one["n_running"]] == []
        await post(client, f"{document}/nodes/{top}/continue", {"n_predict": 2_000, "ignore_eos": True}, 201)
        found = await ended(client, document)
        assert (found[2]["state"], found[2]["error"]) == ("interrupted", "the quota of bytes is used up")
        assert (await client.post(f"{document}/nodes", json={"text": "more"})).status_code == 507
        await client.delete(f"{document}/nodes/2")
        await add(client, document, "fits again")


async def test_a_thousand_nodes_are_read_in_pages(client: httpx.AsyncClient) -> None:
    saved = [{"id": nth, "parent": nth // 2 or None, "text": f" node {nth}"} for nth in range(1, 1_001)]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    made = await post(client, "/documents/import", {"format": "json", "content": content}, 201)
    assert made["n_nodes"] == 1_000
    found: list[Json] = []
    after: int | None = 0
    while after is not None:
        page = (await client.get(f"/documents/{made['id']}/nodes", params={"after": after, "limit": 300})).json()
        found += page["nodes"]
        after = page["next"]
    assert [node["text"] for node in found] == [one["text"] for one in saved]
    assert [node["parent"] for node in found] == [one["parent"] for one in saved]


async def test_text_of_another_model_is_tokenized_again_and_that_is_reported(client: httpx.AsyncClient) -> None:
    spans: list[object] = [[len(PROMPT), 1_000_000, None, []]]
    saved = [{"id": 1, "text": PROMPT, "spans": spans, "model": "other", "digest": "other"}]
    content = json.dumps({"format": "weft document", "version": 1, "nodes": saved})
    made = await post(client, "/documents/import", {"format": "json", "content": content}, 201)
    answer = await post(client, f"/documents/{made['id']}/nodes/1/continue", {"n_predict": 4}, 201)
    assert answer["n_retokenized"] == 1
    assert answer["n_prompt"] == len((await post(client, "/tokenize", {"content": PROMPT, "add_special": True}))["tokens"])
    assert not (await client.get(f"/documents/{made['id']}/nodes/1/tokens")).json()["is_current"]


async def test_the_file_is_created_with_the_first_document(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with served(path) as client:
        assert (await client.get("/documents")).json()["documents"] == []
        assert (await client.get("/documents/search", params={"q": "x"})).json()["hits"] == []
        assert not path.exists()
        await new_document(client)
        assert path.stat().st_mode & 0o777 == 0o600


async def test_a_second_server_does_not_use_the_file(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with served(path) as client:
        await new_document(client)
        await client.get("/documents")
        async with served(path) as other:
            for method, url, body in (("GET", "/documents", None), ("POST", "/documents", {"title": "The owl"})):
                answer = await other.request(method, url, json=body)
                assert (answer.status_code, answer.json()["error"]["type"]) == (503, "unavailable_error")
                assert f"another server uses the documents in {path}" in answer.json()["error"]["message"]
                assert "(--documents)" in answer.json()["error"]["message"]
            assert (await client.get("/documents")).status_code == 200


async def test_a_server_takes_the_file_over_when_the_other_has_stopped(tmp_path: Path) -> None:
    path = tmp_path / "documents.sqlite"
    async with served(path) as later:
        async with served(path) as client:
            document = await new_document(client)
            assert (await later.get(document)).status_code == 503
        assert (await later.get(document)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nodes/99999999999999999999", None, 404),
        ("GET", "/nodes?after=99999999999999999999", None, 200),
        ("GET", "/nodes?after=-99999999999999999999", None, 200),
        ("POST", "/nodes", {"text": "a", "parent": 99999999999999999999}, 404),
        ("POST", "/nodes", {"text": "a", "index": -1}, 400),
        ("PATCH", "/nodes/1", {"version": 99999999999999999999, "text": "x"}, 200),
        ("POST", "/nodes/1/continue", {"prompt": [99999999999999999999]}, 400),
        ("POST", "/nodes/1/continue", {"append": [-1]}, 400),
        ("POST", "/nodes/1/move", {"parent": -1}, 404),
        ("PATCH", "", {"title": "x" * 1_001}, 400),
        ("PATCH", "", {"name": "x"}, 400),
    ],
    ids=str,
)
async def test_numbers_and_texts_out_of_range_are_answered(
    client: httpx.AsyncClient, document: str, *, method: str, path: str, body: Json, status: int
) -> None:
    await add(client, document, PROMPT)
    answer = await client.request(method, document + path, json=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text


async def test_text_is_stored_also_if_the_request_that_took_it_is_cancelled(tmp_path: Path) -> None:
    service = DocumentService(
        cast("Any", SimpleNamespace(settings=Settings(documents_path=str(tmp_path / "documents.sqlite")), at_stop=[])),
        has_keys=False,
    )
    made = await service.create(None, DocumentChange())
    key = DocumentKey(None, made.id)
    [node] = await service.run(nodes_of_file.create, key, None, [Content(text="", state="running")])
    await service.run(nodes_of_file.nodes, key, limit=1)
    database = service.file
    await database.run(lambda file: file.connection.execute("UPDATE nodes SET state = 'running'").fetchall())
    model = cast("Any", SimpleNamespace(token_bytes=lambda token: b"word"))
    writer = BranchWriter(key, node, model, frozenset())
    service._store.add([writer])
    blocking = asyncio.create_task(service.run(lambda _: time.sleep(0.2)))
    await asyncio.sleep(0)
    writer.add(weft.Token(0, 7, "word", slot=0, n_predicted=1))
    cancelled = asyncio.create_task(service.run(lambda _: None))
    await asyncio.sleep(0)
    assert not writer.is_dirty, "the request has taken the text"
    cancelled.cancel()
    await asyncio.gather(blocking, cancelled, return_exceptions=True)
    assert (await service.run(nodes_of_file.node, key, node.id)).node.text == "word"
    await service.close()
