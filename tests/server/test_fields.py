import math
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from litestar.testing import AsyncTestClient

from tests.server.conftest import PROMPT, answers
from tests.server.matchers import SOME_TEXT, Json, matching
from tests.server.scripted import FullEngine, ScriptedEngine, connect
from weft import EngineConfig, GrammarTrigger, QueueFullError, ReasoningConfig
from weft.request.internal import InternalRequest
from weft.sampling_fields import Sampling
from weft.server import create_app
from weft.server.request_fields.fields import CompletionFields
from weft.server.request_fields.requests import ping_s
from weft.server.streaming import sse
from weft.settings import Settings

Full = tuple[FullEngine, httpx.AsyncClient]


@pytest.fixture(scope="module")
async def full() -> AsyncIterator[Full]:
    """An engine that shows what it is asked, and the application over it: one for all, since each takes a while to make."""
    engine = FullEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        yield engine, client


@pytest.mark.parametrize(
    ("body", "request_"),
    [
        ({}, {}),
        ({"n": 3, "seed": 5, "temperature": 0.25}, {"n": 3, "seed": 5, "temperature": 0.25}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": 2**32 - 1}, {"seed": None}),
        ({"seed": 2**32 + 7}, {"seed": 7}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"max_tokens": 2**70}, {"max_tokens": 2**31 - 1}),
        ({"max_tokens": 9, "max_completion_tokens": 8}, {"max_tokens": 8}),
        ({"max_tokens": 9, "max_completion_tokens": 8, "n_predict": 7}, {"max_tokens": 7}),
        ({"n_cmpl": 2, "n": 3}, {"n": 2}),
        ({"n": 3, "distinct": True}, {"n": 3, "distinct": True}),
        ({"n": 3, "diverse": "arithmetic"}, {"n": 3, "diverse": "arithmetic"}),
        ({"beam_width": 4, "length_penalty": 0.5}, {"beam_width": 4, "length_penalty": 0.5}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "", "b"]}, {"stop": ["a", "b"]}),
        ({"logit_bias": {"65": 1, "BC": False}}, {"logit_bias": [(65, 1), (66, -math.inf), (67, -math.inf)]}),
        ({"logit_bias": [[65, -1.5], ["BC", 2]]}, {"logit_bias": [(65, -1.5), (66, 2), (67, 2)]}),
        ({"logit_bias": {"-0": 1}}, {"logit_bias": [(0, 1)]}),
        ({"logit_bias": {"1_0": 1}}, {"logit_bias": [(49, 1), (95, 1), (48, 1)]}),
        ({"logit_bias": {" 7 ": 1}}, {"logit_bias": [(32, 1), (55, 1), (32, 1)]}),
        ({"logit_bias": {"+8": 1}}, {"logit_bias": [(43, 1), (56, 1)]}),
        ({"logit_bias": {"\u0663": 1}}, {"logit_bias": [(0x663, 1)]}),
        ({"logprobs": 3}, {"logprobs": 3}),
        ({"n_probs": 2}, {"logprobs": 2}),
        ({"speculative.n_max": 3}, {"max_draft": 3}),
        ({"speculative.n_max": 1000}, {"max_draft": 64}),
        ({"speculative.n_max": -1}, {}),
        ({"speculative.type": "none", "speculative.n_max": 3}, {"max_draft": 0}),
        ({"speculative.type": "ngram-mod"}, {}),
        ({"prediction": {"type": "content", "content": "cd"}}, {"prediction": "cd"}),
        ({"prediction": {"type": "content", "content": [{"type": "text", "text": "c"}, {"text": "d"}]}}, {"prediction": "cd"}),
        ({"prediction": {"type": "content", "content": ""}}, {}),
        *[
            ({name: value}, {name: value})
            for name, value in {
                "temperature": 0.25,
                "dynatemp_range": 0.5,
                "dynatemp_exponent": 2.0,
                "top_k": 1,
                "top_p": 0.5,
                "min_p": 0.25,
                "typical_p": 0.75,
                "top_n_sigma": 1.5,
                "tfs_z": 0.5,
                "xtc_probability": 0.5,
                "xtc_threshold": 0.25,
                "min_keep": 3,
                "repeat_penalty": 1.5,
                "repeat_last_n": -1,
                "presence_penalty": 0.5,
                "frequency_penalty": 0.25,
                "penalize_nl": False,
                "dry_multiplier": 0.5,
                "dry_base": 2.0,
                "dry_allowed_length": 4,
                "dry_penalty_last_n": -1,
                "dry_sequence_breakers": [".", "a b"],
                "mirostat": 2,
                "mirostat_tau": 4.0,
                "mirostat_eta": 0.25,
                "adaptive_target": 0.5,
                "adaptive_decay": 0.5,
                "n_keep": 5,
                "n_discard": 6,
                "n_indent": 7,
                "post_sampling_probs": True,
                "priority": -7,
                "grammar": 'root ::= "a"',
            }.items()
        ],
        (
            {
                "grammar": "root ::= .*",
                "grammar_lazy": True,
                "grammar_triggers": [
                    {"type": 0, "value": "b", "token": 5},
                    {"type": 1, "value": "a"},
                    {"type": 2, "value": "c+"},
                    {"type": 3, "value": "d"},
                ],
                "preserved_tokens": ["<a>"],
            },
            {
                "grammar": "root ::= .*",
                "grammar_lazy": True,
                "grammar_triggers": (
                    GrammarTrigger("token", "b", 5),
                    GrammarTrigger("word", "a"),
                    GrammarTrigger("pattern", "c+"),
                    GrammarTrigger("pattern_full", "d"),
                ),
                "preserved_tokens": ("<a>",),
            },
        ),
        (
            {
                "reasoning_budget_start_tag": "<t>",
                "reasoning_budget_end_tags": ["</t>", "<call>", ""],
                "reasoning_budget_tokens": 7,
                "reasoning_budget_message": "Enough.",
                "generation_prompt": "</t>\n<t>\n",
            },
            {
                "reasoning": ReasoningConfig(
                    starts=("<t>",), ends=("</t>", "<call>"), begins_inside=True, budget=7, message="Enough."
                )
            },
        ),
        (
            {
                "reasoning_budget_start_tag": "<t>",
                "reasoning_budget_end_tag": "</t>",
                "thinking_budget_tokens": 0,
                "generation_prompt": "<t></t>",
            },
            {"reasoning": ReasoningConfig(starts=("<t>",), ends=("</t>",), budget=0)},
        ),
        (
            {"reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "</t>", "reasoning_budget_tokens": -5},
            {"reasoning": ReasoningConfig(starts=("<t>",), ends=("</t>",))},
        ),
        ({"n_keep": -1}, {"n_keep": None}),
        ({"n_keep": 2**40}, {"n_keep": 2**31 - 1}),
        ({"dry_base": 0.5}, {"dry_base": 1.75}),
        ({"t_max_predict_ms": 500}, {"max_predict_ms": 500.0}),
        ({"t_max_predict_ms": 0}, {"max_predict_ms": None}),
        ({"t_max_predict_ms": -1}, {"max_predict_ms": None}),
        ({"max_token_gap_ms": 50}, {"max_token_gap_ms": 50.0}),
        ({"max_token_gap_ms": 0}, {"max_token_gap_ms": None}),
        ({"max_token_gap_ms": -1}, {"max_token_gap_ms": None}),
        ({"penalty_prompt": "ab"}, {"penalty_prompt": [97, 98]}),
        ({"penalty_prompt": [1, 2]}, {"penalty_prompt": [1, 2]}),
        ({"penalty_prompt": ["a", 2, "b"]}, {"penalty_prompt": [97, 2, 98]}),
        ({"penalty_prompt": ""}, {"penalty_prompt": None}),
        ({"penalty_prompt": []}, {"penalty_prompt": None}),
        ({"cache_prompt": False}, {"use_cache": False}),
        ({"cache_prompt": True}, {"use_cache": True}),
        ({"json_schema": {"type": "object"}}, {"json_schema": '{"type":"object"}'}),
        ({"json_schema": {}}, {"json_schema": "{}"}),
        ({"json_schema": True}, {"json_schema": "true"}),
        ({"json_schema": {"b": 1, "a": 2}, "grammar": ""}, {"json_schema": '{"b":1,"a":2}'}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_schema": '{"type":"object"}'}),
        ({"response_format": {"type": "json_object", "schema": {"type": "array"}}}, {"json_schema": '{"type":"array"}'}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"a": 1}}}},
            {"json_schema": '{"a":1}'},
        ),
        ({"samplers": ["top-k", "TopP", "nucleus", "temp"]}, {"samplers": ("top_k", "top_p", "top_p", "temperature")}),
        ({"samplers": "min_p;typical_p"}, {"samplers": ("min_p", "typ_p")}),
        ({"samplers": "top_k"}, {"samplers": ("top_k",)}),
        ({"samplers": "edskypmxt"}, {}),
        ({"samplers": "fk"}, {"samplers": ("tfs_z", "top_k")}),
        ({"samplers": "temp"}, {"samplers": ("temperature", "penalties", "min_p", "top_p")}),
        ({"samplers": "ai"}, {"samplers": ("adaptive_p", "infill")}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"id_slot": 2}, {"slot": 2}),
        ({"id_slot": 4}, {"slot": 0}),
        ({"id_slot": 2**70 + 3}, {"slot": 3}),
        ({"id_slot": -2}, {"slot": 2}),
        ({"id_slot": -1}, {"slot": None}),
        ({"id_slot": None}, {"slot": None}),
    ],
    ids=str,
)
async def test_each_field_reaches_the_engine(full: Full, path: str, body: dict[str, object], request_: dict[str, object]) -> None:
    engine, client = full
    engine.requests.clear()
    await client.post(path, json={"prompt": "ab", **body})
    defaults = msgspec.structs.asdict(InternalRequest(prompt=[97, 98], stop=[], logit_bias=[]))
    assert [msgspec.structs.asdict(request) for request in engine.requests] == [defaults | request_]


@pytest.mark.parametrize(("route", "logprobs"), [("/completion", None), ("/v1/completions", 1)])
async def test_log_probabilities_of_the_drawn_token_alone_are_asked_of_the_engine(route: str, logprobs: int | None) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(route, json={"prompt": "ab", "logprobs": 0})
    assert [request.logprobs for request in engine.requests] == [logprobs]


@pytest.mark.parametrize(("route", "logprobs"), [("/completion", 2), ("/v1/completions", 5)])
async def test_each_dialects_own_name_for_log_probabilities_counts_first(route: str, logprobs: int) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(route, json={"prompt": "ab", "n_probs": 2, "logprobs": 5})
    assert [request.logprobs for request in engine.requests] == [logprobs]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("field", ["return_progress", "timings_per_token"])
async def test_progress_is_asked_of_the_engine_only_where_a_stream_tells_it(path: str, field: str, stream: bool) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(path, json={"prompt": "ab", field: True, "stream": stream})
    assert [request.report_progress for request in engine.requests] == [stream]


@pytest.mark.parametrize(("asked", "interval"), [(None, 30), (5, 5), (1, 1), (0, None), (-1, None)])
def test_a_request_says_how_often_its_stream_is_pinged(asked: int | None, interval: float | None) -> None:
    assert ping_s(CompletionFields(sse_ping_interval=asked), Settings(ping_s=30)) == interval


async def test_a_stream_is_pinged_as_often_as_its_request_says() -> None:
    engine = ScriptedEngine([])
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(ping_s=None))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        body = {"prompt": "ab", "stream": True, "sse_ping_interval": 1}
        sent = await connect(app, "/completion", body, lambda sent: len(sent) == 2)
    assert sent[1]["body"] == sse.PING


async def test_every_prompt_of_a_list_starts_at_the_seed(path: str) -> None:
    engine = ScriptedEngine([], QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        await client.post(path, json={"prompt": ["ab", [99, "d"]], "seed": 7, "n": 3})
    assert [(request.prompt, request.seed, request.n) for request in engine.requests] == [([97, 98], 7, 3), ([99, 100], 7, 3)]


@pytest.mark.parametrize(
    ("setting", "value"),
    list(
        {
            "n_predict": 5,
            "stop": ["x"],
            "seed": 6,
            "samplers": ("top_k", "temperature"),
            "temperature": 0.5,
            "dynatemp_range": 0.25,
            "dynatemp_exponent": 2.0,
            "top_k": 7,
            "top_p": 0.5,
            "min_p": 0.25,
            "typical_p": 0.5,
            "top_n_sigma": 1.5,
            "tfs_z": 0.5,
            "xtc_probability": 0.5,
            "xtc_threshold": 0.25,
            "min_keep": 2,
            "repeat_penalty": 1.5,
            "repeat_last_n": 32,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "penalize_nl": False,
            "dry_multiplier": 0.5,
            "dry_base": 2.0,
            "dry_allowed_length": 3,
            "dry_penalty_last_n": 16,
            "dry_sequence_breakers": ("x",),
            "mirostat": 1,
            "mirostat_tau": 4.0,
            "mirostat_eta": 0.25,
            "adaptive_target": 0.5,
            "adaptive_decay": 0.5,
            "logit_bias": [(65, 1.5)],
            "ignore_eos": True,
            "grammar": 'root ::= "a"',
            "json_schema": '{"type": "object"}',
            "context_shift": True,
            "n_keep": 4,
            "cache_prompt": False,
        }.items()
    ),
    ids=str,
)
async def test_what_a_request_leaves_unsaid_comes_from_the_settings(setting: str, value: Json) -> None:
    engine = FullEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), Settings.of({setting: value}))) as client:
        await answers(client, 200)
        for path in ("/completion", "/v1/completions"):
            await client.post(path, json={"prompt": "ab", "temperature": None})
    name = {"n_predict": "max_tokens", "cache_prompt": "use_cache"}.get(setting, setting)
    assert [getattr(request, name) for request in engine.requests] == [value, value]


async def test_the_servers_own_bound_on_pauses_is_no_requests_default(path: str) -> None:
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    # It may be one that no request may ask for.
    async with AsyncTestClient(create_app(engine.as_engine(), Settings(engine=EngineConfig(max_token_gap_ms=90_000)))) as client:
        await client.post(path, json={"prompt": "ab"})
    assert [request.max_token_gap_ms for request in engine.requests] == [None]


async def test_what_a_request_says_counts_before_the_settings(path: str) -> None:
    sampling = Sampling(temperature=0.5, samplers=("top_k",), logit_bias=((65, 1.0),))
    settings = Settings(sampling=sampling, stop=("x",), grammar='root ::= "a"', cache_prompt=False)
    body = {"temperature": 0.25, "stop": "y", "samplers": "t", "logit_bias": [], "json_schema": {}, "cache_prompt": True}
    engine = ScriptedEngine(QueueFullError(1))
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine(), settings)) as client:
        await answers(client, 200)
        await client.post(path, json={"prompt": "ab", **body})
    [request] = engine.requests
    assert (request.temperature, request.stop, request.samplers) == (0.25, ["y"], ("temperature",))
    assert (request.logit_bias, request.grammar, request.json_schema, request.use_cache) == ([], None, "{}", True)


NEUTRAL: dict[str, list[Json]] = {
    "adaptive_target": [-1, -0.5],
    "anti_prompt": ["", []],
    "assistant_name": [""],
    "backend_sampling": [False, True],
    "cache_prompt": [True],
    "distinct": [False],
    "dry_multiplier": [0],
    "dynatemp_range": [0],
    "grammar": [""],
    "grammar_lazy": [False],
    "grammar_triggers": [[]],
    "image_data": [[], "", {}],
    "explain_cache": [False],
    "json_schema": [None],
    "length_penalty": [1.0],
    "logit_bias": [[], {}],
    "lora": [[], {}, "", [{"id": 0, "scale": 0}]],
    "max_token_gap_ms": [0, -1],
    "min_keep": [0],
    "mirostat": [0],
    "n_cache_reuse": [0],
    "n_indent": [0],
    "penalty_prompt": ["", []],
    "post_sampling_probs": [False],
    "parse_tool_calls": [False],
    "preserved_tokens": [[]],
    "priority": [0],
    "reasoning_budget_message": [""],
    "reasoning_budget_tokens": [-1],
    "reasoning_format": ["none", "auto", "", "deepseek", "deepseek-legacy"],
    "response_fields": [[], ""],
    "response_format": [{}, {"type": "text"}, {"type": None}],
    "return_progress": [False],
    "samplers": [[], ""],
    "service_tier": ["auto", "default"],
    "stop": [[], "", [""]],
    "store": [False],
    "system_prompt": ["", {}],
    "t_max_predict_ms": [0, -1],
    "t_max_prompt_ms": [0, -1],
    "tfs_z": [1],
    "timings_per_token": [False],
    "tools": [[], {}],
    "top_n_sigma": [-1],
    "typical_p": [1.0],
    "verbose": [False],
    "xtc_probability": [0.0],
}

UNSUPPORTED: dict[str, list[Json]] = {
    "anti_prompt": ["User:", ["User:"]],
    "assistant_name": ["Assistant:"],
    "image_data": [[{"id": 1, "data": ""}], {"id": 1}],
    "n_cache_reuse": [256],
    "parse_tool_calls": [True, "yes"],
    "reasoning_format": ["hidden", 1, ["none"]],
    "service_tier": ["flex", "priority"],
    "store": [True],
    "system_prompt": [{"prompt": "a"}, "a"],
    "t_max_prompt_ms": [100],
    "tools": [[{"type": "function"}], {"type": "function"}],
}

COMPLETION_ONLY = {"anti_prompt", "assistant_name", "image_data", "system_prompt"}
"""Fields that `/completion` takes."""

ALL_NULL = sorted({field.name for field in msgspec.structs.fields(CompletionFields)} - {"prompt", "n_predict"})


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in NEUTRAL.items() for value in values], ids=str)
async def test_a_neutral_value_asks_for_nothing(client: httpx.AsyncClient, path: str, field: str, value: Json) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "max_tokens": 1, field: value})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("route", "body"),
    [("/completion", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})],
)
async def test_best_of_is_refused_where_it_has_no_effect(client: httpx.AsyncClient, route: str, body: Json) -> None:
    neutral = await client.post(route, json=body | {"max_tokens": 1, "best_of": 1})
    assert neutral.status_code == 200, neutral.text
    answer = await client.post(route, json=body | {"max_tokens": 1, "best_of": 3})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")


@pytest.mark.parametrize("field", ALL_NULL)
async def test_null_is_absent(client: httpx.AsyncClient, path: str, field: str) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "n_predict": 1, field: None})
    assert answer.status_code == 200, answer.text


async def test_the_settings_that_are_reported_may_be_sent_back(client: httpx.AsyncClient, path: str) -> None:
    params = (await client.get("/props")).json()["default_generation_settings"]["params"]
    body = {"prompt": PROMPT, **params, "stop": [" "], "seed": 3}
    # OpenAI's dialect takes the model's name, and has no settings to tell.
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    if path == "/completion":
        assert answer.json()["generation_settings"] == params | {"stop": [" "], "seed": 3}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in UNSUPPORTED.items() for value in values],
    ids=str,
)
async def test_what_is_not_there_is_refused_by_name(client: httpx.AsyncClient, path: str, field: str, value: Json) -> None:
    path = "/infill" if path == "/completion" and field in COMPLETION_ONLY else path
    answer = await client.post(path, json={"prompt": PROMPT, field: value})
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "code": 400,
            "message": f"{field} is not supported; leave it out",
            "type": "invalid_request_error",
            "param": field,
        }
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, ["a"]]}, "prompt"),
        ({"prompt": [99_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 257}, "n"),
        ({"prompt": "a", "n_cmpl": 257}, "n_cmpl"),
        ({"prompt": "a", "n_cmpl": 0, "n": 1}, "n_cmpl"),
        ({"prompt": "a", "n": 2**70}, "n"),
        ({"prompt": "a", "n_probs": -1}, "n_probs"),
        ({"prompt": "a", "min_keep": 2**40}, "min_keep"),
        ({"prompt": "a", "typical_p": 1e300}, "typical_p"),
        ({"prompt": "a", "n_predict": -2}, "n_predict"),
        ({"prompt": "a", "max_tokens": -2}, "max_tokens"),
        ({"prompt": "a", "max_completion_tokens": -7}, "max_completion_tokens"),
        ({"prompt": "a", "n_predict": "many"}, "n_predict"),
        ({"prompt": "a", "grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "a!"}]}, "grammar_lazy"),
        ({"prompt": "a", "grammar": "root ::= .*", "grammar_lazy": True}, "grammar_triggers"),
        ({"prompt": "a", "grammar_triggers": [{"type": 4, "value": "a"}]}, "grammar_triggers"),
        ({"prompt": "a", "grammar_triggers": [{"type": 0, "value": "a"}]}, "grammar_triggers"),
        ({"prompt": "a", "preserved_tokens": ["a"] * 257}, "preserved_tokens"),
        ({"prompt": "a", "reasoning_budget_tokens": 0}, "reasoning_budget_tokens"),
        ({"prompt": "a", "reasoning_budget_tokens": False}, "reasoning_budget_tokens"),
        ({"prompt": "a", "thinking_budget_tokens": 128}, "thinking_budget_tokens"),
        ({"prompt": "a", "reasoning_budget_message": "Enough."}, "reasoning_budget_message"),
        ({"prompt": "a", "reasoning_budget_start_tag": "<t>"}, "reasoning_budget_start_tag"),
        ({"prompt": "a", "reasoning_budget_end_tag": "</t>"}, "reasoning_budget_start_tag"),
        (
            {"prompt": "a", "reasoning_budget_start_tag": "<t>", "reasoning_budget_end_tag": "t" * 257},
            "reasoning_budget_end_tags",
        ),
        ({"prompt": "a", "n_probs": 1001}, "n_probs"),
        ({"prompt": "a", "logprobs": 3000}, "logprobs"),
        ({"prompt": "a", "logprobs": 2**70}, "logprobs"),
        ({"prompt": "a", "repeat_penalty": 0}, "repeat_penalty"),
        ({"prompt": "a", "repeat_last_n": -2}, "repeat_last_n"),
        ({"prompt": "a", "temperature": []}, "temperature"),
        ({"prompt": "a", "stop": [1]}, "stop"),
        ({"prompt": "a", "logit_bias": [[99_999, 1]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"-1": 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[1, 1]] * 2049}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {str(key): 1 for key in range(2049)}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"a b" * 2048: 1}}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[1, True]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[1]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias"),
        ({"prompt": "a", "stream": "perhaps"}, "stream"),
        ({"prompt": "a", "min_keep": -1}, "min_keep"),
        ({"prompt": "a", "mirostat": 3}, "mirostat"),
        ({"prompt": "a", "mirostat_tau": "five"}, "mirostat_tau"),
        ({"prompt": "a", "adaptive_decay": 1}, "adaptive_decay"),
        ({"prompt": "a", "penalty_prompt": [99_999]}, "penalty_prompt"),
        ({"prompt": "a", "penalty_prompt": 5}, "penalty_prompt"),
        ({"prompt": "a", "penalize_nl": 2}, "penalize_nl"),
        ({"prompt": "a", "dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"prompt": "a", "dry_sequence_breakers": []}, "dry_sequence_breakers"),
        ({"prompt": "a", "dry_sequence_breakers": "."}, "dry_sequence_breakers"),
        ({"prompt": "a", "samplers": ["top_k", "no_such"]}, "samplers"),
        ({"prompt": "a", "samplers": "kz"}, "samplers"),
        ({"prompt": "a", "samplers": "top_k;no_such"}, "samplers"),
        ({"prompt": "a", "samplers": ["top_k"] * 1000}, "samplers"),
        ({"prompt": "a", "samplers": 5}, "samplers"),
        ({"prompt": "a", "n_keep": -2}, "n_keep"),
        ({"prompt": "a", "n_discard": -1}, "n_discard"),
        ({"prompt": "a", "n_indent": -1}, "n_indent"),
        ({"prompt": "a", "t_max_predict_ms": "soon"}, "t_max_predict_ms"),
        ({"prompt": "a", "priority": 101}, "priority"),
        ({"prompt": "a", "priority": -101}, "priority"),
        ({"prompt": "a", "priority": 2**40}, "priority"),
        ({"prompt": "a", "priority": 0.5}, "priority"),
        ({"prompt": "a", "max_token_gap_ms": 0.5}, "max_token_gap_ms"),
        ({"prompt": "a", "max_token_gap_ms": 60_001}, "max_token_gap_ms"),
        ({"prompt": "a", "max_token_gap_ms": "soon"}, "max_token_gap_ms"),
        ({"prompt": "a", "grammar": 5}, "grammar"),
        ({"prompt": "a", "grammar": {"root": "a"}}, "grammar"),
        ({"prompt": "a", "grammar": "root ::= 1", "json_schema": {}}, "json_schema"),
        ({"prompt": "a", "json_schema": {}, "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "a", "response_format": "json"}, "response_format"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format"),
        ({"prompt": "a", "response_format": {"schema": {}}}, "response_format"),
        ({"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format"),
        ({"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"prompt": "a", "response_fields": [1]}, "response_fields"),
        ({"prompt": "a", "sse_ping_interval": "x"}, "sse_ping_interval"),
        ({"prompt": "a", "id_slot": "first"}, "id_slot"),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_a_wrong_field_is_named(client: httpx.AsyncClient, path: str, body: dict[str, Json], param: str) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json() == {"error": {"code": 400, "message": SOME_TEXT, "type": "invalid_request_error", "param": param}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 300}, "n is 300; it must be 1 to 256"),
        ({"n_cmpl": 300}, "n_cmpl is 300; it must be 1 to 256"),
        ({"max_tokens": -2}, "max_tokens is -2; it must be -1 or more"),
        ({"max_completion_tokens": -7}, "max_completion_tokens is -7; it must be -1 or more"),
        ({"logprobs": 3000}, "logprobs is 3000; it must be 0 to 1000"),
        ({"n_probs": 3000}, "n_probs is 3000; it must be 0 to 1000"),
        ({"samplers": ["top_k", "no_such"]}, matching("samplers: 'no_such' is not one of penalties, dry, .*, infill")),
        ({"samplers": "kz"}, matching("samplers: 'z' in 'kz' is not one of e d s k f .*")),
        ({"dry_sequence_breakers": []}, "dry_sequence_breakers is empty; it must be a list of one text or more"),
        ({"grammar": "a", "json_schema": {}}, "json_schema cannot be combined with grammar; give one of them"),
        ({"logit_bias": [[5000, 1]]}, "token 5000 is not in the vocabulary (2048 tokens)"),
        ({"penalty_prompt": [5000]}, "token 5000 is not in the vocabulary (2048 tokens)"),
        ({"logit_bias": [[1, 1]] * 2049}, "there are 2049 biases; the vocabulary has 2048 tokens"),
    ],
    ids=lambda value: str(value)[:80],
)
async def test_a_message_names_the_field_that_was_sent(
    client: httpx.AsyncClient, path: str, fields: dict[str, Json], message: str
) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, **fields})
    assert answer.json()["error"]["message"] == message


async def test_more_prompts_than_may_ever_wait_are_refused(path: str) -> None:
    engine = ScriptedEngine()
    engine.loaded.set()
    async with AsyncTestClient(create_app(engine.as_engine())) as client:
        answer = await client.post(path, json={"prompt": ["a"] * 9})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert answer.json()["error"]["message"] == "there are 9 prompts; at most 8, the size of the queue, are allowed"
