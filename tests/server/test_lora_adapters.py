"""Adapters over HTTP, as llama-server has them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.adapters import N_BYTES, write_adapter
from tests.helpers import prompt_of
from tests.server.conftest import PROMPT, answers
from tests.server.matchers import Json
from weft.cli.main import parse
from weft.server import create_app
from weft.settings import Settings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("adapters")
    return [str(write_adapter(folder / f"{seed}.gguf", seed=seed, task_name=f"task {seed}")) for seed in (1, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture
async def adapted(files: list[str], folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A server with two adapters, of which the first is on."""
    engine = weft.Engine(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1, lora=[files[0], (files[1], 0.0)])
    async with AsyncTestClient(create_app(engine, Settings(slot_save_path=str(folder), metrics=True))) as client:
        await answers(client, 200)
        yield client


async def complete(client: httpx.AsyncClient, prompt: Json = PROMPT, **fields: Json) -> Json:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, **fields}
    return (await client.post("/completion", json=body)).raise_for_status().json()


async def test_adapters_are_listed_and_set_as_llama_server_does_it(adapted: httpx.AsyncClient, files: list[str]) -> None:
    listed = [
        {"id": number, "path": path, "scale": scale, "task_name": f"task {number + 1}", "prompt_prefix": ""}
        for number, (path, scale) in enumerate(zip(files, (1.0, 0.0), strict=True))
    ]
    assert (await adapted.get("/lora-adapters")).json() == listed
    answer = await adapted.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}])
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert [each["scale"] for each in (await adapted.get("/lora-adapters")).json()] == [0.0, 0.5], "what is not named is off"
    params = (await adapted.get("/props")).json()["default_generation_settings"]["params"]
    assert params["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.5}]


async def test_a_request_names_its_own_and_the_answer_tells_them(adapted: httpx.AsyncClient) -> None:
    told = {}
    for lora in (None, [], [{"id": 1, "scale": 1}], [{"id": 0, "scale": 0}], [{"id": 0, "scale": 9}, {"id": 0, "scale": 1.0}]):
        answer = await complete(adapted, lora=lora)
        told[answer["content"]] = [each["scale"] for each in answer["generation_settings"]["lora"]]
    assert list(told.values()) == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], "three sets write three texts"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0, "return_tokens": True}
    chats = [
        (await adapted.post("/v1/chat/completions", json=body | {"lora": lora})).raise_for_status().json()
        for lora in ([], [{"id": 1, "scale": 2}])
    ]
    assert chats[0]["choices"][0]["message"] != chats[1]["choices"][0]["message"]


async def test_each_branch_of_a_request_may_have_adapters_of_its_own(adapted: httpx.AsyncClient) -> None:
    sets: list[Json] = [[{"id": 1, "scale": 1}], [{"id": 0, "scale": 0.5}], [{"id": 1, "scale": 1}], []]
    alone = [(await complete(adapted, prompt_of(50, "branches alone"), lora=lora))["content"] for lora in sets]
    assert len(set(alone)) == 3
    prompt = prompt_of(50, "branches alone")
    branches = [{"lora": lora} for lora in sets]
    assert [each["content"] for each in await complete(adapted, prompt, branches=branches)] == alone
    # Of a prompt that nobody has computed, each set computes its own, and branches with the same one share it.
    answers = await complete(adapted, prompt_of(50, "branches together"), branches=branches)
    assert sum(each["timings"]["prompt_n"] for each in answers) == 3 * 50
    assert [each["generation_settings"]["lora"][1]["scale"] for each in answers] == [1.0, 0.0, 1.0, 0.0]
    unknown = {"prompt": prompt, "branches": [{}, {"lora": [{"id": 7, "scale": 1}]}]}
    refused = await adapted.post("/completion", json=unknown)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "lora")


async def test_equal_sets_share_what_is_computed_across_changes_of_the_default(adapted: httpx.AsyncClient) -> None:
    prompt = prompt_of(100, "adapters over http")

    async def n_computed(**fields: Json) -> int:
        return (await complete(adapted, prompt, n_predict=1, **fields))["timings"]["prompt_n"]  # type: ignore[no-any-return]

    assert await n_computed() == 100
    await adapted.post("/lora-adapters", json=[])
    assert await n_computed() == 100
    assert await n_computed(lora=[{"id": 0, "scale": 1}]) == 1
    await adapted.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0}])
    assert await n_computed() == 1
    metrics = (await adapted.get("/metrics")).text
    assert "weft:adapter_changes_total 3.0\n" in metrics, "on, off, and on again"
    assert float(metrics.partition("\nweft:adapter_bytes ")[2].partition("\n")[0]) == 2 * N_BYTES


async def test_a_system_prompt_stays_computed_for_the_adapters_that_are_set(adapted: httpx.AsyncClient) -> None:
    system = "A story of a fox and an owl, which is long enough to be worth more than the tokens of it.\nUser: Tell it.\nTeller:"
    await complete(adapted, "", system_prompt=system, n_predict=0)
    prefixes = []
    for scales in ([], [{"id": 1, "scale": 0.5}]):
        assert (await adapted.post("/lora-adapters", json=scales)).status_code == 200
        [pinned] = (await adapted.get("/prefixes")).json()["prefixes"]
        prefixes.append(pinned)
        told = await complete(adapted, " Once", n_predict=1)
        assert told["timings"]["prompt_n"] <= 2, "its own words alone"
        assert told["timings"]["cache_n"] >= pinned["n_tokens"]
    assert len({each["id"] for each in prefixes}) == 2
    await complete(adapted, "", system_prompt="", n_predict=0)
    assert (await adapted.get("/prefixes")).json()["prefixes"] == [], "none is left behind"
    assert (await adapted.post("/lora-adapters", json=[])).status_code == 200


async def test_a_slot_is_saved_and_restored_with_its_adapters(adapted: httpx.AsyncClient) -> None:
    prompt = prompt_of(100, "a slot with adapters")
    await complete(adapted, prompt, id_slot=1, n_predict=1, lora=[{"id": 1, "scale": 0.5}])
    saved = await adapted.post("/slots/1?action=save", json={"filename": "adapted"})
    assert saved.status_code == 200, saved.text
    assert (await adapted.post("/slots/1?action=erase")).status_code == 200
    assert (await adapted.post("/slots/0?action=restore", json={"filename": "adapted"})).json()["n_restored"] == 100
    answer = await complete(adapted, [*prompt, 7], n_predict=1, lora=[{"id": 1, "scale": 0.5}])
    assert answer["timings"]["prompt_n"] == 1
    answer = await complete(adapted, [*prompt, 7], n_predict=1)
    assert answer["timings"]["prompt_n"] == 101


@pytest.mark.parametrize(
    "lora",
    [5, "one", [5], [{"id": 0}], [{"scale": 1}], [{"id": "0", "scale": 1}], [{"id": True, "scale": 1}], [{"id": -1, "scale": 1}]],
    ids=str,
)
async def test_what_is_no_list_of_adapters_is_refused(client: httpx.AsyncClient, path: str, lora: Json) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "lora": lora})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "lora"
    assert error["message"].endswith("; it must be a list of objects with the `id` of an adapter and its `scale`, both numbers")


async def test_adapters_that_are_not_loaded_are_refused_by_number(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "lora": [{"id": 3, "scale": 1}]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "lora has 3; none is loaded")
    answer = await client.post("/lora-adapters", json=[{"id": 3, "scale": 1}])
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the list has 3; none is loaded")
    assert (await client.get("/lora-adapters")).json() == []


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ('{"id": 0, "scale": 1}', "the body must be a JSON list", None),
        ('[{"id": 0, "scale": 1}, 5]', "[1]: Expected `object`, got `integer`", None),
        ('[{"id": 0}]', "[0]: Object missing required field `scale`", None),
        ('[{"id": 0, "scale": "strong"}]', "[0].scale: Expected `number`, got `string`", "scale"),
        ('[{"id": -1, "scale": 1}]', "id is -1; it must be 0 or more", "id"),
        ('[{"id": 4294967295, "scale": 1}]', "the list has 4294967295; none is loaded", "id"),
        ('[{"id": 4294967296, "scale": 1}]', "id is 4294967296; no adapter has this id", "id"),
        ("", "the body is empty; it must be JSON", None),
    ],
)
async def test_what_is_no_list_of_scales_is_refused(
    client: httpx.AsyncClient, body: str, message: str, param: str | None
) -> None:
    answer = await client.post("/lora-adapters", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"], error.get("param")) == (400, message, param)


def test_adapters_are_named_on_the_command_line() -> None:
    arguments = ["--lora", "a.gguf,b.gguf", "--lora-scaled", "C:/c.gguf:0.5,d.gguf:-1", "--lora", "e.gguf"]
    engine = parse(arguments, {}).settings.engine
    assert engine.lora == (("a.gguf", 1.0), ("b.gguf", 1.0), ("C:/c.gguf", 0.5), ("d.gguf", -1.0), ("e.gguf", 1.0))
    off = parse(["--lora-init-without-apply", "--lora-scaled", "a.gguf:2"], {}).settings.engine
    assert off.lora == (("a.gguf", 0.0),)


async def test_two_activated_adapters_are_not_both_on_from_the_start(tmp_path: Path) -> None:
    paths = [write_adapter(tmp_path / f"{seed}.gguf", seed=seed, invoked_by=[1203, seed]) for seed in (1, 2)]
    with pytest.raises(
        weft.InvalidConfigError, match=r"1\.gguf and .*2\.gguf are both activated adapters .* --lora-init-without-apply"
    ):
        await weft.Engine(n_slots=2, n_ctx=2048, n_threads=1, lora=paths).start()
    engine = weft.Engine(n_slots=2, n_ctx=2048, n_threads=1, lora=[(paths[0], 0.0), paths[1]])
    async with AsyncTestClient(create_app(engine, Settings())) as client:
        await answers(client, 200)
        assert (await complete(client, prompt_of(20, "one of two"), n_predict=1))["tokens_predicted"] == 1


async def test_an_activated_adapter_is_listed_with_its_invocation_and_the_cache_with_its_adapters(tmp_path: Path) -> None:
    plain = write_adapter(tmp_path / "plain.gguf", seed=1)
    activated = write_adapter(tmp_path / "activated.gguf", seed=2, invoked_by=[1203, 7, 1203])
    engine = weft.Engine(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1, lora=[(plain, 0.0), activated])
    prompt = [*prompt_of(60, "activated over http"), 1203, 7, 1203, *prompt_of(17, "and after")]
    async with AsyncTestClient(create_app(engine, Settings())) as client:
        await answers(client, 200)
        [first, second] = (await client.get("/lora-adapters")).json()
        assert {"alora_invocation_tokens", "alora_invocation_string"}.isdisjoint(first)
        assert second["alora_invocation_tokens"] == [1203, 7, 1203]
        assert second["alora_invocation_string"] == engine.detokenize([1203, 7, 1203])

        n_computed = [
            (await complete(client, prompt, n_predict=1, lora=lora))["timings"]["prompt_n"]
            for lora in ([{"id": 0, "scale": 0}], [{"id": 1, "scale": 0.5}], [{"id": 0, "scale": 1}])
        ]
        assert n_computed == [80, 20, 80]
        nodes = (await client.get("/cache")).json()["nodes"]
        n_of: dict[str, int] = {}
        for node in nodes:
            adapters = str(node.get("adapters"))
            n_of[adapters] = n_of.get(adapters, 0) + node["n_tokens"]
            assert adapters != "[{'id': 1, 'scale': 0.5}]" or node["start"] >= 60
        assert n_of == {"None": 80, "[{'id': 1, 'scale': 0.5}]": 20, "[{'id': 0, 'scale': 1.0}]": 80}

        pinned = (await client.post("/prefixes", json={"prompt": prompt})).json()
        assert (pinned["adapters"], pinned["invoked_at"]) == ([{"id": 1, "scale": 1.0}], 60)
        await client.post("/lora-adapters", json=[])
        short = (await client.post("/prefixes", json={"prompt": prompt[:40]})).json()
        assert {"adapters", "invoked_at"}.isdisjoint(short)
        [first, second] = (await client.get("/prefixes")).json()["prefixes"]
        assert (first["adapters"], "adapters" in second) == (pinned["adapters"], False)


async def test_vectors_are_computed_with_the_adapters_that_are_on(adapted: httpx.AsyncClient) -> None:
    async def vector() -> list[float]:
        answer = (await adapted.post("/v1/embeddings", json={"input": "Once upon a time"})).raise_for_status()
        vector: list[float] = answer.json()["data"][0]["embedding"]
        return vector

    async with AsyncTestClient(create_app(weft.Engine(n_slots=2, n_ctx=2048, kv_unified=True, n_threads=1))) as plain:
        await answers(plain, 200)
        answer = (await plain.post("/v1/embeddings", json={"input": "Once upon a time"})).raise_for_status()
        without = answer.json()["data"][0]["embedding"]
    found: dict[tuple[float, float], list[float]] = {}
    for scales in ((1.0, 0.0), (0.0, 0.0), (0.0, 0.5), (1.0, 0.0)):
        lora = [{"id": number, "scale": scale} for number, scale in enumerate(scales)]
        (await adapted.post("/lora-adapters", json=lora)).raise_for_status()
        vector_of = await vector()
        assert found.setdefault(scales, vector_of) == vector_of, "the same set, the same numbers"
    assert found[(0.0, 0.0)] == without
    assert len({tuple(vector) for vector in found.values()}) == 3


@pytest.mark.parametrize("route", ["/embedding", "/embeddings", "/v1/embeddings", "/rerank"])
async def test_a_request_for_vectors_has_no_adapters_of_its_own(adapted: httpx.AsyncClient, route: str) -> None:
    body = {"input": "Once", "query": "Once", "documents": ["upon"], "lora": [{"id": 0, "scale": 1}]}
    answer = await adapted.post(route, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "lora"
    assert "POST /lora-adapters" in answer.json()["error"]["message"]
