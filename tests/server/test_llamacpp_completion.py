import json
import math
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.helpers import How
from tests.server.conftest import PROMPT, answers
from tests.server.live import events_of
from tests.server.matchers import COUNT, LOGPROB, NUMBER, SETTINGS, SOME_TEXT, TEXT, TIMINGS, Json
from weft.server import create_app
from weft.settings import Settings
from weft.work.threads import LONG_TEXT

END_TOKEN = 2
"""`</s>` of the demo model."""


async def complete(client: httpx.AsyncClient, **body: Json) -> Json:
    answer = await client.post("/completion", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


async def stream(client: httpx.AsyncClient, **body: Json) -> list[Any]:
    answer = await client.post("/completion", json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [json.loads(event) for event in events_of(answer.text)]


async def detokenize(client: httpx.AsyncClient, tokens: list[int]) -> str:
    return str((await client.post("/detokenize", json={"tokens": tokens})).json()["content"])


def ends(events: list[Any]) -> list[Any]:
    return sorted((event for event in events if event["stop"]), key=lambda event: event["index"])


@pytest.mark.parametrize("name", ["/completion", "/completions"])
async def test_a_whole_answer_is_one_object(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post(name, json={"prompt": PROMPT, "n_predict": 4})
    assert answer.json() == {
        "index": 0,
        "content": SOME_TEXT,
        "tokens": [],
        "id_slot": COUNT,
        "stop": True,
        "model": "storyteller",
        "tokens_predicted": 4,
        "tokens_evaluated": 6,
        "generation_settings": SETTINGS | {"max_tokens": 4, "n_predict": 4},
        "prompt": "<s>Once upon a time,",
        "has_new_line": False,
        "truncated": False,
        "stop_type": "limit",
        "stopped_eos": False,
        "stopped_limit": True,
        "stopped_word": False,
        "stopping_word": "",
        "tokens_cached": 9,
        "timings": TIMINGS | {"predicted_n": 4},
    }


async def test_a_stream_has_one_event_per_token_and_one_for_the_end(client: httpx.AsyncClient) -> None:
    events = await stream(client, prompt=PROMPT, n_predict=3)
    token = {
        "index": 0,
        "content": TEXT,
        "tokens": [COUNT],
        "stop": False,
        "id_slot": COUNT,
        "tokens_evaluated": 6,
    }
    assert events == [
        token | {"tokens_predicted": 1, "id": TEXT},
        token | {"tokens_predicted": 2},
        token | {"tokens_predicted": 3},
        {
            "index": 0,
            "content": "",
            "tokens": [],
            "id_slot": events[0]["id_slot"],
            "stop": True,
            "model": "storyteller",
            "tokens_predicted": 3,
            "tokens_evaluated": 6,
            "generation_settings": SETTINGS | {"max_tokens": 3, "n_predict": 3, "stream": True},
            "prompt": "<s>Once upon a time,",
            "has_new_line": False,
            "truncated": False,
            "stop_type": "limit",
            "stopped_eos": False,
            "stopped_limit": True,
            "stopped_word": False,
            "stopping_word": "",
            "tokens_cached": 8,
            "timings": TIMINGS | {"predicted_n": 3},
        },
    ]


async def test_one_stream_carries_all_branches(client: httpx.AsyncClient) -> None:
    events = await stream(client, prompt=PROMPT, n_predict=5, n=3, seed=7)
    assert [end["index"] for end in ends(events)] == [0, 1, 2]
    assert [end["generation_settings"]["seed"] for end in ends(events)] == [7, 8, 9]
    for index in range(3):
        own = [event for event in events if event["index"] == index]
        assert [event["tokens_predicted"] for event in own] == [1, 2, 3, 4, 5, 5]
        assert [event["stop"] for event in own] == [False] * 5 + [True]


async def test_several_branches_whole_are_a_list_in_order_of_index(client: httpx.AsyncClient) -> None:
    # More branches than slots, of different lengths, so that they end in another order than they began in.
    results = await complete(client, prompt=PROMPT, n_predict=40, n=9, stop=[" and", ",", "."])
    assert [result["index"] for result in results] == list(range(9))


async def test_several_prompts_are_one_list_that_counts_on(client: httpx.AsyncClient) -> None:
    results = await complete(client, prompt=["A cow says", "The capital of France is"], n_predict=2, n=2)
    assert [(result["index"], result["prompt"]) for result in results] == [
        (0, "<s>A cow says"),
        (1, "<s>A cow says"),
        (2, "<s>The capital of France is"),
        (3, "<s>The capital of France is"),
    ]


@pytest.mark.parametrize("prompt", [PROMPT, "Human: Hello\nAssistant:"])
async def test_the_texts_of_a_stream_join_to_its_tokens(client: httpx.AsyncClient, prompt: str) -> None:
    events = await stream(client, prompt=prompt, n_predict=30, ignore_eos=True)
    tokens = [token for event in events for token in event["tokens"]]
    assert "".join(event["content"] for event in events) == await detokenize(client, tokens)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"n_predict": 5}, ("limit", "")),
        ({"n_predict": 0}, ("limit", "")),
        ({"n_predict": 50, "stop": [" ", "a"]}, ("word", " ")),
        ({"n_predict": 50, "stop": " "}, ("word", " ")),
        ({"n_predict": 50, "logit_bias": {str(END_TOKEN): 1000}}, ("eos", "")),
    ],
    ids=str,
)
async def test_a_branch_says_why_it_ended(
    client: httpx.AsyncClient, how: How, body: dict[str, Json], said: tuple[str, str]
) -> None:
    if how == "whole":
        end = await complete(client, prompt=PROMPT, **body)
    else:
        [end] = ends(await stream(client, prompt=PROMPT, **body))
    assert (end["stop_type"], end["stopping_word"]) == said
    # As it was told in 2024.
    assert [kind for kind in ("eos", "limit", "word") if end[f"stopped_{kind}"]] == [said[0]]
    assert not end["truncated"]
    assert " " not in end["content"] or "stop" not in body


async def test_a_full_context_is_told_as_truncated(client: httpx.AsyncClient) -> None:
    end = await complete(client, prompt=PROMPT, ignore_eos=True, n_predict=100_000)
    n_ctx = (await client.get("/props")).json()["default_generation_settings"]["n_ctx"]
    assert (end["stop_type"], end["truncated"]) == ("limit", True)
    assert end["tokens_evaluated"] + end["tokens_predicted"] == n_ctx


async def test_a_context_that_was_shifted_is_told_as_truncated(how: How) -> None:
    app = create_app(weft.Engine(n_slots=1, n_ctx=256, n_threads=1), Settings(context_shift=True))
    body = {"prompt": PROMPT, "ignore_eos": True, "n_predict": 400, "n_keep": 3, "n_discard": 50}
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        end = await complete(client, **body) if how == "whole" else ends(await stream(client, **body))[0]
    assert (end["stop_type"], end["truncated"], end["tokens_predicted"]) == ("limit", True, 400)
    assert 256 - 50 <= end["tokens_cached"] <= 256


async def test_nothing_predicted_only_evaluates_the_prompt(client: httpx.AsyncClient, how: How) -> None:
    body = {"prompt": PROMPT, "n_predict": 0}
    [end] = [await complete(client, **body)] if how == "whole" else await stream(client, **body)
    assert (end["content"], end["tokens_predicted"], end["timings"]["predicted_n"]) == ("", 0, 0)


async def test_what_the_branches_computed_adds_up_to_the_prompt(client: httpx.AsyncClient, how: How) -> None:
    body = {"prompt": f"A {how} prompt that nobody has sent so far, and that is long enough to be shared", "n": 6, "n_predict": 3}
    results = await complete(client, **body) if how == "whole" else ends(await stream(client, **body))
    n_prompt = results[0]["tokens_evaluated"]
    timings = [result["timings"] for result in results]
    assert [timing["prompt_n"] + timing["cache_n"] for timing in timings] == [n_prompt] * 6
    # The opening token of every text is there already, but fewer than 16 tokens are never shared.
    assert sum(timing["prompt_n"] for timing in timings) == n_prompt


async def probabilities_of(client: httpx.AsyncClient, how: How, **body: Json) -> list[Any]:
    """One entry per token, each from the event of its token where the answer is streamed."""
    if how == "whole":
        result = await complete(client, **body)
        assert len(result["completion_probabilities"]) == result["tokens_predicted"]
        return list(result["completion_probabilities"])
    *tokens, end = await stream(client, **body)
    assert "completion_probabilities" not in end
    assert [len(token["completion_probabilities"]) for token in tokens] == [1] * end["tokens_predicted"]
    return [token["completion_probabilities"][0] for token in tokens]


async def test_probabilities_come_with_each_token_in_todays_shape_and_that_of_2024(client: httpx.AsyncClient, how: How) -> None:
    probabilities = await probabilities_of(client, how, prompt=PROMPT, n_predict=3, n_probs=2)
    for drawn in probabilities:
        first, second = drawn["top_logprobs"]
        assert first["logprob"] >= second["logprob"]
        told = [drawn, first, second]
        bare = {"id": COUNT, "token": TEXT, "bytes": [COUNT], "logprob": LOGPROB}
        assert [entry | {"bytes": entry["bytes"][:1]} for entry in (first, second)] == [bare] * 2
        assert all(bytes(entry["bytes"]).decode(errors="replace") == entry["token"] for entry in told)
        assert drawn == {
            **{name: drawn[name] for name in bare},
            "top_logprobs": [first, second],
            "content": drawn["token"],
            "probs": [
                {"prob": pytest.approx(math.exp(entry["logprob"])), "tok_str": entry["token"]} for entry in (first, second)
            ],
        }
    assert len(probabilities) == 3


async def test_each_token_of_a_character_that_is_held_back_has_its_probabilities(client: httpx.AsyncClient, how: How) -> None:
    # Bytes that are a character only together: "é" is spelt in two tokens that nothing else is made of.
    tokens = (await client.post("/tokenize", json={"content": "é"})).json()["tokens"]
    grammar = {"logit_bias": [[tokens[-2], 100]], "temperature": 0}
    probabilities = await probabilities_of(client, how, prompt=PROMPT, n_predict=4, n_probs=1, **grammar)
    assert [entry["id"] for entry in probabilities] == [tokens[-2]] * 4
    assert [entry["bytes"] for entry in probabilities] == [[0xC3]] * 4


async def test_probabilities_after_the_samplers_are_no_logarithms(client: httpx.AsyncClient, how: How) -> None:
    body = {"prompt": PROMPT, "n_predict": 3, "n_probs": 2, "post_sampling_probs": True, "top_k": 2, "min_p": 0, "top_p": 1}
    for drawn in await probabilities_of(client, how, **body):
        told = [{"id": COUNT, "token": TEXT, "bytes": [COUNT], "prob": NUMBER}] * 2
        assert [top | {"bytes": top["bytes"][:1]} for top in drawn["top_probs"]] == told
        assert drawn == {
            "id": COUNT,
            "token": TEXT,
            "bytes": drawn["bytes"],
            "prob": NUMBER,
            "top_probs": drawn["top_probs"],
            "content": drawn["token"],
            "probs": [{"prob": top["prob"], "tok_str": top["token"]} for top in drawn["top_probs"]],
        }


async def test_after_the_samplers_one_candidate_is_certain(client: httpx.AsyncClient, how: How) -> None:
    drawn = await probabilities_of(client, how, prompt=PROMPT, n_predict=4, n_probs=5, post_sampling_probs=True, top_k=1)
    assert len(drawn) == 4
    for one in drawn:
        [only] = one["top_probs"]
        assert only == {name: one[name] for name in ("id", "token", "bytes", "prob")}
        assert one["prob"] == 1


async def test_probabilities_after_the_samplers_are_the_shares_of_what_they_left(client: httpx.AsyncClient, how: How) -> None:
    body: Json = {"prompt": PROMPT, "n_predict": 1, "n_probs": 3, "seed": 5}
    [raw] = await probabilities_of(client, how, **body)
    left: Json = {"samplers": ["top_k", "temperature"], "top_k": 3, "temperature": 2}
    [drawn] = await probabilities_of(client, how, **body, **left, post_sampling_probs=True)
    weights = [math.exp(top["logprob"] / 2) for top in raw["top_logprobs"]]
    shares = [weight / sum(weights) for weight in weights]
    assert [top["id"] for top in drawn["top_probs"]] == [top["id"] for top in raw["top_logprobs"]]
    assert [top["prob"] for top in drawn["top_probs"]] == pytest.approx(shares, rel=1e-4)
    assert drawn["prob"] in [top["prob"] for top in drawn["top_probs"] if top["id"] == drawn["id"]]


async def test_a_banned_token_is_likely_before_the_samplers_alone(client: httpx.AsyncClient, how: How) -> None:
    body: Json = {"prompt": PROMPT, "n_predict": 1, "n_probs": 1}
    [raw] = await probabilities_of(client, how, **body)
    likeliest = raw["top_logprobs"][0]["id"]
    banned: Json = {"logit_bias": [[likeliest, False]]}
    [still_raw] = await probabilities_of(client, how, **body, **banned)
    [after] = await probabilities_of(client, how, **body, **banned, post_sampling_probs=True)
    assert still_raw["top_logprobs"] == raw["top_logprobs"]
    assert after["top_probs"][0]["id"] != likeliest
    assert still_raw["id"] != likeliest


async def test_one_token_has_no_rate(client: httpx.AsyncClient) -> None:
    timings = (await complete(client, prompt=PROMPT, n_predict=1))["timings"]
    assert timings == TIMINGS | {
        "predicted_n": 1,
        "predicted_ms": 0,
        "predicted_per_token_ms": 0,
        "predicted_per_second": 0,
    }


async def test_rates_are_those_of_the_tokens_after_the_first(client: httpx.AsyncClient) -> None:
    timings = (await complete(client, prompt=PROMPT, n_predict=5, ignore_eos=True))["timings"]
    assert timings["predicted_per_second"] == pytest.approx(4 * 1000 / timings["predicted_ms"])
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 4)


async def test_each_event_has_timings_where_they_are_asked_for(client: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "n_predict": 3, "n": 2, "ignore_eos": True}
    assert not any("timings" in event for event in await stream(client, **body) if not event["stop"])
    events = await stream(client, **body, timings_per_token=True)
    for index in range(2):
        own = [event["timings"] for event in events if event["index"] == index]
        assert own == [TIMINGS | {"predicted_n": n} for n in (1, 2, 3, 3)]
        assert [timings["prompt_n"] + timings["cache_n"] for timings in own] == [6] * 4
        assert own[0]["predicted_ms"] == 0
        assert 0 < own[1]["predicted_ms"] <= own[2]["predicted_ms"]
    assert all(end["generation_settings"]["timings_per_token"] for end in ends(events))


async def test_the_prompts_progress_comes_before_the_first_token(client: httpx.AsyncClient) -> None:
    prompt = [300 + position % 400 for position in range(700)]
    body = {"prompt": prompt, "n_predict": 1, "n": 2, "return_progress": True}
    assert "prompt_progress" not in (await complete(client, **body))[0]
    events = await stream(client, **body, cache_prompt=False)
    n_told = sum("prompt_progress" in event for event in events)
    assert [event["tokens_predicted"] for event in events[:n_told]] == [0] * n_told
    processed = [event["prompt_progress"]["processed"] for event in events[:n_told]]
    assert processed == sorted(processed)
    assert (processed[0], processed[-1]) == (0, 700)
    assert events[0] == {
        "id": TEXT,
        "index": 0,
        "content": "",
        "tokens": [],
        "stop": False,
        "id_slot": COUNT,
        "tokens_predicted": 0,
        "tokens_evaluated": 700,
        "prompt_progress": {"total": 700, "cache": 0, "processed": 0, "time_ms": COUNT},
    }
    assert len(ends(events)) == 2
    timed = await stream(client, **body, cache_prompt=False, timings_per_token=True)
    told = [(event["prompt_progress"], event["timings"]) for event in timed if "prompt_progress" in event]
    assert [timings["prompt_n"] for _, timings in told] == [progress["processed"] for progress, _ in told]
    assert told[-1][1] == TIMINGS | {"cache_n": 0, "prompt_n": 700, "predicted_n": 0, "predicted_ms": 0.0}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (["tokens_predicted"], {"tokens_predicted": 2}),
        ("tokens_predicted", {"tokens_predicted": 2}),
        (["generation_settings/n_predict", "stop"], {"generation_settings/n_predict": 2, "stop": True}),
        (["timings/predicted_n", "no_such", "prompt/no_such", "stop/"], {"timings/predicted_n": 2}),
        (["generation_settings/json_schema/type"], {"generation_settings/json_schema/type": "string"}),
    ],
    ids=str,
)
async def test_only_the_fields_that_are_asked_for_are_told(
    client: httpx.AsyncClient, how: How, fields: Json, told: dict[str, Json]
) -> None:
    body = {"prompt": PROMPT, "n_predict": 2, "response_fields": fields}
    if "json_schema" in str(fields):
        body["json_schema"] = {"type": "string"}
    if how == "whole":
        assert await complete(client, **body) == told
    else:
        # As llama-server has it, only the end is cut down.
        *tokens, end = await stream(client, **body)
        assert end == told
        assert [token["tokens_predicted"] for token in tokens] == [1, 2]


async def test_several_results_are_each_cut_down(client: httpx.AsyncClient) -> None:
    body = {"prompt": ["A cow says", "Once"], "n": 2, "n_predict": 1, "response_fields": ["index"]}
    assert await complete(client, **body) == [{"index": index} for index in range(4)]


async def test_tokens_come_with_a_stream_whether_or_not_they_are_asked_for(client: httpx.AsyncClient) -> None:
    for asked in (True, False):
        *tokens, end = await stream(client, prompt=PROMPT, n_predict=2, return_tokens=asked)
        assert ([len(token["tokens"]) for token in tokens], end["tokens"]) == ([1, 1], [])


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_new_line_is_told(client: httpx.AsyncClient, how: How, is_wanted: bool) -> None:
    newline = (await client.post("/tokenize", json={"content": "\n"})).json()["tokens"][-1]
    body = {"prompt": PROMPT, "n_predict": 2, "logit_bias": [[newline, 1000 if is_wanted else False]], "temperature": 0}
    end = await complete(client, **body) if how == "whole" else ends(await stream(client, **body))[0]
    assert end["has_new_line"] == is_wanted


async def test_a_seed_that_was_drawn_is_reported(client: httpx.AsyncClient) -> None:
    seeds = {
        (await complete(client, prompt=PROMPT, n_predict=0, seed=seed))["generation_settings"]["seed"]
        for seed in (None, -1, 2**32 - 1)
    }
    assert len(seeds) == 3


@pytest.mark.parametrize(("seed", "reported"), [(0, 0), (5, 5), (2**32 - 2, 2**32 - 2), (2**32 + 5, 5), (2**63, 0)])
async def test_a_seed_is_reported_as_it_took_effect(client: httpx.AsyncClient, seed: int, reported: int) -> None:
    result = await complete(client, prompt=PROMPT, n_predict=1, seed=seed)
    assert result["generation_settings"]["seed"] == reported


@pytest.mark.parametrize("biases", [[], [[5, -1.5]], [[token, 0.5] for token in range(1000)]], ids=["none", "one", "many"])
async def test_ends_that_are_ignored_are_reported_as_banned(client: httpx.AsyncClient, biases: Json) -> None:
    ends = (await client.get("/props")).json()["eos_token"]
    [end] = (await client.post("/tokenize", json={"content": ends})).json()["tokens"]
    asked = {"prompt": PROMPT, "n_predict": 1, "logit_bias": biases}
    told = (await client.post("/completion", json=asked | {"ignore_eos": True})).json()["generation_settings"]["logit_bias"]
    own = [{"token": token, "bias": bias} for token, bias in biases]
    n_ends = len(told) - len(own)
    assert {"token": end, "bias": False} in told[:n_ends]
    assert all(banned["bias"] is False for banned in told[:n_ends])
    assert told[n_ends:] == own
    assert (await client.post("/completion", json=asked)).json()["generation_settings"]["logit_bias"] == own


async def test_settings_are_reported_as_they_took_effect(client: httpx.AsyncClient) -> None:
    asked = {
        "seed": 3,
        "temperature": 0.5,
        "top_k": 10,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_last_n": 32,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "dynatemp_range": 0.25,
        "dynatemp_exponent": 2.0,
        "typical_p": 0.75,
        "top_n_sigma": 2.0,
        "tfs_z": 0.5,
        "xtc_probability": 0.5,
        "xtc_threshold": 0.25,
        "min_keep": 2,
        "penalize_nl": False,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 16,
        "dry_sequence_breakers": ["."],
        "mirostat": 0,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.25,
        "adaptive_target": 0.5,
        "adaptive_decay": 0.5,
        "stop": ["x"],
        "n_predict": 2,
        "n_keep": 4,
        "n_discard": 8,
        "n_indent": 1,
        "t_max_predict_ms": 60_000.0,
        "priority": 5,
        "max_token_gap_ms": 500.0,
        "ignore_eos": True,
        "n_probs": 1,
        "samplers": ["top_k", "temperature", "min_p"],
    }
    result = await complete(
        client, prompt=PROMPT, **asked, logit_bias=[[300, 1.5], [301, False]], penalty_prompt=[5, 6], post_sampling_probs=True
    )
    # What is banned because it ends a text comes first, and has a test of its own.
    settings = result["generation_settings"]
    settings["logit_bias"] = settings["logit_bias"][-2:]
    assert settings == SETTINGS | asked | {
        "max_tokens": 2,
        "logit_bias": [{"token": 300, "bias": 1.5}, {"token": 301, "bias": False}],
        "penalty_prompt_tokens": [5, 6],
        "use_penalty_prompt_tokens": True,
        "post_sampling_probs": True,
    }


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"repeat_last_n": -1}, {"repeat_last_n": 1024}),
        ({"dry_penalty_last_n": -1}, {"dry_penalty_last_n": 1024}),
        ({"dry_base": 0.5}, {"dry_base": 1.75}),
        ({"n_keep": -1}, {"n_keep": -1}),
        ({"t_max_predict_ms": 0}, {"t_max_predict_ms": -1}),
        ({"max_token_gap_ms": -0.5}, {"max_token_gap_ms": -1}),
        ({"samplers": "kt"}, {"samplers": ["top_k", "tfs_z", "temperature"]}),
        ({"samplers": "temp;Top-K"}, {"samplers": ["temperature", "top_k"]}),
        ({"seed": 2**32 + 9}, {"seed": 9}),
        ({"temperature": -0.5}, {"temperature": 0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 2**40}, {"top_k": 2**31 - 1}),
        ({"top_p": 1.5, "min_p": -1}, {"top_p": 1, "min_p": 0}),
        ({"xtc_probability": 2, "xtc_threshold": -0.1}, {"xtc_probability": 1, "xtc_threshold": 0}),
        ({"adaptive_target": 3}, {"adaptive_target": 1}),
        ({"adaptive_target": -3}, {"adaptive_target": -3}),
        ({"stop": "x"}, {"stop": ["x"]}),
    ],
    ids=str,
)
async def test_settings_that_stand_for_others_are_reported_as_those(
    client: httpx.AsyncClient, asked: dict[str, Json], told: dict[str, Json]
) -> None:
    settings = (await complete(client, prompt=PROMPT, n_predict=0, **asked))["generation_settings"]
    assert settings == SETTINGS | {"max_tokens": 0, "n_predict": 0} | told


async def test_tokens_come_with_a_whole_answer_where_they_are_asked_for(client: httpx.AsyncClient) -> None:
    result = await complete(client, prompt=PROMPT, n_predict=5, return_tokens=True)
    assert await detokenize(client, result["tokens"]) == result["content"]


async def test_a_ban_keeps_a_token_out(client: httpx.AsyncClient) -> None:
    free = await complete(client, prompt=PROMPT, n_predict=1, temperature=0, return_tokens=True)
    banned = await complete(
        client, prompt=PROMPT, n_predict=1, temperature=0, return_tokens=True, logit_bias=[[free["tokens"][0], False]]
    )
    assert banned["tokens"] != free["tokens"]


@pytest.mark.parametrize("bias", [[["There", -100]], {"There": -100}, [["There", False]], {"There": False}])
async def test_a_text_in_logit_bias_stands_for_its_tokens(client: httpx.AsyncClient, bias: Json) -> None:
    tokens = (await client.post("/tokenize", json={"content": "There"})).json()["tokens"]
    result = await complete(client, prompt=PROMPT, n_predict=1, logit_bias=bias)
    assert [entry["token"] for entry in result["generation_settings"]["logit_bias"]] == tokens


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("Once", ["<s>Once"]),
        ([1, 300], ["<s>{300}"]),
        (["Once", 300], ["<s>Once{300}"]),
        ([300, "Once"], ["{300}Once"]),
        ([["Once", 300], [1, 300], "Once"], ["<s>Once{300}", "<s>{300}", "<s>Once"]),
        (["Once"], ["<s>Once"]),
        ({"prompt_string": "Once"}, ["<s>Once"]),
        ([{"prompt_string": "Once"}, "upon"], ["<s>Once", "<s>upon"]),
    ],
    ids=str,
)
async def test_a_prompt_may_be_text_and_tokens_and_several(client: httpx.AsyncClient, prompt: Json, read: list[str]) -> None:
    piece = await detokenize(client, [300])
    result = await complete(client, prompt=prompt, n_predict=1)
    results = result if isinstance(result, list) else [result]
    once = (await complete(client, prompt="Once", n_predict=1))["prompt"]
    assert once == "<s>Once"
    assert [result["prompt"].replace(" Once", "Once") for result in results] == [text.replace("{300}", piece) for text in read]


@pytest.mark.parametrize("n_characters", [LONG_TEXT, LONG_TEXT + 1])
async def test_a_prompt_is_read_as_tokenize_reads_it_however_long(client: httpx.AsyncClient, n_characters: int) -> None:
    # Longer than the context, so that the refusal tells how many tokens were read.
    text = ("A cow says </s> moo. " * n_characters)[:n_characters]
    tokens = (await client.post("/tokenize", json={"content": text, "add_special": True})).json()["tokens"]
    answer = await client.post("/completion", json={"prompt": text, "n_predict": 1})
    assert answer.json()["error"]["type"] == "exceed_context_size_error"
    assert answer.json()["error"]["n_prompt_tokens"] == len(tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 2},
        {"max_completion_tokens": 2},
        {"n_predict": 2, "max_tokens": 9},
        {"n_predict": 2.0},
        {"n_predict": 2, "temperature": None, "stop": None, "n": None, "logit_bias": None, "stream": None},
        {"n_predict": 2, "no_such_field": {"a": 1}, "cache_prompt": True, "id_slot": 3},
        {"n_cmpl": 1, "n_predict": 2},
    ],
    ids=str,
)
async def test_aliases_nulls_and_unknown_fields(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    assert (await complete(client, prompt=PROMPT, **fields))["tokens_predicted"] == 2


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
async def test_the_body_is_json_whatever_its_type_says(client: httpx.AsyncClient, content_type: str) -> None:
    answer = await client.post(
        "/completion", content=b'{"prompt": "Once", "n_predict": 1}', headers={"content-type": content_type}
    )
    assert answer.json()["tokens_predicted"] == 1
