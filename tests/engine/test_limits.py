"""What ends a branch beside its tokens: time, and lines that are indented too little."""

import weft

PROMPT = "One day, a girl said:\n"


def of_lines(engine: weft.Engine) -> weft.Request:
    """A text of 200 tokens in lines: new lines are made likely."""
    [new_line] = engine.tokenize("\n", add_special=False)[-1:]
    return weft.Request(prompt=PROMPT, max_tokens=200, temperature=0, ignore_eos=True, logit_bias=[(new_line, 3.0)])


async def test_time_ends_a_branch_at_its_next_new_line(engine: weft.Engine) -> None:
    request = of_lines(engine)
    free = (await engine.complete(request)).text
    assert free.count("\n") > 1
    # Any time is too long, but for the first token, which takes none.
    [branch] = (await engine.complete(request, max_predict_ms=0)).choices
    assert branch.finish_reason == "length"
    assert branch.text.count("\n") in (1, 2)
    assert "\n" in branch.text
    assert free.startswith(branch.text)
    assert len(branch.token_ids) < 200
    assert (await engine.complete(request, max_predict_ms=3_600_000)).text == free


async def test_a_line_that_is_indented_too_little_ends_a_branch(engine: weft.Engine) -> None:
    request = of_lines(engine)
    free = (await engine.complete(request)).text
    first, second = free.split("\n")[:2]
    indentation = second[: len(second) - len(second.lstrip(" "))]
    assert len(indentation) < 8
    [branch] = (await engine.complete(request, n_indent=8)).choices
    assert (branch.text, branch.finish_reason) == (f"{first}\n{indentation}", "length")
    assert len(branch.token_ids) < 200


async def test_a_stream_shows_no_more_than_the_whole_answer(engine: weft.Engine) -> None:
    request = of_lines(engine)
    whole = (await engine.complete(request, n_indent=8)).text
    shown = ""
    async for event in engine.stream(request, n_indent=8):
        if isinstance(event, weft.Token):
            shown += event.text
    assert shown == whole
