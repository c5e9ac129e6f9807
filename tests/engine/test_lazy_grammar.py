"""Grammars that wait for a trigger."""

import re
from typing import Any

import pytest

import weft
from tests.helpers import How, branches, ended_by
from weft import GrammarTrigger

PROMPT = "Once upon a time there was a"


async def test_nothing_is_held_to_before_the_trigger(engine: weft.Engine, how: How) -> None:
    free = await branches(engine, how, PROMPT, n=4, seed=1, max_tokens=60)
    options: weft.RequestOptions = {"n": 4, "seed": 1, "max_tokens": 60, "grammar_lazy": True}
    never = GrammarTrigger("word", "<never said>")
    lazy: weft.RequestOptions = {**options, "grammar": 'root ::= "<never said>"', "grammar_triggers": [never]}
    held = await branches(engine, how, PROMPT, **lazy)
    assert [branch.token_ids for branch in held] == [branch.token_ids for branch in free]
    # Not lazy, triggers are of no account.
    (at_once,) = await branches(engine, how, PROMPT, grammar='root ::= "yes"', grammar_triggers=[never])
    assert at_once.text == "yes"


@pytest.mark.parametrize(
    ("trigger", "root"),
    [
        (GrammarTrigger("word", "name was"), '"name was"'),
        (GrammarTrigger("pattern", "[a-z] (name) wa"), '"name was"'),
        (GrammarTrigger("pattern", "name\\swas"), '"name was"'),
        (GrammarTrigger("pattern_full", "[\\s\\S]*?(name was)[\\s\\S]*"), '"name was"'),
        (GrammarTrigger("pattern_full", "[^.]*?name( was)[\\s\\S]*"), '" was"'),
    ],
    ids=["word", "group", "match", "full", "later"],
)
async def test_from_the_trigger_on_the_text_follows_the_grammar(
    engine: weft.Engine, how: How, trigger: GrammarTrigger, root: str
) -> None:
    free = await branches(engine, how, PROMPT, n=4, seed=1, max_tokens=120)
    met = ["name was" in branch.text for branch in free]
    assert any(met)
    grammar = f'root ::= {root} "<call>" [0-9]{{3}}'
    held = await branches(
        engine, how, PROMPT, n=4, seed=1, max_tokens=120, grammar=grammar, grammar_lazy=True, grammar_triggers=[trigger]
    )
    for branch, one, is_met in zip(held, free, met, strict=True):
        if is_met:
            begun, called = branch.text.split("<call>")
            assert one.text.startswith(begun)
            assert begun.endswith("name was")
            assert re.fullmatch("[0-9]{3}", called), branch.text
            assert ended_by(branch) == "end"
        else:
            assert branch.text == one.text


async def test_a_token_begins_the_grammar(engine: weft.Engine, how: How) -> None:
    begin = engine.model.bos_token
    assert begin is not None
    spelt = engine.model.detokenize([begin])
    # A word that is one token is this token.
    for trigger in (GrammarTrigger("token", token=begin), GrammarTrigger("word", spelt)):
        options: weft.RequestOptions = {
            "grammar": f'root ::= "{spelt}" "call" [0-9]',
            "grammar_lazy": True,
            "grammar_triggers": [trigger],
            "logit_bias": [(begin, 1e3)],
            "preserved_tokens": [spelt],
        }
        (branch,) = await branches(engine, how, PROMPT, **options)
        assert re.fullmatch(f"{spelt}call[0-9]", branch.text), branch.text


async def test_triggers_are_not_looked_for_in_thoughts(engine: weft.Engine, how: How) -> None:
    reasoning = weft.ReasoningConfig(begins_inside=True, budget=30)
    (branch,) = await branches(
        engine,
        how,
        PROMPT,
        seed=3,
        max_tokens=200,
        reasoning=reasoning,
        grammar='root ::= [a-z] [a-z] "<call>"',
        grammar_lazy=True,
        grammar_triggers=[GrammarTrigger("pattern", "[a-z]{2}$"), GrammarTrigger("pattern", "([a-z]{2})<")],
    )
    inside, _, after = branch.text.partition("</think>")
    assert len(re.findall("[a-z]{2}", inside)) > 5
    assert after.endswith("<call>")
    assert ended_by(branch) == "end"


@pytest.mark.parametrize(
    ("triggers", "message"),
    [
        ([], "at least one trigger"),
        ([GrammarTrigger("word", "")], "an empty word"),
        ([GrammarTrigger("pattern", "a(?=b)")], "look-around"),
        ([GrammarTrigger("pattern", "(a")], "is invalid at byte 0"),
        ([GrammarTrigger("pattern", "(?:a{0,200}){0,200}")], "too large"),
        ([GrammarTrigger("word", "a!")] * 65, "65 triggers"),
        ([GrammarTrigger("word", "a!" * 8193)], "16386 bytes"),
        ([GrammarTrigger("word", "</s>")], "preserved_tokens"),
        ([GrammarTrigger("token", token=10**6)], "is not in the vocabulary"),
        ([GrammarTrigger("token")], "must be a weft.GrammarTrigger"),
        ([GrammarTrigger("glyph", "a")], "kind 'glyph'"),  # type: ignore[arg-type]
        (["a"], "must be a weft.GrammarTrigger"),
        (5, "must be a sequence of weft.GrammarTrigger"),
    ],
)
async def test_what_is_wrong_with_a_trigger_is_said(
    engine: weft.Engine,
    triggers: Any,  # noqa: ANN401 (what is no trigger too)
    message: str,
) -> None:
    with pytest.raises(weft.InvalidRequestError, match=re.escape(message)) as refused:
        await engine.complete(PROMPT, grammar="root ::= .*", grammar_lazy=True, grammar_triggers=triggers)
    assert refused.value.param == "grammar_triggers"


async def test_what_waits_must_be_there(engine: weft.Engine) -> None:
    with pytest.raises(weft.InvalidRequestError) as refused:
        await engine.complete(PROMPT, grammar_lazy=True, grammar_triggers=[GrammarTrigger("word", "a!")])
    assert refused.value.param == "grammar_lazy"
