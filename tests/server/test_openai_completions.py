import json

import httpx
import pytest

from tests.helpers import How
from tests.server.conftest import PROMPT
from tests.server.live import events_of
from tests.server.matchers import COUNT, LOGPROB, SOME_TEXT, TEXT, TIMINGS, Json, matching

ABOUT = {
    "id": matching("cmpl-[0-9a-f]{32}"),
    "object": "text_completion",
    "created": COUNT,
    "model": "storyteller",
    "system_fingerprint": matching(r"b\d+-[0-9a-f]{9}"),
}


async def complete(client: httpx.AsyncClient, **body: Json) -> Json:
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(client: httpx.AsyncClient, **body: Json) -> list[Json]:
    """The chunks, `[DONE]` left off."""
    answer = await client.post("/v1/completions", json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    *chunks, done = events_of(answer.text)
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


async def texts(client: httpx.AsyncClient, how: How, **body: Json) -> list[str]:
    if how == "whole":
        return [choice["text"] for choice in (await complete(client, **body))["choices"]]
    joined: dict[int, str] = {}
    for chunk in await stream(client, **body):
        [choice] = chunk["choices"]
        joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return [joined[index] for index in sorted(joined)]


async def test_a_whole_answer(client: httpx.AsyncClient) -> None:
    assert await complete(client, model="whatever", prompt=PROMPT, max_tokens=4, n=2) == {
        **ABOUT,
        "choices": [
            {"text": SOME_TEXT, "index": 0, "logprobs": None, "finish_reason": "length"},
            {"text": SOME_TEXT, "index": 1, "logprobs": None, "finish_reason": "length"},
        ],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 8,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": COUNT},
        },
        "timings": TIMINGS | {"predicted_n": 8},
    }


async def test_a_stream(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt=PROMPT, max_tokens=2, logit_bias={"300": -100})
    assert chunks == [
        {**ABOUT, "choices": [{"text": SOME_TEXT, "index": 0, "logprobs": None, "finish_reason": None}]},
        {**ABOUT, "choices": [{"text": SOME_TEXT, "index": 0, "logprobs": None, "finish_reason": None}]},
        {
            **ABOUT,
            "choices": [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}],
            "timings": TIMINGS | {"predicted_n": 2},
        },
    ]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_the_usage_of_all_branches_is_one_last_chunk_without_choices(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt=PROMPT, max_tokens=3, n=4, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1] == {
        **ABOUT,
        "choices": [],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 12,
            "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": COUNT},
        },
        "timings": TIMINGS | {"predicted_n": 12},
    }


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}], ids=str)
async def test_usage_comes_only_where_it_is_asked_for(client: httpx.AsyncClient, options: dict[str, Json]) -> None:
    assert all("usage" not in chunk for chunk in await stream(client, prompt=PROMPT, max_tokens=1, **options))


async def test_cached_tokens_are_those_that_were_not_computed(client: httpx.AsyncClient) -> None:
    prompt = "The quick brown fox of the third test in this file jumps over a dog that sleeps in the sun"
    first = await complete(client, prompt=prompt, max_tokens=1, n=3)
    second = await complete(client, prompt=prompt, max_tokens=1, n=3)
    n_prompt = first["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert (first["timings"]["prompt_n"], first["timings"]["cache_n"]) == (n_prompt, 2 * n_prompt)
    # The last token of a prompt is always computed, for its logits.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    assert (second["timings"]["prompt_n"], second["timings"]["cache_n"]) == (1, 3 * n_prompt - 1)


async def test_end_tokens_count_and_stop(client: httpx.AsyncClient, how: How) -> None:
    # Token 2 of the demo model is its end token.
    body = {"prompt": PROMPT, "logit_bias": {"2": 1000}, "stream_options": {"include_usage": True}}
    if how == "whole":
        answer = await complete(client, **body)
        [choice], usage = answer["choices"], answer["usage"]
    else:
        finished, last = await stream(client, **body)
        [choice], usage = finished["choices"], last["usage"]
    assert choice == {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert usage["completion_tokens"] == 1


async def test_a_stop_string_is_no_part_of_the_text(client: httpx.AsyncClient, how: How) -> None:
    free = (await texts(client, how, prompt=PROMPT, max_tokens=12, temperature=0))[0]
    word = free.split()[3]
    assert await texts(client, how, prompt=PROMPT, max_tokens=12, temperature=0, stop=word) == [free[: free.index(word)]]
    assert await texts(client, how, prompt=PROMPT, max_tokens=12, temperature=0, stop=[word, "zebra"]) == [
        free[: free.index(word)]
    ]


async def test_the_chunks_of_a_branch_join_to_its_tokens(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, prompt=[PROMPT, "A cow says"], max_tokens=24, n=2, logprobs=1)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(4):
        own = [choice for choice in choices if choice["index"] == index]
        tokens = [token for choice in own if choice["logprobs"] for token in choice["logprobs"]["content"]]
        spelt = b"".join(bytes(token["bytes"]) for token in tokens).decode()
        assert "".join(choice["text"] for choice in own) == spelt.removesuffix("</s>").removesuffix("<|im_end|>")


@pytest.mark.parametrize(
    "prompt", [["A cow says", PROMPT], [[1, 300, 301], [1, 302]], ["A cow says", [1, 300]]], ids=["texts", "tokens", "mixed"]
)
async def test_several_prompts_count_their_branches_on(client: httpx.AsyncClient, how: How, prompt: Json) -> None:
    n_prompt = [len(tokens) if isinstance(tokens, list) else {"A cow says": 4, PROMPT: 6}[tokens] for tokens in prompt]
    assert len(await texts(client, how, prompt=prompt, max_tokens=2, n=2)) == 4
    answer = await complete(client, prompt=prompt, max_tokens=2, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == sum(n_prompt)


async def test_a_whole_answer_lists_log_probabilities_both_ways(client: httpx.AsyncClient) -> None:
    [choice] = (await complete(client, prompt=PROMPT, max_tokens=3, logprobs=2))["choices"]
    entry = {"id": COUNT, "token": TEXT, "bytes": [], "logprob": LOGPROB, "top_logprobs": []}
    content = choice["logprobs"]["content"]
    assert [{**token, "bytes": [], "top_logprobs": []} for token in content] == [entry] * 3
    assert choice["logprobs"] == {
        "tokens": [token["token"] for token in content],
        "token_logprobs": [token["logprob"] for token in content],
        "top_logprobs": [{top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in content],
        "text_offset": [choice["text"].index(token["token"]) for token in content],
        "content": content,
    }
    assert [len(top) for top in choice["logprobs"]["top_logprobs"]] == [2, 2, 2]


async def logprobs_of(client: httpx.AsyncClient, how: How, **body: Json) -> dict[str, list[Json]]:
    """The lists of the one branch."""
    if how == "whole":
        return dict((await complete(client, **body))["choices"][0]["logprobs"])
    joined: dict[str, list[Json]] = {}
    for chunk in await stream(client, **body):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined.setdefault(name, []).extend(values)
    return joined


async def test_no_likely_tokens_still_brings_the_drawn_one(client: httpx.AsyncClient, how: How) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0}
    with_likely = await logprobs_of(client, how, **body, logprobs=2)
    alone = await logprobs_of(client, how, **body, logprobs=0)
    content = [token | {"top_logprobs": []} for token in with_likely["content"]]
    assert alone == with_likely | {"top_logprobs": [{}, {}, {}], "content": content}


async def test_offsets_count_the_text_of_the_tokens_also_where_it_is_held_back(client: httpx.AsyncClient, how: How) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 1}
    free = await logprobs_of(client, how, **body)
    # The stop string begins with every second token's text and never comes, so that this text is shown with a later token.
    waited = await logprobs_of(client, how, **body, stop=[token + "\N{BELL}" for token in free["tokens"][1::2]])
    lengths = [len(token) for token in free["tokens"]]
    assert free["text_offset"] == [sum(lengths[:position]) for position in range(12)]
    assert waited == free


async def test_offsets_of_a_split_character_are_where_it_begins(client: httpx.AsyncClient, how: How) -> None:
    # The bytes of é in the demo model's vocabulary, which has no piece for it; each is the only likely token in its turn.
    [first, second] = (await client.post("/tokenize", json={"content": "é"})).json()["tokens"][-2:]
    body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 1, "repeat_penalty": 1}
    drawn = await logprobs_of(client, how, **body, logit_bias={str(first): 1000, str(second): 995}, frequency_penalty=10)
    assert [token["id"] for token in drawn["content"]] == [first, second, first, second]
    assert drawn["text_offset"] == [0, 0, 1, 1]


async def test_a_stream_brings_each_token_with_its_log_probability(client: httpx.AsyncClient) -> None:
    body = {"prompt": PROMPT, "max_tokens": 3, "logprobs": 2, "temperature": 0}
    [whole] = (await complete(client, **body))["choices"]
    *tokens, end = [chunk["choices"][0] for chunk in await stream(client, **body)]
    for position, token in enumerate(tokens):
        assert {name: len(values) for name, values in token["logprobs"].items()} == dict.fromkeys(token["logprobs"], 1)
        assert token["logprobs"]["tokens"][0] == whole["logprobs"]["tokens"][position]
        assert token["logprobs"]["text_offset"][0] == whole["logprobs"]["text_offset"][position]
    assert (len(tokens), end["logprobs"], end["finish_reason"]) == (3, None, "length")


@pytest.mark.parametrize("fields", [{"echo": False, "suffix": "", "best_of": 1}, {"best_of": 2, "n": 2}, {"user": "me"}], ids=str)
async def test_a_neutral_value_asks_for_nothing(client: httpx.AsyncClient, fields: dict[str, Json]) -> None:
    answer = await complete(client, prompt=PROMPT, max_tokens=1, **fields)
    assert len(answer["choices"]) == fields.get("n", 1)


async def test_the_likeliest_of_several_completions_are_told_best_first(client: httpx.AsyncClient) -> None:
    asked = {"prompt": [PROMPT, "A cow says"], "max_tokens": 6, "seed": 3, "logprobs": 1, "temperature": 1.5}
    written = (await complete(client, **asked, n=5))["choices"]
    told = await complete(client, **asked, n=2, best_of=5, verbose=True)
    assert [choice["index"] for choice in told["choices"]] == [0, 1, 2, 3]

    def mean(choice: Json) -> float:
        logprobs = choice["logprobs"]["token_logprobs"]
        return float(sum(logprobs) / len(logprobs))

    best = [sorted(written[first : first + 5], key=mean, reverse=True)[:2] for first in (0, 5)]
    expected = [choice for choices in best for choice in choices]
    assert [choice["text"] for choice in told["choices"]] == [choice["text"] for choice in expected]
    assert [choice["logprobs"] for choice in told["choices"]] == [choice["logprobs"] for choice in expected]
    assert [choice["score"] for choice in told["choices"]] == [pytest.approx(mean(choice)) for choice in expected]
    assert not any("score" in choice for choice in written)
    # All that was written was paid for, and llama-server's own answer is that of the best.
    assert told["usage"]["completion_tokens"] > sum(len(choice["logprobs"]["tokens"]) for choice in told["choices"])
    assert told["__verbose"]["content"] == expected[0]["text"]
    assert len(told["__verbose"]["completion_probabilities"]) == len(expected[0]["logprobs"]["tokens"])


async def test_probabilities_by_which_texts_are_compared_are_told_only_where_asked_for(client: httpx.AsyncClient) -> None:
    [choice] = (await complete(client, prompt=PROMPT, max_tokens=4, seed=3, best_of=3))["choices"]
    assert choice["text"]
    assert choice["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "name", "message"),
    [
        ({"best_of": 3, "n": 2, "stream": True}, "best_of", "best_of above n cannot be streamed.*"),
        ({"best_of": 2, "n": 3}, "best_of", "best_of is 2; it must be at least n, 3"),
        ({"best_of": 257}, "best_of", "best_of is 257; it must be 1 to 256"),
        ({"best_of": 3, "beam_width": 3}, "best_of", "best_of cannot be combined with beam search.*"),
        ({"best_of": 3, "n": 2, "diverse": "beam"}, "best_of", "best_of cannot be combined with beam search.*"),
    ],
    ids=str,
)
async def test_what_best_of_cannot_be_is_said(
    client: httpx.AsyncClient, fields: dict[str, Json], name: str, message: str
) -> None:
    answer = await client.post("/v1/completions", json={"prompt": PROMPT, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["message"]) == (400, name, matching(message))


@pytest.mark.parametrize("fields", [{"n_cache_reuse": 256}], ids=str)
async def test_what_is_not_there_is_refused_by_name(client: httpx.AsyncClient, fields: dict[str, Json]) -> None:
    answer = await client.post("/v1/completions", json={"prompt": PROMPT, **fields})
    name = next(iter(fields))
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "code": 400,
            "message": matching(f"{name}.* is not supported; leave it out"),
            "type": "invalid_request_error",
            "param": name,
        }
    }
