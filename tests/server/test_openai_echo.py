"""`echo`: what is shown of the prompt, and what evaluations read of its tokens."""

import json

import httpx
import pytest

from tests.helpers import How
from tests.server.conftest import PROMPT
from tests.server.live import events_of
from tests.server.matchers import LOGPROB, Json

NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def choices(client: httpx.AsyncClient, how: How, **body: Json) -> list[Json]:
    """The text, the lists and the reason of each branch, through either door."""
    given = await client.post("/v1/completions", json={"stream": how == "stream", "echo": True, **body})
    assert given.status_code == 200, given.text
    if how == "whole":
        return list(given.json()["choices"])
    joined: dict[int, Json] = {}
    for event in events_of(given.text)[:-1]:
        [choice] = json.loads(event)["choices"]
        own = joined.setdefault(choice["index"], {"text": "", "index": choice["index"], "logprobs": None})
        own["text"] += choice["text"]
        own["finish_reason"] = choice["finish_reason"]
        if choice["logprobs"] is not None:
            own["logprobs"] = {
                name: [*(own["logprobs"] or {}).get(name, []), *values] for name, values in choice["logprobs"].items()
            }
    return [joined[index] for index in sorted(joined)]


async def tokens_of(client: httpx.AsyncClient, text: str) -> list[Json]:
    body = {"content": text, "add_special": True, "with_pieces": True}
    return list((await client.post("/tokenize", json=body)).json()["tokens"])


async def test_the_text_begins_with_the_prompt_in_every_branch(client: httpx.AsyncClient, how: How) -> None:
    body = {"prompt": [PROMPT, "A cow says"], "max_tokens": 4, "n": 2, "temperature": 0}
    plain = await choices(client, how, **body, echo=False)
    echoed = await choices(client, how, **body)
    assert [choice["text"] for choice in echoed] == [
        begun + choice["text"] for begun, choice in zip([PROMPT, PROMPT, "A cow says", "A cow says"], plain, strict=True)
    ]
    assert [choice["logprobs"] for choice in echoed] == [None] * 4


async def test_tokens_of_a_prompt_are_spelt_out(client: httpx.AsyncClient, how: How) -> None:
    tokens = [token["id"] for token in await tokens_of(client, PROMPT)]
    [choice] = await choices(client, how, prompt=tokens, max_tokens=0)
    assert choice["text"] == "<s>" + PROMPT


@pytest.mark.parametrize("n_drawn", [0, 1, 3])
@pytest.mark.parametrize("n_top", [1, 3])
async def test_the_lists_cover_the_prompt_and_what_was_drawn(
    client: httpx.AsyncClient, how: How, n_drawn: int, n_top: int
) -> None:
    pieces = [token["piece"] for token in await tokens_of(client, PROMPT)]
    n_prompt, n_all = len(pieces), len(pieces) + n_drawn
    [choice] = await choices(client, how, prompt=PROMPT, max_tokens=n_drawn, logprobs=n_top, temperature=0)
    logprobs = choice["logprobs"]
    assert {name: len(values) for name, values in logprobs.items()} == {**dict.fromkeys(NAMES, n_all), "content": n_drawn}
    assert logprobs["tokens"][:n_prompt] == pieces
    assert logprobs["token_logprobs"] == [None, *[LOGPROB] * (n_all - 1)]
    first, *tops = logprobs["top_logprobs"]
    assert first is None
    # Two that are spelt alike are one name.
    assert all(1 <= len(top) <= n_top for top in tops)
    # What the vocabulary puts before the prompt takes no place in the text that was sent.
    placed = [choice["text"][offset:] for offset in logprobs["text_offset"]]
    assert placed[0] == placed[1] == choice["text"]
    assert all(text.startswith(token) for text, token in zip(placed[1:], logprobs["tokens"][1:], strict=True))
    assert choice["finish_reason"] == "length"


async def test_a_prompt_is_as_likely_as_its_tokens_drawn_one_after_the_other(client: httpx.AsyncClient, how: How) -> None:
    drawn = (await choices(client, how, prompt=PROMPT, max_tokens=5, logprobs=1, temperature=0))[0]
    [read] = await choices(client, how, prompt=drawn["text"], max_tokens=0, logprobs=1)
    assert read["logprobs"]["tokens"] == drawn["logprobs"]["tokens"]
    assert read["logprobs"]["token_logprobs"][1:] == pytest.approx(drawn["logprobs"]["token_logprobs"][1:], abs=0.05)


async def test_the_likeliest_token_of_a_greedy_text_is_the_one_that_is_there(client: httpx.AsyncClient, how: How) -> None:
    tokens = [token["id"] for token in await tokens_of(client, PROMPT)]
    drawn = (await choices(client, how, prompt=tokens, max_tokens=6, temperature=0))[0]["text"].removeprefix("<s>")
    whole = [token["id"] for token in await tokens_of(client, drawn)]
    # This is what lm-evaluation-harness asks, and how it reads the answer.
    [choice] = await choices(client, how, prompt=[whole], max_tokens=1, logprobs=1, temperature=0, seed=1234)
    continuation = slice(len(tokens), -1)
    given = choice["logprobs"]["token_logprobs"][continuation]
    assert given == [max(top.values()) for top in choice["logprobs"]["top_logprobs"][continuation]]
    assert len(given) == 6


async def test_no_likely_tokens_still_bring_those_of_the_prompt(client: httpx.AsyncClient, how: How) -> None:
    [choice] = await choices(client, how, prompt=PROMPT, max_tokens=1, logprobs=0)
    assert choice["logprobs"]["top_logprobs"] == [None, *[{}] * 6]
    assert choice["logprobs"]["token_logprobs"] == [None, *[LOGPROB] * 6]


async def test_a_prompt_is_not_read_for_log_probabilities_that_are_not_shown(client: httpx.AsyncClient) -> None:
    prompt = "The old mill by the river has not turned for many years, and yet the miller comes each day to look at it"
    for _ in range(2):
        answer = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1, "logprobs": 1})
    # All but the last token are cached: the prompt's own log-probabilities would have to compute it again.
    assert answer.json()["timings"]["prompt_n"] == 1
