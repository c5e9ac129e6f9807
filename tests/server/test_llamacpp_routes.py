import asyncio

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.helpers import wait_until
from tests.server.conftest import PROMPT, answers
from tests.server.live import LiveServer
from tests.server.matchers import BOOLEAN, COUNT, SETTINGS, SOME_TEXT, Json, matching
from tests.server.scripted import ScriptedEngine, busy_slot, idle_slot, token
from weft import DEMO_MODEL, QueueFullError
from weft.request.internal import InternalRequest
from weft.server import create_app
from weft.server.inference.submission import Submission
from weft.server.request_fields.fields import CompletionFields
from weft.settings import Settings
from weft.work.threads import LONG_TEXT

NEXT_TOKEN: Json = {
    "has_next_token": True,
    "has_new_line": False,
    "n_remain": 0,
    "n_decoded": 0,
    "stopped_eos": False,
    "stopped_limit": False,
    "stopped_word": False,
    "stopping_word": "",
}


@pytest.mark.parametrize("route", ["/health", "/v1/health"])
async def test_health_is_ok_once_the_model_is_loaded(client: httpx.AsyncClient, route: str) -> None:
    answer = await client.get(route)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "slots_idle": 4, "slots_processing": 0})


@pytest.mark.parametrize("route", ["/health", "/v1/health"])
@pytest.mark.parametrize(
    ("query", "n_busy", "status", "told"),
    [
        ("", 4, 200, "ok"),
        ("?fail_on_no_slot", 3, 200, "ok"),
        ("?fail_on_no_slot", 4, 503, "no slot available"),
        ("?fail_on_no_slot=1", 4, 503, "no slot available"),
        ("?fail_on_no_slot=0", 4, 200, "ok"),
        ("?include_slots", 3, 200, "ok"),
        ("?include_slots=true", 4, 200, "no slot available"),
        ("?include_slots&fail_on_no_slot", 4, 503, "no slot available"),
    ],
)
async def test_health_tells_of_the_slots_in_2024s_way(route: str, query: str, n_busy: int, status: int, told: str) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    engine.slots = [busy_slot(id_slot, 9, 0) if id_slot < n_busy else idle_slot(id_slot) for id_slot in range(4)]
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await answers(client, 200)
        answer = await client.get(route + query)
        slots = (await client.get("/slots")).json()
    error = {"error": {"code": 503, "message": "no slot available", "type": "unavailable_error"}}
    assert answer.status_code == status
    assert answer.json() == {
        "status": told,
        "slots_idle": 4 - n_busy,
        "slots_processing": n_busy,
        **({"slots": slots} if "include_slots" in query else {}),
        **(error if status == 503 else {}),
    }


async def test_health_tells_of_no_slots_where_they_are_nobodys_business() -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    app = create_app(engine.as_engine(), without("slots_endpoint"))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        answer = await client.get("/health?include_slots")
    assert answer.json() == {"status": "ok", "slots_idle": 4, "slots_processing": 0}


async def test_props_tell_the_server_and_its_model(client: httpx.AsyncClient) -> None:
    defaults = SETTINGS | {"seed": 2**32 - 1}
    assert (await client.get("/props")).json() == {
        "default_generation_settings": defaults | {"params": defaults},
        "total_slots": 4,
        "n_ctx": 4096,
        "model_alias": "storyteller",
        "model_path": DEMO_MODEL,
        "model_ftype": "Q8_0",
        "modalities": {"vision": False, "video": False, "audio": False},
        "media_marker": "<__media__>",
        "chat_template": SOME_TEXT,
        "chat_template_caps": {
            "supports_string_content": True,
            "supports_typed_content": False,
            "supports_system_role": True,
            "supports_reasoning_effort": False,
            "supports_preserve_reasoning": False,
            "supports_tools": False,
            "supports_tool_calls": False,
            "supports_parallel_tool_calls": False,
            "supports_object_arguments": False,
        },
        "bos_token": "<s>",
        "eos_token": "</s>",
        "build_info": matching(r"b\d+-[0-9a-f]+"),
        "is_sleeping": False,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": False,
        "ui": True,
        "ui_settings": {},
        "cors_proxy_enabled": False,
        "user_name": "",
        "assistant_name": "",
        "system_prompt": "",
        "compute": matching(r"attention .+, products .+, at most 512 tokens per decode, 1 threads \(configured\)"),
        "repeatable": BOOLEAN,
        "speculation": "it is turned off",
        "repeatable_embeddings": BOOLEAN,
        "pooling": "mean",
    }


def without(*names: str) -> Settings:
    """Settings with these switched off."""
    return Settings(**dict.fromkeys(names, False))  # type: ignore[arg-type]


async def test_props_tell_also_of_a_model_that_has_little() -> None:
    engine = ScriptedEngine()
    engine.model.chat_template = "{% if %}"
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await answers(client, 200)
        told = (await client.get("/props")).json()
    assert (told["bos_token"], told["eos_token"], told["model_ftype"]) == ("", "", "Q4_K - Medium")
    # A template that is none is shown, but no chat can do anything with it.
    assert (told["chat_template"], told["chat_template_caps"]) == ("{% if %}", {})


@pytest.mark.parametrize("is_on", [True, False])
async def test_properties_may_be_posted_only_where_that_is_switched_on(is_on: bool) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(props_endpoint=is_on))) as client:
        await answers(client, 200)
        answer = await client.post("/props", json={"default_generation_settings": {}})
    if is_on:
        assert (answer.status_code, answer.json()) == (200, {"success": True})
    else:
        message = "This server does not support changing global properties. Start it with `--props`"
        assert answer.status_code == 501
        assert answer.json() == {"error": {"code": 501, "message": message, "type": "not_supported_error"}}


async def test_slots_that_are_switched_off_are_not_supported() -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), without("slots_endpoint"))) as client:
        await answers(client, 200)
        answer = await client.get("/slots")
    message = "This server does not support slots endpoint. Start it with `--slots`"
    assert answer.status_code == 501
    assert answer.json() == {"error": {"code": 501, "message": message, "type": "not_supported_error"}}


@pytest.mark.parametrize("route", ["/v1/models", "/models"])
async def test_models_list_the_one_that_is_served(client: httpx.AsyncClient, route: str) -> None:
    assert (await client.get(route)).json() == {
        "object": "list",
        "data": [
            {
                "id": "storyteller",
                "aliases": [],
                "tags": [],
                "object": "model",
                "created": COUNT,
                "owned_by": "weft",
                "meta": {
                    "vocab_type": 1,
                    "n_vocab": 2048,
                    "n_ctx": 1024,
                    "n_ctx_train": 1024,
                    "n_embd": 192,
                    "n_params": 2755008,
                    "size": COUNT,
                    "ftype": "Q8_0",
                },
                "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
                # As Anthropic's clients read them.
                "type": "model",
                "display_name": "storyteller",
                "created_at": matching(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
            }
        ],
        "first_id": "storyteller",
        "last_id": "storyteller",
        "has_more": False,
        "models": [
            {
                "name": "storyteller",
                "model": "storyteller",
                "tags": [],
                "capabilities": ["completion", "embedding"],
                "modified_at": "",
                "size": "",
                "digest": "",
                "type": "model",
                "description": "",
                "parameters": "",
                "details": {
                    "parent_model": "",
                    "format": "gguf",
                    "family": "",
                    "families": [""],
                    "parameter_size": "",
                    "quantization_level": "",
                },
            }
        ],
    }


@pytest.mark.parametrize("name", ["storyteller", "gpt-4", "org/model.gguf", "org%2Fmodel"])
async def test_the_model_is_told_by_whatever_name(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/v1/models/{name}")
    [listed] = (await client.get("/v1/models")).json()["data"]
    assert answer.status_code == 200
    assert answer.json() == listed | {"created": COUNT}


async def test_a_model_without_an_alias_has_its_files_name(live: LiveServer) -> None:
    assert live.get("/v1/models")["data"][0]["id"] == "storyteller-q8_0.gguf"


async def test_there_are_as_many_slots_as_were_asked_for(client: httpx.AsyncClient) -> None:
    slots = (await client.get("/slots")).json()
    assert [(slot["id"], slot["is_processing"]) for slot in slots] == [(number, False) for number in range(4)]


async def test_an_idle_slot_tells_what_a_request_gets_that_says_nothing(client: httpx.AsyncClient) -> None:
    await client.post("/completion", json={"prompt": PROMPT, "n_predict": 1, "id_slot": 0, "temperature": 0.25})
    defaults = (await client.get("/props")).json()["default_generation_settings"]
    idle = defaults | {
        "speculative": False,
        "is_processing": False,
        "state": 0,
        "id_task": -1,
        "task_id": -1,
        "n_prompt_tokens": 0,
        "n_prompt_tokens_processed": 0,
        "n_prompt_tokens_cache": 0,
        "next_token": [NEXT_TOKEN | {"has_next_token": False, "n_remain": -1}],
    }
    assert (await client.get("/slots")).json() == [idle | {"id": number} for number in range(4)]
    assert defaults["temperature"] == 0.8


async def test_busy_slots_tell_what_they_do(live: LiveServer) -> None:
    banned = [{"token": 2, "bias": False}, {"token": 4, "bias": False}]
    settings = SETTINGS | {"ignore_eos": True, "logit_bias": banned, "stream": True, "model": "storyteller-q8_0.gguf"}
    async with httpx.AsyncClient(base_url=live.url) as client:
        body = {"prompt": PROMPT, "n": 40, "ignore_eos": True, "stream": True, "seed": 100}
        async with client.stream("POST", "/completion", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            slots: list[Json] = []

            def are_busy() -> bool:
                slots[:] = live.get("/slots")
                return all(slot["is_processing"] for slot in slots)

            await wait_until(are_busy)
            seeds = [slot["seed"] for slot in slots]
            assert len(set(seeds)) == 4
            assert set(seeds) <= set(range(100, 140))
            assert slots == [
                settings
                | {
                    "seed": seed,
                    "id": id_slot,
                    "speculative": False,
                    "is_processing": True,
                    "state": 1,
                    "id_task": COUNT,
                    "task_id": COUNT,
                    "n_prompt_tokens": 6,
                    "n_prompt_tokens_processed": COUNT,
                    "n_prompt_tokens_cache": COUNT,
                    "params": settings | {"seed": seed},
                    "next_token": [NEXT_TOKEN | {"has_new_line": BOOLEAN, "n_remain": COUNT, "n_decoded": COUNT}],
                }
                for id_slot, seed in enumerate(seeds)
            ]
            assert len({slot["id_task"] for slot in slots}) == 1
            refused = await client.get("/slots", params={"fail_on_no_slot": 1})
            assert refused.status_code == 503
            assert refused.json() == {"error": {"code": 503, "message": "no slot available", "type": "unavailable_error"}}
        await wait_until(lambda: live.busy_slots() == [])
        assert (await client.get("/slots", params={"fail_on_no_slot": 1})).status_code == 200


@pytest.mark.parametrize("debug", ["", "0", "1"])
async def test_a_slot_tells_its_texts_only_where_that_is_asked_for(debug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER_SLOTS_DEBUG", debug)
    engine = ScriptedEngine([[token(0, "a line\n"), token(1, "b")], [token(0, "c")]])
    engine.loaded.set()
    engine.slots = [busy_slot(0, request_id=0, index=0), busy_slot(1, request_id=0, index=1), busy_slot(2, request_id=9, index=0)]
    app = create_app(engine.as_engine())
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        asked = Submission(prompts=[["xyz"]], template=InternalRequest(prompt=(), n=2), logit_bias=[], slot=None, sent_as={})
        generation = await app.service.submit(asked)
        await generation.next_batches()
        await generation.next_batches()
        first, second, other = (await client.get("/slots")).json()
    assert [slot["next_token"][0]["has_new_line"] for slot in (first, second)] == [True, False]
    assert [slot["next_token"][0]["n_decoded"] for slot in (first, second)] == [5, 5]
    texts = [(slot.get("prompt"), slot.get("generated")) for slot in (first, second)]
    assert texts == ([("xyz", "a line\nc"), ("xyz", "b")] if debug == "1" else [(None, None)] * 2)
    # A request of nobody's, as where a prefix is pinned.
    assert other == {
        "id": 2,
        "n_ctx": 4_096,
        "model": "scripted.gguf",
        "speculative": False,
        "is_processing": True,
        "state": 1,
        "id_task": 9,
        "task_id": 9,
        "n_prompt_tokens": 3,
        "n_prompt_tokens_processed": 1,
        "n_prompt_tokens_cache": 2,
        "next_token": [NEXT_TOKEN | {"n_remain": 7, "n_decoded": 5}],
    }


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, [381, 2003]),
        ({"add_special": True}, [1, 381, 2003]),
        ({"add_special": None, "parse_special": None, "with_pieces": None}, [381, 2003]),
        ({"with_pieces": True}, [{"id": 381, "piece": " time"}, {"id": 2003, "piece": ","}]),
    ],
    ids=str,
)
async def test_tokenize(client: httpx.AsyncClient, fields: dict[str, Json], tokens: list[Json]) -> None:
    assert (await client.post("/tokenize", json={"content": " time,", **fields})).json() == {"tokens": tokens}


async def test_the_spelling_of_a_control_token_is_that_token_unless_it_is_not_wanted(client: httpx.AsyncClient) -> None:
    parsed = (await client.post("/tokenize", json={"content": "</s>"})).json()["tokens"]
    spelt = (await client.post("/tokenize", json={"content": "</s>", "parse_special": False})).json()["tokens"]
    assert parsed[-1] == 2
    assert 2 not in spelt


async def test_a_piece_that_is_no_text_is_bytes(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", json={"content": "é", "with_pieces": True})
    assert [token["piece"] for token in answer.json()["tokens"]][-2:] == [[0xC3], [0xA9]]


@pytest.mark.parametrize("text", ["Once upon a time,", "é🙂 </s> \n", "x" * 10_000], ids=["story", "bytes", "long"])
async def test_detokenize_undoes_tokenize(client: httpx.AsyncClient, text: str) -> None:
    tokens = (await client.post("/tokenize", json={"content": text, "add_special": True})).json()["tokens"]
    assert (await client.post("/detokenize", json={"tokens": tokens})).json() == {"content": "<s>" + text, "prompt": "<s>" + text}


async def test_texts_are_tokenized_by_vllms_names_too(client: httpx.AsyncClient) -> None:
    async def tokens(body: dict[str, Json]) -> Json:
        return (await client.post("/tokenize", json=body)).json()["tokens"]

    plain = await tokens({"content": "The cat"})
    assert await tokens({"prompt": "The cat", "add_special_tokens": False}) == plain
    assert await tokens({"prompt": "The cat", "add_special_tokens": True}) == [1, *plain]


async def test_clients_are_told_of_the_tokenizer(client: httpx.AsyncClient) -> None:
    about = (await client.get("/tokenizer_info")).json()
    properties = (await client.get("/props")).json()
    assert {name: about[name] for name in ("bos_token", "eos_token", "chat_template")} == {
        name: properties[name] for name in ("bos_token", "eos_token", "chat_template")
    }
    assert about["add_bos_token"] is True
    assert about["model_max_length"] == properties["default_generation_settings"]["n_ctx"]


@pytest.mark.parametrize("opening", [{"add_special": True}, {}, {"parse_special": False}], ids=str)
async def test_a_long_text_is_tokenized_as_a_short_one(client: httpx.AsyncClient, opening: dict[str, Json]) -> None:
    text = " A cow says </s> moo."
    n_short, n_long = LONG_TEXT // len(text), LONG_TEXT // len(text) + 1
    assert len(text * n_short) <= LONG_TEXT < len(text * n_long)
    one, two, short, long = [
        (await client.post("/tokenize", json={"content": text * n, **opening})).json()["tokens"] for n in (1, 2, n_short, n_long)
    ]
    more = two[len(one) :]
    assert short == one + more * (n_short - 1)
    assert long == one + more * (n_long - 1)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/tokenize", {"content": "a" * (LONG_TEXT + 1)}),
        ("/tokenize", {"content": ["a", 1] * LONG_TEXT}),
        ("/tokenize", {"content": [1] * (LONG_TEXT + 1), "with_pieces": True}),
        ("/detokenize", {"tokens": [1] * (LONG_TEXT + 1)}),
        ("/completion", {"prompt": "a" * (LONG_TEXT + 1)}),
        ("/completion", {"prompt": ["a" * LONG_TEXT, "a"]}),
        ("/completion", {"prompt": "a", "logit_bias": {"a" * (LONG_TEXT + 1): 1}}),
        ("/completion", {"prompt": "a", "logit_bias": [["a" * 100, 1]] * 100}),
    ],
    ids=["tokenize", "a list", "pieces", "detokenize", "a prompt", "prompts", "a bias", "biases"],
)
async def test_what_takes_long_leaves_the_event_loop_alone(route: str, body: dict[str, Json]) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(route, json=body)
    assert engine.threads
    assert engine.loop_thread not in engine.threads


async def test_a_list_may_be_tokenized_too(client: httpx.AsyncClient) -> None:
    body = {"content": [" time", 7, " time"], "add_special": True}
    assert (await client.post("/tokenize", json=body)).json() == {"tokens": [1, 381, 7, 381]}


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [2048]}, "content"),
        ("/tokenize", {"content": ["a", -1]}, "content"),
        ("/tokenize", {"content": [2**70]}, "content"),
        ("/tokenize", {"content": [2**70], "with_pieces": True}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [2048]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(client: httpx.AsyncClient, route: str, body: dict[str, Json], param: str) -> None:
    answer = await client.post(route, json=body)
    assert answer.status_code == 400
    assert answer.json() == {"error": {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": param}}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
async def test_the_openapi_document_tells_every_field_of_a_completion(client: httpx.AsyncClient, path: str) -> None:
    document = (await client.get("/openapi.json")).json()
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    told = document["components"]["schemas"][body["$ref"].removeprefix("#/components/schemas/")]["properties"]
    assert {field.encode_name for field in msgspec.structs.fields(CompletionFields)} - set(told) == set()


async def test_the_openapi_document_tells_every_route(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["info"]["title"] == "Weft"
    assert set(document["paths"]) == {
        "/completion", "/completions", "/infill", "/stream", "/tokenize", "/detokenize", "/tokenizer_info", "/apply-template",
        "/health", "/v1/health", "/slots", "/props", "/lora-adapters",
        "/chat/completions", "/v1/chat/completions", "/slots/{id_slot}", "/metrics", "/v1/completions",
        "/v1/models", "/v1/models/{name}", "/models", "/prefixes", "/prefixes/{prefix_id}", "/cache", "/score",
        "/requests", "/requests/{request_id}", "/requests/{request_id}/branches/{index}",
        "/requests/{request_id}/branches/{index}/fork",
        "/chat/completions/input_tokens", "/v1/chat/completions/input_tokens", "/v1/stream", "/v1/streams/lookup",
        "/responses", "/v1/responses", "/responses/input_tokens", "/v1/responses/input_tokens", "/v1/responses/compact",
        "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/responses/{response_id}/input_items",
        "/v1/conversations", "/v1/conversations/{conversation_id}", "/v1/conversations/{conversation_id}/items",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/documents", "/documents/events", "/documents/search", "/documents/import", "/documents/{document_id}",
        "/documents/{document_id}/duplicate", "/documents/{document_id}/resume", "/documents/{document_id}/export",
        "/documents/{document_id}/nodes", "/documents/{document_id}/nodes/{node_id}",
        "/documents/{document_id}/nodes/{node_id}/tokens", "/documents/{document_id}/nodes/{node_id}/continue",
        "/documents/{document_id}/nodes/{node_id}/resume", "/documents/{document_id}/nodes/{node_id}/stop",
        "/documents/{document_id}/nodes/{node_id}/split", "/documents/{document_id}/nodes/{node_id}/merge",
        "/documents/{document_id}/nodes/{node_id}/move",
        "/embedding", "/embeddings", "/v1/embeddings", "/rerank", "/reranking", "/v1/rerank", "/v1/reranking",
        "/v1/messages", "/v1/messages/count_tokens",
        "/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/tags", "/api/show", "/api/ps", "/api/version",
        "/api/pull", "/api/push", "/api/create", "/api/copy", "/api/blobs/{digest}", "/api/delete",
    }  # fmt: skip
    bodies = {"/v1/messages": "MessagesErrorBody", "/api/": "OllamaError"}
    for path, operations in document["paths"].items():
        body = next((body for beginning, body in bodies.items() if path.startswith(beginning)), "ErrorBody")
        for operation in operations.values():
            assert operation["description"]
            schema = operation["responses"]["503"]["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{body}"}


async def test_many_may_look_at_once(live: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=live.url) as client:
        answers = await asyncio.gather(*(client.get("/slots") for _ in range(50)))
    assert [len(answer.json()) for answer in answers] == [4] * 50
