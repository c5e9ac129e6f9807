"""Thoughts that end in time, and what a completion is held to beside them."""

import re
from typing import Any

import pytest

import weft
from tests.helpers import How, branches, ended_by

PROMPT = "Once upon a time there was a"
INSIDE = weft.ReasoningConfig(begins_inside=True)


async def test_a_thought_whose_budget_is_used_up_is_ended(engine: weft.Engine, how: How) -> None:
    free = await branches(engine, how, PROMPT, n=3, seed=2, max_tokens=12)
    for budget in (0, 1, 12):
        reasoning = weft.ReasoningConfig(begins_inside=True, budget=budget, message="\nEnough.")
        answer = await branches(engine, how, PROMPT, n=3, seed=2, max_tokens=60, reasoning=reasoning)
        for branch, one in zip(answer, free, strict=True):
            assert branch.token_ids[:budget] == one.token_ids[:budget]
            said = engine.model.detokenize(branch.token_ids[:budget])
            closed = re.sub("^ +", "", branch.text[len(said) :])
            assert re.match(r"\nEnough\. ?</think>", closed), branch.text
            assert len(branch.token_ids) == branch.usage.n_predicted, "what is forced is counted"


async def test_a_grammar_holds_after_the_thought(engine: weft.Engine, how: How) -> None:
    reasoning = weft.ReasoningConfig(begins_inside=True, budget=6)
    answer = await branches(engine, how, PROMPT, n=4, seed=4, grammar='root ::= "{" ("yes" | "no") "}"', reasoning=reasoning)
    for branch in answer:
        assert re.fullmatch(r"[\s\S]*</think>\{(yes|no)\}", branch.text), branch.text
        assert ended_by(branch) == "end"


async def test_a_schema_holds_after_the_thought(engine: weft.Engine, how: How) -> None:
    reasoning = weft.ReasoningConfig(begins_inside=True, budget=3)
    schema = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}'
    (branch,) = await branches(engine, how, PROMPT, seed=4, json_schema=schema, reasoning=reasoning)
    assert re.search(r"</think>\{\s*\"a\"\s*:\s*(true|false)\s*\}$", branch.text), branch.text


async def test_a_branch_begins_with_a_thought_or_with_the_grammar(engine: weft.Engine, how: How) -> None:
    less = engine.model.tokenize("<", add_special=False)[-1]
    reasoning = weft.ReasoningConfig(budget=4)
    for bias, begun in ((-1e3, ""), (1e3, r"<think>[\s\S]*</think>")):
        answer = await branches(
            engine, how, PROMPT, n=3, seed=1, grammar='root ::= "{" [a-z]{3} "}"', reasoning=reasoning, logit_bias=[(less, bias)]
        )
        assert all(re.fullmatch(begun + r"\{[a-z]{3}\}", branch.text) for branch in answer), [branch.text for branch in answer]


async def test_a_text_does_not_end_in_a_thought_that_a_grammar_follows(engine: weft.Engine, how: How) -> None:
    end = engine.model.eos_token
    assert end is not None
    options: dict[str, Any] = {"reasoning": weft.ReasoningConfig(begins_inside=True, budget=5), "logit_bias": [(end, 1e3)]}
    (free,) = await branches(engine, how, PROMPT, **options)
    assert (free.text, ended_by(free)) == ("", "end")
    (held,) = await branches(engine, how, PROMPT, grammar='root ::= "yes"', **options)
    assert (held.text.partition("</think>")[2], ended_by(held)) == ("yes", "end")


async def test_a_control_token_is_shown_where_it_is_preserved(engine: weft.Engine, how: How) -> None:
    end, begin = engine.model.eos_token, engine.model.bos_token
    assert end is not None
    assert begin is not None
    spelt = [engine.model.detokenize([token]) for token in (begin, end)]
    grammar = f'root ::= "a" "{spelt[0]}" "b"'
    biases = [(begin, 5.0), (end, 1e3)]
    (hidden,) = await branches(engine, how, PROMPT, grammar=grammar, logit_bias=biases)
    assert (hidden.text, hidden.token_ids[-1]) == ("ab", end)
    (shown,) = await branches(
        engine, how, PROMPT, grammar=grammar, logit_bias=biases, preserved_tokens=[*spelt, "no token of this model"]
    )
    assert (shown.text, ended_by(shown)) == (f"a{spelt[0]}b{spelt[1]}", "end")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"reasoning": weft.ReasoningConfig(ends=())}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(starts=())}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(starts=("",))}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(starts=("<t>",) * 17)}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(ends=("x" * 257,))}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(budget=-1)}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(budget=1, message="x" * 16_385)}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(budget=1, message="no" * 8_000)}, "reasoning"),
        ({"reasoning": weft.ReasoningConfig(message=5)}, "reasoning"),  # type: ignore[arg-type]
        ({"reasoning": "<think>"}, "reasoning"),
        ({"preserved_tokens": 5}, "preserved_tokens"),
        ({"preserved_tokens": ["a"] * 257}, "preserved_tokens"),
        ({"preserved_tokens": ["a" * 16_385]}, "preserved_tokens"),
    ],
)
async def test_what_is_wrong_with_a_thought_is_said(engine: weft.Engine, options: dict[str, Any], param: str) -> None:
    with pytest.raises(weft.InvalidRequestError) as refused:
        await engine.complete(PROMPT, **options)
    assert refused.value.param == param
