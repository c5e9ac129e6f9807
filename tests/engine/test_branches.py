"""Branches of one request that differ: what each says of itself counts, and what they share is computed once."""

import pytest

import weft
from tests.helpers import prompt_of
from weft import InvalidRequestError
from weft.request import BranchOptions


async def test_questions_about_one_document_compute_it_once(engine: weft.Engine) -> None:
    document = prompt_of(200, "document")
    questions = [prompt_of(10, f"question {i}") for i in range(16)]
    before = engine.stats()
    branches: list[BranchOptions] = [{"suffix_prompt": question} for question in questions]
    answer = await engine.complete(document, branches=branches, max_tokens=4, temperature=0, ignore_eos=True)
    assert engine.stats().n_computed - before.n_computed == 200 + 16 * 10
    assert answer.n_computed == 200 + 16 * 10
    assert answer.n_prompt == 200
    assert [branch.index for branch in answer.choices] == list(range(16))
    assert all(branch.usage.n_prompt == 210 for branch in answer.choices)
    for question, branch in zip(questions[:3], answer.choices[:3], strict=True):
        alone = await engine.complete([*document, *question], max_tokens=4, temperature=0, ignore_eos=True)
        assert alone.text == branch.text


async def test_branches_without_a_text_of_their_own_compute_nothing_more(engine: weft.Engine) -> None:
    prompt = prompt_of(100, "temperatures")
    before = engine.stats()
    branches: list[BranchOptions] = [
        {"temperature": 0.0, "max_tokens": 3},
        {"temperature": 1.5, "seed": 11},
        {"temperature": 1.5},
        {"temperature": 1.5, "stop": ["e"], "logprobs": 2},
    ]
    answer = await engine.complete(prompt, branches=branches, max_tokens=8, seed=5, ignore_eos=True)
    assert engine.stats().n_computed - before.n_computed == 100
    assert [len(branch.token_ids) for branch in answer.choices[:3]] == [3, 8, 8]
    assert [bool(branch.logprobs) for branch in answer.choices] == [False, False, False, True]
    assert "e" not in answer.texts[3]
    assert answer.seed == 5
    for branch, seed in ((1, 11), (2, 5 + 2)):
        alone = await engine.complete(prompt, temperature=1.5, max_tokens=8, ignore_eos=True, seed=seed)
        assert alone.text == answer.texts[branch]


async def test_each_branch_may_have_its_own_constraint(engine: weft.Engine) -> None:
    branches: list[BranchOptions] = [
        {"grammar": 'root ::= "yes"'},
        {"json_schema": '{"enum": [7]}'},
        {"grammar": None, "max_tokens": 2},
        {},
    ]
    answer = await engine.complete("Once", branches=branches, grammar='root ::= "no"', max_tokens=9, temperature=0)
    assert [answer.texts[i] for i in (0, 1, 3)] == ["yes", "7", "no"]
    assert answer.texts[2] != "no"


async def test_a_text_goes_on_where_the_prompt_ends(engine: weft.Engine) -> None:
    model = engine.model
    for text in (" She", "ing along", "\n\nThen", "é", "", " ", "  two"):
        tokens = model.tokenize_on(text)
        # What goes before it decides whether a space is shown that a vocabulary puts before a text.
        before = model.tokenize("Once")
        assert engine.detokenize([*before, *tokens]) == engine.detokenize(before) + text
        assert model.bos_token not in tokens
    spelt = await engine.complete("Once upon", suffix_prompt=" a time", max_tokens=3, temperature=0)
    joined = [*model.tokenize("Once upon"), *model.tokenize_on(" a time")]
    assert spelt.text == (await engine.complete(joined, max_tokens=3, temperature=0)).text
    assert spelt.n_prompt == len(model.tokenize("Once upon"))
    assert spelt.choices[0].usage.n_prompt == len(joined)


@pytest.mark.parametrize(
    ("param", "options"),
    [
        ("branches", {"branches": [{}] * 257}),
        ("branches", {"branches": [{"priority": 1}]}),
        ("branches", {"branches": [{"n": 2}]}),
        ("branches", {"branches": ["short"]}),
        ("branches", {"branches": "short"}),
        ("branches", {"branches": {"temperature": 0}}),
        ("n", {"branches": [{}, {}], "n": 3}),
        ("temperature", {"branches": [{}, {"temperature": "hot"}]}),
        ("suffix_prompt", {"branches": [{"suffix_prompt": [-1]}]}),
        ("suffix_prompt", {"suffix_prompt": 3}),
        ("suffix_prompt", {"suffix_prompt": "\ud800"}),
        ("stop", {"branches": [{"stop": [""]}, {}]}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_branches_that_cannot_be_are_refused_by_name(engine: weft.Engine, param: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await engine.complete("Once", max_tokens=1, **options)  # type: ignore[arg-type]
    assert refused.value.param == param
    assert (await engine.complete("Once", max_tokens=1)).text


@pytest.mark.parametrize(
    "wrong", [{"temperature": "hot"}, {"grammar": "root ::= ("}, {"stop": [""]}, {"logprobs": 5_000}], ids=str
)
async def test_what_is_wrong_in_one_of_several_branches_is_told_with_its_place(
    engine: weft.Engine, wrong: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequestError, match=r"^branches\[1\]: "):
        await engine.complete("Once", max_tokens=1, branches=[{}, wrong, {}])  # type: ignore[list-item]


async def test_a_prompt_that_is_too_long_with_one_suffix_queues_nothing(engine: weft.Engine) -> None:
    n_ctx = engine.limits.n_ctx_slot
    before = engine.stats()
    with pytest.raises(weft.ContextOverflowError):
        await engine.complete(prompt_of(50, "long"), branches=[{}, {"suffix_prompt": prompt_of(n_ctx, "suffix")}], max_tokens=1)
    assert engine.stats().n_computed == before.n_computed
