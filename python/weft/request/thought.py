"""What of a completion is a thought, and what begins a grammar."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from weft.fields.about import About, described

__all__ = ["GrammarTrigger", "Thought"]


@described
class Thought(msgspec.Struct, frozen=True, kw_only=True):
    """What begins a thought and what ends it, and how long it may be.

    A grammar or a schema holds outside of thoughts. Where the prompt ends inside of a thought, it begins with what follows the
    thought's end; else a branch begins with a thought or with the grammar, and no thought follows on the grammar. A text does not
    end in a thought that a grammar follows. With `Request.grammar_lazy` triggers are not looked for inside of thoughts, and
    thoughts may follow each other until one is met.
    """

    starts: Annotated[
        Sequence[str],
        About(
            "texts that begin a thought, at most 16 of at most 256 bytes; control tokens count with their spelling, "
            "shown or not. A thought begins anew with each"
        ),
    ] = ("<think>",)
    ends: Annotated[Sequence[str], About("texts that end one, at least one, bounded as those are")] = ("</think>",)
    begins_inside: Annotated[bool, About("whether the prompt ends inside of a thought")] = False
    budget: Annotated[
        int | None,
        About(
            "most tokens of one thought; 0 ends it at once, None is no limit. When it is used up, and the last character "
            "is whole, `message` and the first of `ends` are said, token by token as if they had been drawn",
            0,
            2**32 - 1,
        ),
    ] = None
    message: Annotated[str, About("what is said before the end of a thought whose budget is used up, at most 16,384 bytes")] = ""


@described
class GrammarTrigger(msgspec.Struct, frozen=True):
    """What begins a grammar that waits, and where: `Request.grammar_lazy`."""

    kind: Annotated[
        Literal["word", "pattern", "pattern_full", "token"],
        About(
            "`word`: the text `value`, wherever it is; where that is one token, which must be in "
            "`Request.preserved_tokens`, this token. `pattern`: what the regular expression `value` finds anywhere. "
            "`pattern_full`: all that was said, where it matches. `token`: the token `token`. The grammar begins with the word, "
            "the token, or the first group of the expression that holds something, else with what it matches. "
            "Expressions are those of Rust's regex crate, over bytes and without Unicode's classes: no look-around, no "
            "back references, so that a token costs the same however long the text is"
        ),
    ]
    value: Annotated[str, About("the word or the expression")] = ""
    token: Annotated[int | None, About("the token's id")] = None
