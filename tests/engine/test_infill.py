"""What a model is given to fill a gap: in which order, and how much of it."""

import pytest

import weft
from weft import Snippet
from weft._native import TokenIds
from weft.infill import infill_tokens

PREFIX, SUFFIX, MIDDLE, REPOSITORY, FILE, BOS = 1, 2, 3, 4, 5, 9


class Vocabulary:
    """One token for each character."""

    adds_bos = True
    bos_token = BOS

    def __init__(self, *, n: int = 5) -> None:
        names = ("prefix", "suffix", "middle", "repository", "file")
        self.infill_tokens = dict(zip(names[:n], range(1, 1 + n), strict=True))

    def token_ids(self, text: str, /, *, add_special: bool, parse_special: bool) -> TokenIds:
        assert not add_special
        assert not parse_special
        return TokenIds(spelt(text))


def spelt(text: str) -> list[int]:
    return list(map(ord, text))


def filled(
    vocabulary: Vocabulary, prefix: str = "ab", suffix: str = "yz", *, n_batch: int = 2048, n_ctx: int = 8192, **more: object
) -> list[int]:
    return infill_tokens(vocabulary, spelt(prefix), spelt(suffix), n_batch=n_batch, n_ctx=n_ctx, **more)  # type: ignore[arg-type]


def test_a_gap_is_shown_as_the_model_was_trained_to_see_it() -> None:
    assert filled(Vocabulary(n=3)) == [BOS, PREFIX, *spelt("ab"), SUFFIX, *spelt("yz"), MIDDLE]


def test_what_is_filled_already_stands_behind_the_prefix() -> None:
    assert filled(Vocabulary(n=3), middle=spelt("cd")) == [BOS, PREFIX, *spelt("abcd"), SUFFIX, *spelt("yz"), MIDDLE]


def test_the_suffix_may_come_first() -> None:
    assert filled(Vocabulary(n=3), suffix_first=True) == [BOS, SUFFIX, *spelt("yz"), PREFIX, *spelt("ab"), MIDDLE]


def test_other_files_stand_before_all_of_it_with_their_names() -> None:
    told = filled(Vocabulary(), snippets=[Snippet("one", "a.py"), Snippet("two")])
    files = [FILE, *spelt("a.py\none"), FILE, *spelt("tmp\ntwo"), FILE, *spelt("filename\n")]
    assert told == [REPOSITORY, *spelt("myproject\n"), *files, BOS, PREFIX, *spelt("ab"), SUFFIX, *spelt("yz"), MIDDLE]


def test_where_the_vocabulary_knows_no_files_a_line_stands_between_them() -> None:
    told = filled(Vocabulary(n=3), snippets=[Snippet("one", "a.py")])
    assert told[: told.index(BOS)] == spelt("\n\n--- snippet ---\n\none")


def test_the_ends_of_a_prefix_and_of_a_suffix_that_are_far_from_the_gap_are_cut() -> None:
    prefix, suffix = "p" * 5_000 + "!", "?" + "s" * 5_000
    told = filled(Vocabulary(n=3), prefix, suffix, middle=spelt("begun"))
    kept, rest = told[: told.index(SUFFIX)], told[told.index(SUFFIX) :]
    assert kept == [BOS, PREFIX, *spelt("p" * (1_536 - 1) + "!"), *spelt("begun")]
    assert rest == [SUFFIX, *spelt("?" + "s" * (512 - 2 - 5 - 1)), MIDDLE]


@pytest.mark.parametrize("n_ctx", [128, 512, 2_048, 2_600, 4_096, 8_192])
@pytest.mark.parametrize("n_predict", [None, 0, 16])
def test_whatever_is_given_fits_and_leaves_room_to_write(n_ctx: int, n_predict: int | None) -> None:
    told = filled(Vocabulary(), "p" * 9_000, "s" * 9_000, snippets=[Snippet("x" * 9_000)], n_ctx=n_ctx, n_predict=n_predict)
    assert len(told) + (n_predict or 1) <= n_ctx
    assert told[-1] == MIDDLE


def test_of_other_files_the_end_is_kept() -> None:
    told = filled(Vocabulary(), snippets=[Snippet("x" * 9_000 + "!")], n_ctx=4_096, n_predict=48)
    files = told[: told.index(BOS)]
    assert len(files) == 4_096 - 2_048 - 2 * 48
    assert files[-len("!filename\n") - 1 :] == [*spelt("!"), FILE, *spelt("filename\n")]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_model_that_was_not_trained_for_it_is_refused(n: int) -> None:
    name = ("prefix", "suffix", "middle")[n]
    with pytest.raises(weft.InvalidRequestError, match=f"does not support infill: its vocabulary has no {name}"):
        filled(Vocabulary(n=n))


@pytest.mark.parametrize("long", [False, True])
async def test_the_demo_model_fills_a_gap_from_python(engine: weft.Engine, *, long: bool) -> None:
    prefix, suffix = "Once upon a time, " * (500 if long else 1), " The end."
    stream = engine.stream_infill(prefix, suffix, middle="there was", max_tokens=8, temperature=0, ignore_eos=True)
    told = (await weft.Completion.collect(stream)).text
    tokens = [engine.tokenize(text, add_special=False, parse_special=False) for text in (prefix, suffix, "there was")]
    prompt = infill_tokens(engine.model, *tokens[:2], middle=tokens[2], n_batch=2048, n_ctx=engine.limits.n_ctx_slot, n_predict=8)
    assert told == (await engine.complete(prompt, max_tokens=8, temperature=0, ignore_eos=True)).text != ""


def test_what_is_filled_already_must_fit() -> None:
    with pytest.raises(weft.ContextOverflowError):
        filled(Vocabulary(), middle=[7] * 8_192)
