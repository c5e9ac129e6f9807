"""What was written comes back as text: it is computed in the tokens that it was written in, and so it is known."""

import random

import httpx
import pytest
from litestar.testing import AsyncTestClient

import weft
from tests.server.conftest import answers
from weft.request.internal import InternalRequest
from weft.server import create_app
from weft.settings import Settings

N_TURNS = 10


def letters(engine: weft.Engine) -> weft.RequestOptions:
    """An answer is written letter by letter, as no tokenizer cuts a text."""
    model = engine.model
    banned = [token for token in range(model.n_vocab) if len(model.token_bytes(token)) != 1]
    grammar = 'root ::= [a-z] (" "? ("dog" | "cat" | "and" | "the" | "friend" | "house" | "said")){20}'
    return {"logit_bias": [(token, -1e9) for token in banned], "ignore_eos": True, "grammar": grammar}


async def chat(engine: weft.Engine, seed: int, *, cache_answers: bool) -> tuple[list[int], list[int], int]:
    """A chat of ten turns whose answers are written letter by letter.

    Returns the tokens that each turn but the first computed, those that its new text has, and how many answers the tokenizer cuts
    otherwise than they were written.
    """
    # A beginning that no other chat has.
    text = f"Chat {random.Random(seed).getrandbits(64)}: once upon a time there was a dog.\n"
    computed, new, n_otherwise = [], [], 0
    for turn in range(N_TURNS):
        options: weft.RequestOptions = {**letters(engine), "max_tokens": 24, "seed": 100 * seed + turn}
        options["cache_answers"] = cache_answers
        answer = await engine.complete(text, **options)
        [branch] = answer.choices
        n_otherwise += engine.tokenize(branch.text, add_special=False) != list(branch.token_ids)
        more = f"\nAnd then, said number {turn}, what did they do?\n"
        computed.append(branch.usage.n_computed)
        new.append(len(engine.tokenize(more, add_special=False)))
        text += branch.text + more
    return computed[1:], new[:-1], n_otherwise


async def test_a_chat_whose_answers_are_cut_otherwise_computes_only_what_is_new(engine: weft.Engine) -> None:
    n_otherwise = 0
    for seed in range(3):
        computed, new, n = await chat(engine, seed, cache_answers=True)
        n_otherwise += n
        # The last token that was drawn, and the end of a word that the next text goes on with.
        assert all(n_computed <= n_new + 4 for n_computed, n_new in zip(computed, new, strict=True)), (computed, new)
    assert n_otherwise >= 2 * N_TURNS, f"{n_otherwise} of {3 * N_TURNS} answers are cut otherwise: the test shows something"


async def test_without_it_such_a_chat_computes_its_answers_again(engine: weft.Engine) -> None:
    kept, _, _ = await chat(engine, 11, cache_answers=True)
    again, _, n_otherwise = await chat(engine, 11, cache_answers=False)
    assert n_otherwise > N_TURNS // 2
    assert all(more > least for more, least in zip(again, kept, strict=True)), (again, kept)


async def test_the_prompt_spells_the_same_and_counts_what_is_computed(engine: weft.Engine) -> None:
    text = "Chat five: once upon a time there was a cat.\n"
    options: weft.RequestOptions = {**letters(engine), "seed": 3, "cache_answers": True, "max_tokens": 40}
    first = await engine.complete(text, **options)
    text += first.text + "\nThe end?\n"
    n_sent = len(engine.tokenize(text))
    options["explain_cache"] = True
    second = await engine.complete(text, **options)
    assert second.n_prompt == second.choices[0].usage.n_prompt
    assert second.n_prompt > n_sent, "the tokenizer makes as few tokens as it can"
    explanation = second.choices[0].explanation
    assert explanation is not None
    assert [one.cause for one in explanation.computed] == ["new"]


async def test_nobody_gets_the_tokens_of_somebody_elses_answer(engine: weft.Engine) -> None:
    text = "Chat six: once upon a time there was a bird.\n"
    options: weft.RequestOptions = {**letters(engine), "seed": 4, "cache_answers": True, "max_tokens": 40}

    def of(owner: str) -> InternalRequest:
        return InternalRequest(prompt=text, owner=owner, **options)

    first = await engine.complete(of("one"))
    text += first.text + "\nThe end?\n"
    other = await engine.complete(of("another"))
    own = await engine.complete(of("one"))
    assert other.n_prompt == len(engine.tokenize(text))
    assert own.n_prompt > other.n_prompt


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "not kept"])
async def test_a_chat_over_http_computes_what_was_answered_again_only_where_that_is_wanted(keeps: bool) -> None:
    served = weft.Engine(n_slots=1, n_ctx=1024, n_threads=1)
    app = create_app(served, Settings(keep_chat_answers=keeps))
    async with AsyncTestClient(app) as client:
        await answers(client, 200)
        n_computed, cause = await second_turn(client, served)
    # The new message, and what the template writes around it.
    assert (n_computed <= 30) == keeps
    assert cause == ("new" if keeps else "retokenized")


async def second_turn(client: httpx.AsyncClient, served: weft.Engine) -> tuple[int, str]:
    """How many tokens the second turn of a chat computes, and why, whose first answer was written letter by letter."""
    how = letters(served)
    body = {"logit_bias": how["logit_bias"], "grammar": how["grammar"], "max_tokens": 60, "seed": 1, "explain_cache": True}
    messages = [{"role": "user", "content": "Tell me a story."}]
    first = (await client.post("/v1/chat/completions", json=body | {"messages": messages})).json()
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    second = (await client.post("/v1/chat/completions", json=body | {"messages": messages})).json()
    return second["timings"]["prompt_n"], second["cache_explanation"]["computed"][0]["cause"]


THOUGHTS = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content and preserve_thinking %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
)


@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "left out"])
async def test_a_thought_that_the_template_keeps_is_not_computed_again(keeps: bool) -> None:
    served = weft.Engine(n_slots=1, n_ctx=1024, n_threads=1)
    body = {
        "grammar": "root ::= [a-z]{40,60}",
        "max_tokens": 100,
        "seed": 1,
        "chat_template_kwargs": {"preserve_thinking": keeps},
    }
    body |= {"reasoning_budget_tokens": 16, "reasoning_budget_message": " Enough."}
    async with AsyncTestClient(create_app(served, Settings(chat_template=THOUGHTS))) as client:
        await answers(client, 200)
        tokens = range(served.model.n_vocab)
        body["logit_bias"] = [[token, False] for token in tokens if not served.model.token_bytes(token).isalpha()]
        messages = [{"role": "user", "content": "Tell me a story."}]
        first = (await client.post("/v1/chat/completions", json=body | {"messages": messages})).json()
        said = first["choices"][0]["message"]
        assert said["reasoning_content"].endswith(" Enough.")
        messages += [said, {"role": "user", "content": "Go on."}]
        second = (await client.post("/v1/chat/completions", json=body | {"messages": messages})).json()
        n_new = len(served.tokenize("</assistant><user>Go on.</user><assistant><think>", add_special=False))
    n_computed = second["timings"]["prompt_n"]
    # Where it is left out, what was answered after it is computed again too.
    assert (n_computed <= n_new + 4) == keeps, (n_computed, n_new)
