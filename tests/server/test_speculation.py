"""What the routes accept and report of speculative decoding."""

from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from litestar.testing import AsyncTestClient
from prometheus_client.parser import text_string_to_metric_families

import weft
from tests.helpers import FixedDraftCosts, prompt_of
from tests.server.conftest import answers
from tests.server.matchers import Json
from weft.demo import DEMO_MODEL
from weft.server import create_app
from weft.settings import Settings

N_PREDICT = 60


@pytest.fixture(scope="module")
async def drafting() -> AsyncIterator[httpx.AsyncClient]:
    """A server that drafts on any CPU, with two API keys."""
    config = FixedDraftCosts(kernels="weft", n_slots=4, n_ctx=4096, kv_unified=True, n_threads=1)
    engine = weft.Engine(config=config)
    settings = Settings(metrics=True, api_keys=("one", "two"))
    async with AsyncTestClient(create_app(engine, settings)) as client:
        client.headers["Authorization"] = "Bearer one"
        await answers(client, 200)
        yield client


async def complete(client: httpx.AsyncClient, name: str, *, key: str = "one", fields: Json | None = None) -> Json:
    """The answer to a prompt of this name."""
    body = {"prompt": prompt_of(40, name), "n_predict": N_PREDICT, "seed": 1, "ignore_eos": True, **(fields or {})}
    answer = await client.post("/completion", json=body, headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    whole: Json = answer.json()
    return whole


def n_accepted(answer: Json) -> int:
    """Number of drafted tokens that were generated."""
    n: int = answer["timings"].get("draft_n_accepted", 0)
    return n


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """The value of each sample, by its name and its label's value."""
    text = (await client.get("/metrics")).text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("fields", [{"speculative.n_max": 0}, {"speculative.type": "none"}], ids=str)
async def test_a_request_may_turn_drafts_off(drafting: httpx.AsyncClient, fields: Json) -> None:
    name = f"off {fields}"
    first = await complete(drafting, name)
    off = await complete(drafting, name, fields=fields)
    on = await complete(drafting, name)
    assert n_accepted(on) > N_PREDICT // 3
    assert first["content"] == off["content"] == on["content"]
    # Fields for drafts are there only if there were some.
    assert off["timings"].keys().isdisjoint({"draft_n", "draft_n_accepted"})
    assert off["generation_settings"]["speculative.types"] == "none"
    assert on["generation_settings"]["speculative.types"] == "ngram-mod"
    assert on["timings"]["draft_n"] >= on["timings"]["draft_n_accepted"]


async def test_the_length_of_drafts_is_at_most_the_requests(drafting: httpx.AsyncClient) -> None:
    await complete(drafting, "length")
    before = await metrics(drafting)
    assert n_accepted(await complete(drafting, "length", fields={"speculative.n_max": 8})) > 0
    after = await metrics(drafting)
    added = [
        after[f"llamacpp:spec_decode_num_accepted_tokens_per_pos_total {position}"]
        - before[f"llamacpp:spec_decode_num_accepted_tokens_per_pos_total {position}"]
        for position in range(16)
    ]
    assert added[0] > 0
    assert added[8:] == [0] * 8


async def test_another_key_gets_no_draft_of_a_text(drafting: httpx.AsyncClient) -> None:
    first = await complete(drafting, "keys", key="one")
    other = await complete(drafting, "keys", key="two")
    n_own = n_accepted(first)
    again = await complete(drafting, "keys")
    assert first["content"] == other["content"] == again["content"]
    assert n_accepted(again) > n_own + N_PREDICT // 3
    assert n_accepted(other) < n_own + N_PREDICT // 6


@pytest.mark.parametrize("parts", [False, True], ids=["a text", "parts"])
async def test_a_predicted_output_is_drafted_and_counted(drafting: httpx.AsyncClient, parts: bool) -> None:
    path = "/v1/chat/completions"
    body: Json = {
        "messages": [{"role": "user", "content": f"Tell me of {'a crow' if parts else 'a crab'}!"}],
        "max_tokens": N_PREDICT,
        "seed": 2,
        "logit_bias": {"2": -100},
        "ignore_eos": True,
    }
    before = (await drafting.post(path, json=body | {"speculative.n_max": 0})).json()
    assert "completion_tokens_details" not in before["usage"]
    text = before["choices"][0]["message"]["content"]
    content = [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}] if parts else text
    answer = (await drafting.post(path, json=body | {"prediction": {"type": "content", "content": content}})).json()
    assert answer["choices"] == before["choices"]
    assert n_accepted(answer) > N_PREDICT // 3
    details = answer["usage"]["completion_tokens_details"]
    assert details.keys() == {"accepted_prediction_tokens", "rejected_prediction_tokens"}
    assert details["accepted_prediction_tokens"] == answer["timings"]["draft_n_accepted"]
    assert sum(details.values()) == answer["timings"]["draft_n"]
    assert openai.types.CompletionUsage.model_validate(answer["usage"]).completion_tokens_details is not None


async def test_a_prediction_without_drafts_counts_none(drafting: httpx.AsyncClient) -> None:
    body = {"prompt": "Once upon a time,", "max_tokens": 4, "speculative.n_max": 0}
    prediction = {"type": "content", "content": "a b c"}
    answer = (await drafting.post("/v1/completions", json=body | {"prediction": prediction})).json()
    assert answer["usage"]["completion_tokens_details"] == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}


@pytest.mark.parametrize(
    "prediction",
    ["a", {"type": "content"}, {"type": "image", "content": "a"}, {"type": "content", "content": [{"type": "x"}]}],
    ids=str,
)
async def test_a_wrong_prediction_is_named(drafting: httpx.AsyncClient, prediction: object) -> None:
    answer = await drafting.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "prediction": prediction})
    assert answer.status_code == 400
    assert "prediction" in answer.json()["error"]["message"]


async def test_ollamas_option_limits_drafts(drafting: httpx.AsyncClient) -> None:
    options = {"num_predict": N_PREDICT, "seed": 3}
    body: Json = {"model": "", "prompt": "Once upon a time, a crow", "raw": True, "stream": False}
    name = "llamacpp:spec_decode_num_draft_tokens_total"
    await drafting.post("/api/generate", json=body | {"options": options})
    before = await metrics(drafting)
    off = await drafting.post("/api/generate", json=body | {"options": options | {"draft_num_predict": 0}})
    between = await metrics(drafting)
    on = await drafting.post("/api/generate", json=body | {"options": options})
    assert on.json()["response"] == off.json()["response"]
    assert before[name] == between[name] < (await metrics(drafting))[name]


async def test_metrics_count_drafts_by_source_and_by_position(drafting: httpx.AsyncClient) -> None:
    before = await metrics(drafting)
    await complete(drafting, "counted")
    answer = await complete(drafting, "counted")
    assert n_accepted(answer) > 0
    after = await metrics(drafting)
    added = {name: value - before[name] for name, value in after.items() if "draft" in name or "spec_decode" in name}
    n_drafted, n_generated = (added[f"llamacpp:spec_decode_num_{kind}_tokens_total"] for kind in ("draft", "accepted"))
    assert n_drafted >= answer["timings"]["draft_n"]
    assert n_generated >= answer["timings"]["draft_n_accepted"]
    assert added["llamacpp:spec_decode_num_drafts_total"] > 0
    assert sum(value for name, value in added.items() if name.startswith("weft:draft_tokens_total ")) == n_drafted
    assert sum(value for name, value in added.items() if name.startswith("weft:draft_tokens_accepted_total ")) == n_generated
    assert sum(value for name, value in added.items() if "per_pos" in name) == n_generated
    assert added["weft:draft_seconds_total text"] > 0
    assert added["weft:draft_seconds_total model"] == 0
    assert {f"weft:draft_tokens_total {source}" for source in ("text", "constraint")} < added.keys()


async def test_slots_and_properties_tell_that_tokens_are_drafted(drafting: httpx.AsyncClient) -> None:
    assert all(slot["speculative"] for slot in (await drafting.get("/slots")).json())
    props = (await drafting.get("/props")).json()
    assert props["speculation"] == "on"
    assert props["default_generation_settings"]["speculative.types"] == "ngram-mod"


async def test_slots_and_properties_report_the_type_of_a_draft_model() -> None:
    config = FixedDraftCosts(kernels="weft", n_slots=2, n_ctx=1024, n_threads=1, draft_model=str(DEMO_MODEL))
    async with AsyncTestClient(create_app(weft.Engine(config=config), Settings(metrics=True))) as client:
        await answers(client, 200)
        on = await client.post("/completion", json={"prompt": "Once upon a time", "n_predict": 20, "temperature": 0})
        off = await client.post("/completion", json={"prompt": "Once", "n_predict": 2, "speculative.n_max": 0})
        props, slots = (await client.get("/props")).json(), (await client.get("/slots")).json()
        seconds = (await metrics(client))["weft:draft_seconds_total model"]
    types = "ngram-mod,draft-simple"
    assert props["default_generation_settings"]["speculative.types"] == types
    assert {slot["params"]["speculative.types"] for slot in slots} == {types}
    assert on.json()["generation_settings"]["speculative.types"] == types
    assert off.json()["generation_settings"]["speculative.types"] == "none"
    assert seconds > 0


async def test_properties_report_why_a_draft_model_is_not_used() -> None:
    config = weft.EngineConfig(kernels="llama.cpp", n_slots=2, n_ctx=512, n_threads=1, draft_model=str(DEMO_MODEL))
    async with AsyncTestClient(create_app(weft.Engine(config=config))) as client:
        await answers(client, 200)
        props = (await client.get("/props")).json()
    assert props["speculation"].endswith("batch here; --spec-type ngram-mod or speculation='on' drafts nevertheless")
    assert props["default_generation_settings"]["speculative.types"] == "none"


async def test_slots_and_properties_tell_that_no_tokens_are_drafted() -> None:
    engine = weft.Engine(n_slots=2, n_ctx=512, n_threads=1, speculation="off")
    async with AsyncTestClient(create_app(engine)) as client:
        await answers(client, 200)
        assert not any(slot["speculative"] for slot in (await client.get("/slots")).json())
        props = (await client.get("/props")).json()
    assert props["speculation"] == "it is turned off"
    assert props["default_generation_settings"]["speculative.types"] == "none"


TOOLS: Json = [
    {
        "type": "function",
        "function": {
            "name": f"get_{name}_of_the_next_days",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}, "number_of_days": {"type": "integer", "maximum": 99}},
                "required": ["city", "number_of_days"],
            },
        },
    }
    for name in ("weather", "news")
]


@pytest.mark.parametrize("temperature", [0.0, 1.2], ids=["greedy", "sampled"])
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_drafts_change_no_call_of_a_tool(drafting: httpx.AsyncClient, choice: str, temperature: float) -> None:
    question = f"How is the weather? {choice} {temperature}"
    body: Json = {
        "messages": [{"role": "user", "content": question}],
        "tools": TOOLS,
        "tool_choice": choice,
        "temperature": temperature,
        "max_tokens": N_PREDICT,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
    }

    async def choices(fields: Json) -> tuple[Json, Json]:
        answer: Json = (await drafting.post("/v1/chat/completions", json=body | fields)).json()
        choice = answer["choices"][0]
        for call in choice["message"].get("tool_calls", ()):
            del call["id"]
        return choice, answer

    off, _ = await choices({"speculative.n_max": 0})
    # A call that is generated again repeats itself.
    assert (await choices({}))[0] == off
    on, answer = await choices({})
    assert n_accepted(answer) > 2
    assert on == off
    assert ("tool_calls" in off["message"]) == (choice == "required")
