"""Branches of a stream are forked: what others continue of them is computed once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import weft
from tests.helpers import prompt_of, wait_until
from weft import InvalidRequestError


async def text_of_first(stream: weft.Stream, n: int, index: int = 0) -> str:
    """The text of a branch once it has drawn so many tokens."""
    text = ""
    async for event in stream:
        if isinstance(event, weft.Token) and event.index == index:
            text += event.text
            if event.n_predicted >= n:
                return text
    raise AssertionError("it has ended before")


async def ends(stream: weft.Stream) -> dict[int, tuple[str, weft.Usage]]:
    """The texts of what is left of a stream, and what each cost."""
    texts: dict[int, str] = {}
    usages: dict[int, weft.Usage] = {}
    async for event in stream:
        if isinstance(event, weft.Token | weft.Finished):
            texts[event.index] = texts.get(event.index, "") + event.text
        if isinstance(event, weft.Finished):
            usages[event.index] = event.usage
    return {index: (texts[index], usages[index]) for index in usages}


async def test_forks_at_the_end_of_a_running_branch_compute_nothing(engine: weft.Engine) -> None:
    # As long as it may be, so that it runs when it is forked however slow the machine is.
    stream = engine.stream(prompt_of(100, "forked"), temperature=0.0, ignore_eos=True)
    await text_of_first(stream, 5)
    before = engine.stats()
    assert await stream.fork(0, n=2) == [1, 2]
    await text_of_first(stream, 1, index=2)
    for index in range(3):
        stream.cancel(index)
    told = await ends(stream)
    assert told.keys() == {0, 1, 2}
    for index in (1, 2):
        _, usage = told[index]
        assert (usage.n_computed, usage.n_cached >= 105) == (0, True)
    stats = engine.stats()
    assert stats.branches.n_forked - before.branches.n_forked == 2
    assert stats.branches.n_cancelled - before.branches.n_cancelled == 3
    assert stats.branches.n_shared - before.branches.n_shared >= 210
    assert stats.branches.n_computed == before.branches.n_computed


async def test_a_fork_further_back_computes_one_token_and_writes_what_its_branch_did(engine: weft.Engine) -> None:
    stream = engine.stream(prompt_of(100, "further back"), max_tokens=60, temperature=0.0, ignore_eos=True)
    texts = [event.text async for event in stream if isinstance(event, weft.Token)]
    own = await stream.fork_stream(0, at=8)
    assert own.n_prompt == 108
    by_byte = await stream.fork_stream(0, at=len("".join(texts[:20]).encode()), unit="byte", max_tokens=5)
    assert by_byte.n_prompt == 120
    [(forked, usage)] = (await ends(own)).values()
    assert usage.n_computed == 1
    assert forked.startswith("".join(texts[8:]))
    [(forked, usage)] = (await ends(by_byte)).values()
    assert (usage.n_computed, usage.n_predicted) == (1, 5)
    assert forked == "".join(texts[20:25])


async def test_what_a_branch_held_back_stands_between_its_text_and_that_of_a_fork(engine: weft.Engine) -> None:
    prompt = prompt_of(80, "held back")
    alone = engine.stream(prompt, max_tokens=40, temperature=0.0, ignore_eos=True)
    texts = [event.text async for event in alone if isinstance(event, weft.Token)]
    # Behind its fifth token the branch may be at the start of a stop string.
    stop = texts[4] + "\N{SNOWMAN}"
    stream = engine.stream(prompt, max_tokens=1000, temperature=0.0, ignore_eos=True, stop=stop)
    shown = await text_of_first(stream, 5)
    assert shown == "".join(texts[:4])
    assert await stream.fork(0, at=5) == [1]
    assert await stream.fork(0, at=5, max_tokens=4) == [2]
    assert [stream.forked_at(index) for index in range(4)] == [None, (0, 5), (0, 5), None]
    assert [stream.fork_boundary(index) for index in range(3)] == [("", 0), ("", 0), (texts[4], 0)]
    stream.cancel(0)
    forked = {index: text for index, (text, _) in (await ends(stream)).items()}
    assert (shown + forked[1]).startswith("".join(texts))
    assert shown + texts[4] + forked[2] == "".join(texts[:9])
    with pytest.raises(InvalidRequestError, match="index is -1; it must be the index of a branch, from 0"):
        stream.fork_boundary(-1)


async def test_what_is_appended_is_read_before_they_write(engine: weft.Engine) -> None:
    prompt = prompt_of(60, "appended")
    answer = await engine.complete(prompt, max_tokens=10, temperature=0, ignore_eos=True)
    stream = engine.stream(prompt, max_tokens=10, temperature=0.0, ignore_eos=True)
    await ends(stream)
    own = await stream.fork_stream(0, append=" But the fox")
    [(forked, usage)] = (await ends(own)).values()
    more = engine.model.tokenize_on(" But the fox", parse_special=True)
    tokens = [*prompt, *answer.choices[0].token_ids, *more]
    assert own.n_prompt == len(tokens)
    assert usage.n_computed <= 1 + len(more)
    assert forked == (await engine.complete(tokens, max_tokens=10, temperature=0, ignore_eos=True)).text


async def test_forks_with_options_begin_anew_and_others_go_on(engine: weft.Engine) -> None:
    grammar = 'root ::= "one" "two" "three"'
    stream = engine.stream(prompt_of(30, "held"), grammar=grammar, max_tokens=40, temperature=0.0)
    text = await text_of_first(stream, 1)
    own = await stream.fork_stream(0, n=2, at=1)
    anew = await stream.fork_stream(0, at=1, grammar='root ::= "four"')
    for forked, _ in (await ends(own)).values():
        assert text + forked == "onetwothree"
    assert [forked for forked, _ in (await ends(anew)).values()] == ["four"]
    with pytest.raises(InvalidRequestError, match="grammar of the branch does not allow") as refused:
        await stream.fork_stream(0, at=1, append="five")
    assert refused.value.param == "append"


async def test_a_fork_of_a_fork_with_options_continues_its_grammar(engine: weft.Engine) -> None:
    stream = engine.stream(prompt_of(30, "held twice"), max_tokens=4, temperature=0.0, ignore_eos=True)
    await ends(stream)
    grammar = 'root ::= "A" "B" "C" "D" "E" "F" "G" "H"'
    fork = await stream.fork_stream(0, grammar=grammar, max_tokens=40)
    [(text, _)] = (await ends(fork)).values()
    assert text == "ABCDEFGH"
    second = await fork.fork_stream(0, at=2)
    third = await second.fork_stream(0, at=0)
    for forked in (second, third):
        assert [text[:2] + rest for rest, _ in (await ends(forked)).values()] == ["ABCDEFGH"]
    with pytest.raises(InvalidRequestError, match="grammar of the branch does not allow"):
        await fork.fork_stream(0, at=2, append="D")


async def test_seeds_of_forks_are_what_the_manual_says(engine: weft.Engine) -> None:
    prompt = prompt_of(50, "seeds of forks")
    stream = engine.stream(prompt, seed=7, temperature=1.5, max_tokens=12, ignore_eos=True)
    tokens = [event.token async for event in stream if isinstance(event, weft.Token)]
    own = await stream.fork_stream(0, at=6, n=2)
    again = await stream.fork_stream(0, at=6)
    named = await stream.fork_stream(0, at=6, seed=99)
    assert (own.seed, again.seed, named.seed) == (7 + 256, 7 + 258, 99)
    for forks, seeds in ((own, (263, 264)), (again, (265,)), (named, (99,))):
        told = await ends(forks)
        for index, seed in enumerate(seeds):
            alone = await engine.complete([*prompt, *tokens[:6]], seed=seed, temperature=1.5, max_tokens=12, ignore_eos=True)
            assert told[index][0] == alone.text


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        pytest.param({"index": 9}, "branch", id="no such branch"),
        pytest.param({"index": 0, "n": 0}, "n", id="no fork"),
        pytest.param({"index": 0, "at": 10_000}, "at", id="beyond its end"),
        pytest.param({"index": 0, "at": -1}, "at", id="before its beginning"),
        pytest.param({"index": 0, "unit": "line"}, "unit", id="another unit"),
        pytest.param({"index": 0, "append": 7}, "append", id="no text"),
        pytest.param({"index": 0, "append": [-1]}, "append", id="no token"),
        pytest.param({"index": 0, "suffix_prompt": "a"}, "suffix_prompt", id="what is appended is no suffix"),
        pytest.param({"index": 0, "adapters": []}, "adapters", id="adapters are the branch's"),
        pytest.param({"index": 0, "temperature": "hot"}, "temperature", id="an option of another type"),
    ],
)
async def test_what_cannot_be_forked_is_refused(engine: weft.Engine, arguments: dict[str, object], param: str) -> None:
    stream = engine.stream("Once upon a time", max_tokens=3, ignore_eos=True)
    await ends(stream)
    with pytest.raises(InvalidRequestError) as refused:
        await stream.fork_stream(**arguments)  # type: ignore[arg-type]
    assert refused.value.param == param


async def test_forks_into_a_stream_that_has_ended_are_refused(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time", max_tokens=3, ignore_eos=True)
    await ends(stream)
    with pytest.raises(InvalidRequestError, match="has ended") as refused:
        await stream.fork(0)
    assert refused.value.param == "stream"


async def test_branches_are_read_each_on_its_own_also_those_that_forks_add(engine: weft.Engine) -> None:
    stream = engine.stream(prompt_of(40, "read apart"), n=2, temperature=0.0, ignore_eos=True)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}

    async def read(branch: weft.BranchStream) -> None:
        first = ""
        if branch.index == 1:
            first = (await anext(branch)).text
            assert await branch.fork(n=2, at=0, max_tokens=12) == [2, 3]
            stream.cancel(0)
            branch.cancel()
        texts[branch.index] = first + await branch.text()
        assert branch.finished is not None
        reasons[branch.index] = branch.finished.finish_reason

    await asyncio.gather(*[asyncio.create_task(read(branch)) async for branch in stream.branches()])
    assert reasons == {0: "cancelled", 1: "cancelled", 2: "length", 3: "length"}
    assert texts[2] == texts[3] != ""


async def numbered(stream: weft.Stream) -> AsyncIterator[int]:
    async for branch in stream.branches():
        async for _ in branch:
            pass
        yield branch.index


async def test_one_task_may_read_one_branch_after_the_other(engine: weft.Engine) -> None:
    stream = engine.stream("Once upon a time", n=3, max_tokens=8, ignore_eos=True)
    assert sorted([index async for index in numbered(stream)]) == [0, 1, 2]


async def test_a_thousand_operations_on_trees_leave_nothing_running(engine: weft.Engine) -> None:
    streams: list[weft.Stream] = []
    state = 5
    n_made = 0

    def below(n: int) -> int:
        nonlocal state
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        return (state >> 33) % n

    for _ in range(1_000):
        if below(4) == 0 or not streams:
            prompt = prompt_of(20 + below(30), f"tree {below(3)}")
            streams.append(engine.stream(prompt, n=1 + below(3), max_tokens=below(20), ignore_eos=True))
            continue
        stream = streams[below(len(streams))]
        match below(4):
            case 0 | 1:
                try:
                    index, n, at = below(4), 1 + below(3), [None, below(8)][below(2)]
                    fork = stream.fork_stream if below(2) == 0 else stream.fork
                    made: list[int] | weft.Stream = await fork(index, n=n, at=at, max_tokens=below(16))
                except InvalidRequestError:
                    continue
                n_made += 1
                if isinstance(made, weft.Stream):
                    streams.append(made)
            case 2:
                stream.cancel(below(4))
            case _ if len(streams) > 5:
                gone = streams.pop(0)
                await ends(gone) if below(2) == 0 else gone.close()
    for stream in streams:
        await ends(stream)
    # The rest found their branches at their ends, which depends on the machine.
    assert n_made > 50
    await wait_until(lambda: not any(slot.is_processing for slot in engine.slots))
    assert len((await engine.complete("Once", max_tokens=3, ignore_eos=True)).choices[0].token_ids) == 3
