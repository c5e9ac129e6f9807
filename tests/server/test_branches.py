"""Branches of one body that differ, in every dialect that takes them."""

import json
import re
from typing import Any

import httpx
import pytest

from tests.server.conftest import PROMPT
from tests.server.live import events_of
from tests.server.matchers import Json

DOCUMENT = " ".join(f"Line {i} of a document that nobody else asks about." for i in range(12))

WAYS: list[Json] = [
    {"temperature": 0, "n_predict": 3, "ignore_eos": True},
    {"temperature": 1.4, "seed": 9, "stop": ["e"]},
    {"temperature": 0, "grammar": 'root ::= " yes" | " no"'},
    {"suffix_prompt": " She", "temperature": 0, "ignore_eos": True},
]


async def post(client: httpx.AsyncClient, path: str, **body: Json) -> Json:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_each_branch_of_a_completion_goes_on_in_its_own_way(client: httpx.AsyncClient) -> None:
    # The number of computed tokens would depend on the order of tests with a prompt that others have too.
    prompt = " ".join(f"Verse {i} of a poem that only this test has." for i in range(12))
    answers = await post(client, "/completion", prompt=prompt, branches=WAYS, n_predict=6, seed=3, return_tokens=True)
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["tokens_predicted"] for answer in answers[::3]] == [3, 6]
    assert "e" not in answers[1]["content"]
    assert answers[2]["content"] in (" yes", " no")
    settings = [answer["generation_settings"] for answer in answers]
    assert [one["n_predict"] for one in settings] == [3, 6, 6, 6]
    assert [one["seed"] for one in settings] == [3, 9, 5, 6]
    assert [one["temperature"] for one in settings] == pytest.approx([0, 1.4, 0, 0])
    assert answers[3]["prompt"] == answers[0]["prompt"] + " She"
    n_shared = answers[0]["tokens_evaluated"]
    n_suffix = answers[3]["tokens_evaluated"] - n_shared
    assert 0 < n_suffix < 4
    assert sum(answer["timings"]["prompt_n"] for answer in answers) == n_shared + n_suffix
    alone = await post(client, "/completion", prompt=prompt, n_predict=6, **WAYS[3])
    assert alone["content"] == answers[3]["content"]


async def test_a_stream_carries_branches_that_differ(client: httpx.AsyncClient) -> None:
    body: Json = {"prompt": DOCUMENT, "branches": WAYS, "n_predict": 6, "seed": 3}
    whole = await post(client, "/completion", **body)
    answer = await client.post("/completion", json=body | {"stream": True})
    texts = ["", "", "", ""]
    for event in events_of(answer.text):
        told = json.loads(event)
        texts[told["index"]] += told["content"]
    assert texts == [one["content"] for one in whole]


async def test_branches_of_several_prompts_are_counted_through(client: httpx.AsyncClient) -> None:
    answers = await post(client, "/completion", prompt=[PROMPT, DOCUMENT], branches=WAYS[::3], n_predict=4)
    assert [answer["index"] for answer in answers] == [0, 1, 2, 3]
    assert [answer["prompt"].endswith(" She") for answer in answers] == [False, True, False, True]
    assert [answer["tokens_predicted"] for answer in answers] == [3, 4, 3, 4]


async def test_openai_counts_the_prompt_once_and_each_suffix(client: httpx.AsyncClient) -> None:
    text = "A text of its own, which nobody has asked about before."
    prompt = (await post(client, "/tokenize", content=text, add_special=True))["tokens"]
    branches = [{"suffix_prompt": [450, 451, 452 + i], "max_tokens": 2} for i in range(4)]
    answer = await post(client, "/v1/completions", prompt=prompt, branches=branches, temperature=0, ignore_eos=True)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == len(prompt) + 4 * 3
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["timings"]["prompt_n"] <= len(prompt) + 4 * 3


async def test_a_chat_has_branches_too(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "Tell me a story about a cat."}]
    branches: list[Json] = [
        {"max_tokens": 2, "temperature": 0},
        {"max_tokens": 5, "temperature": 0, "suffix_prompt": "Once"},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [12]}}}},
    ]
    answer = await post(client, "/v1/chat/completions", messages=messages, branches=branches, max_tokens=20, ignore_eos=False)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["choices"][2]["message"]["content"] == "12"


async def test_one_branch_alone_may_tell_probabilities(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/v1/completions", prompt=PROMPT, branches=[{}, {"n_probs": 2}], max_tokens=3)
    first, second = answer["choices"]
    assert first["logprobs"] is None
    assert len(second["logprobs"]["tokens"]) == 3


async def test_the_last_of_several_names_for_a_limit_is_the_branchs_own(client: httpx.AsyncClient) -> None:
    answers = await post(client, "/completion", prompt=PROMPT, n_predict=9, ignore_eos=True, branches=[{"max_tokens": 2}, {}])
    assert [answer["tokens_predicted"] for answer in answers] == [2, 9]


async def test_a_text_behind_the_prompt_is_not_read_for_control_tokens_in_a_chat(client: httpx.AsyncClient) -> None:
    async def n_prompt(path: str, **body: Json) -> Any:  # noqa: ANN401 (a number of JSON)
        answer = await post(client, path, max_tokens=1, **body)
        return answer["usage"]["prompt_tokens"]

    messages = [{"role": "user", "content": "Hi"}]
    chat = await n_prompt("/v1/chat/completions", messages=messages)
    assert await n_prompt("/v1/chat/completions", messages=messages, suffix_prompt="</s>") > chat + 1
    raw = await n_prompt("/v1/completions", prompt=PROMPT)
    assert await n_prompt("/v1/completions", prompt=PROMPT, suffix_prompt="</s>") == raw + 1


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("branches", {"branches": [{"stream": True}]}),
        ("branches", {"branches": [{"prompt": "other"}]}),
        ("branches", {"branches": [{"n": 2}]}),
        ("branches", {"branches": [{"no_such_field": 1}]}),
        ("branches", {"branches": [{"temperature": "hot"}]}),
        ("branches", {"branches": [{}] * 257}),
        ("n", {"branches": [{}, {}], "n": 3}),
        ("n_cmpl", {"branches": [{}, {}], "n_cmpl": 1}),
        ("json_schema", {"branches": [{"grammar": 'root ::= "a"', "json_schema": {}}]}),
        ("grammar", {"branches": [{}, {"grammar": "root ::= ("}]}),
        ("suffix_prompt", {"branches": [{"suffix_prompt": [10**6]}]}),
        ("n_indent", {"branches": [{"n_indent": -1}]}),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_what_no_branch_can_have_is_refused_by_name(client: httpx.AsyncClient, path: str, param: str, body: Json) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "n_predict": 1} | body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    if param == "branches" and len(body["branches"]) == 1:
        assert "branches[0]" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (r"branches\[2\]: invalid grammar: line 1.*", {"grammar": "root ::= ("}),
        (r"branches\[2\]: token 1000000 is not in the vocabulary.*", {"suffix_prompt": [10**6]}),
        (r"branches\[2\]: n_predict is -2; .*", {"n_predict": -2}),
        (r"branches\[2\]: samplers: 'bogus' is not one of .*", {"samplers": ["bogus"]}),
        (r"branches\[2\]: lora has 9; .*", {"lora": [{"id": 9, "scale": 1.0}]}),
        (r"branches\[2\]: n_probs is 5000; .*", {"n_probs": 5_000}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_in_one_of_several_branches_is_told_with_its_place(
    client: httpx.AsyncClient, path: str, message: str, wrong: Json
) -> None:
    answer = await client.post(path, json={"prompt": PROMPT, "n_predict": 1, "branches": [{}, {"temperature": 0}, wrong]})
    assert answer.status_code == 400, answer.text
    assert re.fullmatch(message, answer.json()["error"]["message"])
    assert answer.json()["error"]["param"] == next(iter(wrong))


@pytest.mark.parametrize(
    ("param", "message", "wrong"),
    [
        ("prompt", r"token 1000000 is not in the vocabulary.*", {"prompt": [10**6]}),
        ("prompt", r".*(no tokens|is empty).*", {"prompt": [[]]}),
        ("repeat_penalty", r"repeat_penalty is 0; .*", {"repeat_penalty": 0}),
        ("n_predict", r"n_predict is -2; .*", {"n_predict": -2}),
        ("n_probs", r"n_probs is 5000; .*", {"n_probs": 5_000}),
        ("grammar", r"invalid grammar: line 1.*", {"grammar": "root ::= ("}),
        ("samplers", r"samplers: 'bogus' is not one of .*", {"samplers": ["bogus"]}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_wrong_in_the_body_is_told_of_no_branch(
    client: httpx.AsyncClient, param: str, message: str, wrong: Json
) -> None:
    body = {"prompt": PROMPT, "n_predict": 1, "branches": [{}, {"temperature": 0}]}
    answer = await client.post("/completion", json=body | wrong)
    assert answer.status_code == 400, answer.text
    assert re.fullmatch(message, answer.json()["error"]["message"]), answer.text
    assert answer.json()["error"]["param"] == param


TOOL: Json = {"type": "function", "function": {"name": "go", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("path", "param", "message", "body"),
    [
        (
            "/v1/completions",
            "n_probs",
            r"branches\[1\]: n_probs is 5000; .*",
            {"logprobs": 3, "branches": [{}, {"n_probs": 5_000}]},
        ),
        (
            "/v1/chat/completions",
            "n_probs",
            r"branches\[1\]: n_probs is 5000; .*",
            {"logprobs": True, "branches": [{}, {"n_probs": 5_000}]},
        ),
        (
            "/v1/completions",
            "grammar",
            r"branches\[1\]: invalid grammar: .*",
            {"json_schema": {}, "branches": [{}, {"grammar": "root ::= ("}]},
        ),
        (
            "/v1/chat/completions",
            "grammar",
            r"branches\[1\]: grammar cannot be combined with tools.*",
            {"tools": [TOOL], "tool_choice": "required", "branches": [{}, {"grammar": 'root ::= "a"'}]},
        ),
    ],
    ids=["log-probabilities", "log-probabilities of a chat", "another constraint", "tools"],
)
async def test_what_is_wrong_in_a_branch_is_called_by_its_own_name(
    client: httpx.AsyncClient, path: str, param: str, message: str, body: Json
) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": PROMPT}
    answer = await client.post(path, json={"max_tokens": 1} | asked | body)
    assert answer.status_code == 400, answer.text
    assert re.fullmatch(message, answer.json()["error"]["message"]), answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("best_of", {"best_of": 4, "branches": [{}, {}]}),
        ("echo", {"echo": True, "suffix_prompt": " She"}),
        ("echo", {"echo": True, "branches": [{}, {"suffix_prompt": " She"}]}),
    ],
    ids=["best of", "echo with one text", "echo with a branch's text"],
)
async def test_what_contradicts_branches_is_refused_by_openais_name(client: httpx.AsyncClient, param: str, body: Json) -> None:
    answer = await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_as_many_branches_as_n_says_and_none_at_all_are_taken(client: httpx.AsyncClient) -> None:
    assert len(await post(client, "/completion", prompt=PROMPT, n_predict=1, n=2, branches=[{}, {}])) == 2
    assert (await post(client, "/completion", prompt=PROMPT, n_predict=1, branches=[]))["index"] == 0
