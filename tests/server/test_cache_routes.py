"""`/prefixes` pins what must stay computed, `/cache` shows what is."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast, get_args, get_type_hints
from xml.etree import ElementTree

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import prompt_of, wait_until
from tests.server.conftest import PROMPT, answers
from tests.server.live import LiveServer
from tests.server.matchers import COUNT, SOME_TEXT, Json
from weft.drawing.figure import MAX_DRAWN, readable
from weft.server import create_app
from weft.server.cache_api import picture, translate
from weft.server.cache_api.schemas import CacheNode, CacheReport
from weft.settings import Settings

SYSTEM = "You are a kind storyteller. Your stories are short, and they always end well."


@pytest.fixture
async def small() -> AsyncIterator[httpx.AsyncClient]:
    """A server with one slot, and a host cache of 1 MiB."""
    async with AsyncTestClient(create_app(weft.Engine(n_slots=1, n_ctx=1024, n_threads=1, cache_ram=1))) as client:
        await answers(client, 200)
        yield client


async def test_a_prefix_is_pinned_listed_and_unpinned(small: httpx.AsyncClient) -> None:
    answer = await small.post("/prefixes", json={"prompt": SYSTEM})
    assert answer.status_code == 200
    pinned = answer.json()
    assert pinned == {"id": COUNT, "n_tokens": COUNT, "n_bytes": COUNT}
    tokens = (await small.post("/tokenize", json={"content": SYSTEM, "add_special": True})).json()["tokens"]
    assert pinned["n_tokens"] == len(tokens)
    listed = (await small.get("/prefixes")).json()
    assert listed == {"prefixes": [pinned | {"text": "<s>" + SYSTEM, "is_text_cut": False}]}
    used = (await small.post("/completion", json={"prompt": [*tokens, 400], "n_predict": 1})).json()
    assert (used["timings"]["cache_n"], used["timings"]["prompt_n"]) == (len(tokens), 1)
    unpinned = await small.delete(f"/prefixes/{pinned['id']}")
    assert (unpinned.status_code, unpinned.content) == (204, b"")
    assert (await small.get("/prefixes")).json() == {"prefixes": []}


@pytest.mark.parametrize("prompt", [prompt_of(30, "tokens"), [1, "Once upon a time,"]], ids=["tokens", "mixed"])
async def test_a_list_is_one_prompt(small: httpx.AsyncClient, prompt: list[int | str]) -> None:
    pinned = (await small.post("/prefixes", json={"prompt": prompt})).json()
    [listed] = (await small.get("/prefixes")).json()["prefixes"]
    assert listed["id"] == pinned["id"]


@pytest.mark.parametrize("prefix_id", ["99", "-1", str(2**70)])
async def test_a_prefix_there_is_not_cannot_be_unpinned(small: httpx.AsyncClient, prefix_id: str) -> None:
    answer = await small.delete(f"/prefixes/{prefix_id}")
    assert answer.status_code == 404
    message = f"no pinned prefix has the id {prefix_id}"
    assert answer.json() == {"error": {"code": 404, "message": message, "type": "not_found_error"}}


async def test_pins_beyond_half_of_the_cache_are_refused(small: httpx.AsyncClient) -> None:
    answer = await small.post("/prefixes", json={"prompt": prompt_of(500, "half")})
    assert answer.status_code == 409
    assert answer.json() == {"error": {"code": 409, "message": SOME_TEXT, "type": "conflict_error"}}


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": None}, {"prompt": []}, {"prompt": [99_999]}, {"prompt": 5}, {"prompt": [[1]]}, {"prompt": {"a": 1}}],
    ids=str,
)
async def test_what_is_no_prompt_is_refused(small: httpx.AsyncClient, body: dict[str, Json]) -> None:
    answer = await small.post("/prefixes", json=body)
    assert answer.status_code == 400
    assert answer.json() == {"error": {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": "prompt"}}


async def test_a_client_that_leaves_pins_nothing(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.url) as client:
        busy = asyncio.create_task(client.post("/completion", json={"prompt": PROMPT, "n": 8, "ignore_eos": True}))
        await wait_until(lambda: len(live.busy_slots()) == 4)
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/prefixes", json={"prompt": prompt_of(300, "leaves")}, timeout=0.2)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    await wait_until(lambda: live.busy_slots() == [])
    assert live.get("/prefixes") == {"prefixes": []}


async def test_the_cache_is_a_tree_in_a_list(small: httpx.AsyncClient) -> None:
    shared = (await small.post("/tokenize", json={"content": PROMPT * 5, "add_special": True})).json()["tokens"]
    for ending in ([400, 401], [402, 403, 404]):
        await small.post("/completion", json={"prompt": [*shared, *ending], "n_predict": 1})
    pinned = (await small.post("/prefixes", json={"prompt": shared})).json()
    report = (await small.get("/cache")).json()
    assert report["cells"] == {"total": 1024, "used": COUNT, "idle": COUNT, "reached": COUNT}
    assert report["cells"]["idle"] == report["cells"]["used"] <= report["cells"]["reached"]
    assert report["sequence_ids"] == {"total": COUNT, "used": COUNT}
    assert report["host_cache"] == {"n_bytes": COUNT, "max_bytes": 2**20, "n_entries": COUNT}
    # What is saved while somebody waits is saved in pieces, and each of them is a node: the prefix is a chain of one or more.
    trunk = [node for node in report["nodes"] if node["is_pinned"]]
    children = report["nodes"][len(trunk) :]
    assert report["n_nodes"] == report["n_shown"] == len(trunk) + 2
    anywhere = {"tier": SOME_TEXT, "slots": [], "n_hits": COUNT, "n_host_bytes": COUNT}
    for position, node in enumerate(trunk):
        is_last = position + 1 == len(trunk)
        assert node == anywhere | {
            "parent": position - 1 if position else None,
            "children": [position + 1, position + 2] if is_last else [position + 1],
            "start": sum(node["n_tokens"] for node in trunk[:position]),
            "n_tokens": COUNT,
            "text": SOME_TEXT,
            "is_text_cut": False,
            "is_pinned": True,
            "is_evictable": False,
        }
    assert sum(node["n_tokens"] for node in trunk) == pinned["n_tokens"]
    assert "".join(node["text"] for node in trunk) == "<s>" + PROMPT * 5
    assert sorted(child["n_tokens"] for child in children) == [2, 3]
    for child in children:
        assert child == anywhere | {
            "parent": len(trunk) - 1,
            "children": [],
            "start": pinned["n_tokens"],
            "n_tokens": COUNT,
            "text": SOME_TEXT,
            "is_text_cut": False,
            "is_pinned": False,
            "is_evictable": True,
        }
    assert sum(node["n_host_bytes"] for node in report["nodes"]) == report["host_cache"]["n_bytes"]


async def cache_at_rest(client: httpx.AsyncClient) -> Json:
    """The report once every idle prefix has left the device cache, so that nothing moves any more."""
    deadline = time.monotonic() + 10
    while (report := (await client.get("/cache")).json())["cells"]["used"] > 0:
        assert time.monotonic() < deadline, report["cells"]
    return report


def placeless(node: Json) -> Json:
    """A node without where it is: idle ones move between two looks."""
    return {name: value for name, value in node.items() if name not in ("tier", "n_host_bytes")}


async def test_of_a_large_cache_what_was_used_last_is_shown(small: httpx.AsyncClient) -> None:
    shared = prompt_of(40, "shown in part")
    for ending in range(400, 405):
        await small.post("/completion", json={"prompt": [*shared, *[ending] * 20], "n_predict": 1})
    whole = await cache_at_rest(small)
    n_nodes = len(whole["nodes"])
    assert whole["n_nodes"] == whole["n_shown"] == n_nodes >= 6
    for limit in (0, 1, 2, n_nodes - 1, n_nodes, 10_000):
        report = (await small.get("/cache", params={"limit": limit})).json()
        n_shown = min(limit, n_nodes)
        assert (report["n_nodes"], report["n_shown"]) == (n_nodes, n_shown)
        shown = [
            node | {"children": [child for child in node["children"] if child < n_shown]} for node in whole["nodes"][:n_shown]
        ]
        assert [placeless(node) for node in report["nodes"]] == [placeless(node) for node in shown]
    last = (await small.post("/detokenize", json={"tokens": [404] * 20})).json()["content"]
    endings = [node["text"] for node in whole["nodes"] if not node["children"]]
    assert endings[0] == last


@pytest.mark.parametrize("limit", ["-1", "10001", "many", str(2**70)])
async def test_a_limit_out_of_range_is_refused(small: httpx.AsyncClient, limit: str) -> None:
    answer = await small.get("/cache", params={"limit": limit})
    assert answer.status_code == 400
    assert answer.json() == {"error": {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": "limit"}}


async def test_of_a_long_pinned_text_both_ends_are_shown(small: httpx.AsyncClient) -> None:
    text = "One day a fox met a bear. " * 20
    await small.post("/prefixes", json={"prompt": text})
    [listed] = (await small.get("/prefixes")).json()["prefixes"]
    whole = "<s>" + text
    assert (listed["text"], listed["is_text_cut"]) == (whole[:100] + "…" + whole[-100:], True)


async def test_what_runs_is_shown_and_cannot_be_evicted(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.url) as client:
        # So many that some run still when the second question comes, however fast they are.
        body = {"prompt": prompt_of(40, "shown"), "n": 64, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/completion", json=body) as answer:
            # Held: a reader that nobody holds closes the connection, and nothing runs any more.
            lines = answer.aiter_lines()
            await anext(lines)
            report = (await client.get("/cache")).json()
    running = [node for node in report["nodes"] if node["slots"]]
    assert sum(node["n_tokens"] for node in running) >= 40
    assert not any(node["is_evictable"] for node in running)


def stretch(parent: int | None, tokens: list[int]) -> Json:
    return SimpleNamespace(
        parent=parent,
        excerpt=lambda n: (tokens, []) if len(tokens) <= 2 * n else (tokens[:n], tokens[-n:]),
        n_tokens=len(tokens),
        owner=None,
        start=0,
        adapters=[],
        tier="host",
        slots=[],
        is_pinned=False,
        n_hits=0,
        n_host_bytes=0,
    )


def report_of(nodes: list[Json]) -> CacheReport:
    stats = SimpleNamespace(
        n_cells=0, n_cells_used=0, n_cells_idle=0, n_cells_reached=0, n_ids=0, n_ids_used=0,
        host_cache=SimpleNamespace(n_bytes=0, max_bytes=None, n_entries=0),
    )  # fmt: skip
    return translate.report(nodes, len(nodes), cast("weft.Stats", stats), lambda tokens: "".join(map(chr, tokens)))


@pytest.mark.parametrize(
    ("n_tokens", "text", "is_cut"),
    [
        (200, "ab" * 100, False),
        (201, "ab" * 50 + "…" + "ba" * 50, True),
        (10_000, "ab" * 50 + "…" + "ab" * 50, True),
        (10_001, "ab" * 50 + "…" + "ba" * 50, True),
    ],
)
def test_of_a_long_text_both_ends_are_shown(n_tokens: int, text: str, is_cut: bool) -> None:
    [node] = report_of([stretch(None, [*map(ord, "ab")] * (n_tokens // 2) + [97] * (n_tokens % 2))]).nodes
    assert (node.text, node.is_text_cut) == (text, is_cut)


def test_a_tree_of_any_depth_is_a_flat_list() -> None:
    nodes = report_of([stretch(place - 1 if place else None, [97]) for place in range(100_000)]).nodes
    assert nodes[0].children == [1]
    assert nodes[-1].parent == 99_998


SVG = "{http://www.w3.org/2000/svg}"


async def test_a_picture_shows_what_the_json_tells(small: httpx.AsyncClient) -> None:
    shared = prompt_of(40, "drawn")
    for ending in (400, 401, 402):
        await small.post("/completion", json={"prompt": [*shared, *[ending] * 20], "n_predict": 1})
    await small.post("/prefixes", json={"prompt": shared})
    report = await cache_at_rest(small)
    drawn = await small.get("/cache", params={"format": "svg"})
    assert drawn.status_code == 200
    assert drawn.headers["content-type"] == "image/svg+xml"
    assert drawn.headers["content-security-policy"].startswith("default-src 'none'")
    root = ElementTree.fromstring(drawn.content)
    boxes = list(root.iter(f"{SVG}g"))
    assert [box[0].text for box in boxes] == [readable(node["text"]) for node in report["nodes"]]
    assert [any("mark" in part.get("class", "") for part in box) for box in boxes] == [
        node["is_pinned"] for node in report["nodes"]
    ]
    assert {box[1].attrib["class"] for box in boxes} == {f"box {picture.STYLES['host'].hue}"}
    for box, node in zip(boxes, report["nodes"], strict=True):
        assert (box[-1].text or "").startswith(f"{node['n_tokens']} token")
    edges = [part for part in root if part.get("class") == "edge"]
    assert len(edges) == sum(node["parent"] is not None for node in report["nodes"])
    graph = await small.get("/cache", params={"format": "dot"})
    assert graph.headers["content-type"] == "text/vnd.graphviz; charset=utf-8"
    assert graph.text.count(" -> ") == len(edges)
    assert (await small.get("/cache", params={"format": "json"})).json() == await cache_at_rest(small)


async def test_of_a_large_cache_a_picture_shows_a_part_and_says_so(small: httpx.AsyncClient) -> None:
    shared = prompt_of(40, "drawn in part")
    for ending in range(400, 405):
        await small.post("/completion", json={"prompt": [*shared, *[ending] * 20], "n_predict": 1})
    n_nodes = (await cache_at_rest(small))["n_nodes"]
    for limit in (0, 2, n_nodes):
        drawn = (await small.get("/cache", params={"format": "svg", "limit": limit})).text
        assert drawn.count("<g>") == limit
        assert (f"… and {n_nodes - limit} more" in drawn) == (limit < n_nodes)
        graph = (await small.get("/cache", params={"format": "dot", "limit": limit})).text
        assert (f"… and {n_nodes - limit} more" in graph) == (limit < n_nodes)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"format": "png"}, "format"),
        ({"format": ""}, "format"),
        ({"format": "svg", "limit": "1001"}, "limit"),
        ({"format": "dot", "limit": "-1"}, "limit"),
    ],
    ids=str,
)
async def test_a_picture_that_there_is_not_is_refused(small: httpx.AsyncClient, query: dict[str, str], param: str) -> None:
    answer = await small.get("/cache", params=query)
    assert answer.status_code == 400
    assert answer.json() == {"error": {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": param}}


def test_every_tier_has_a_look_of_its_own() -> None:
    tiers = get_args(get_type_hints(CacheNode)["tier"])
    assert picture.STYLES.keys() == set(tiers)
    assert (
        len({look.outline for look in picture.STYLES.values()})
        == len({look.hue for look in picture.STYLES.values()})
        == len(tiers)
    )


@pytest.mark.parametrize("name", picture.FORMATS)
def test_the_largest_picture_is_bounded(name: str) -> None:
    nodes = [stretch(place - 1 if place else None, [34] * 500) for place in range(MAX_DRAWN)]
    assert len(picture.draw(report_of(nodes), name)) < 2_500_000


async def test_what_another_key_has_sent_is_shown_without_its_text() -> None:
    engine, settings = weft.Engine(n_slots=2, n_ctx=1024, n_threads=1), Settings(api_keys=("one", "two"))
    async with AsyncTestClient(create_app(engine, settings)) as client:
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        await answers(client, 200)
        secret = "Nobody else's secret: it was a fox, who had come a long way from home, and who had never told anybody why."

        async def say(headers: dict[str, str], text: str) -> None:
            answer = await client.post("/completion", headers=headers, json={"prompt": text, "n_predict": 1})
            assert answer.status_code == 200

        await say(mine, "My own story of a cat, a dog and a bird.")
        await say(theirs, secret)

        async def seen(headers: dict[str, str]) -> set[str | None]:
            return {node["text"] for node in (await client.get("/cache", headers=headers)).json()["nodes"]}

        async def sees(headers: dict[str, str], words: str) -> bool:
            return any(text is not None and words in text for text in await seen(headers))

        assert [await sees(mine, words) for words in ("My own story", "secret")] == [True, False]
        assert [await sees(theirs, words) for words in ("My own story", "secret")] == [False, True]
        assert None in await seen(mine)
        drawn = (await client.get("/cache?format=svg", headers=mine)).text
        assert "(of another key)" in drawn
        assert "secret" not in drawn
        # What both send is told to whoever sent it last.
        await say(mine, secret)
        assert [await sees(headers, "secret") for headers in (mine, theirs)] == [True, False]
