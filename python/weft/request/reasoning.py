"""Configuration of reasoning (text between markers such as `<think>`) and of lazy grammars."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from weft.fields.meta import Range, described

__all__ = ["GrammarTrigger", "ReasoningConfig"]


@described
class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Markers and token budget of reasoning.

    A grammar or schema applies outside of reasoning. If the prompt ends inside of reasoning, the grammar begins after the end
    marker; otherwise a branch begins with reasoning or with the grammar, and no reasoning follows the grammar. A completion with
    a grammar cannot end inside of reasoning. With `Request.grammar_lazy`, triggers are ignored inside of reasoning, and several
    sections of reasoning may precede the trigger.
    """

    starts: Annotated[
        Sequence[str],
        "markers that begin reasoning, at most 16 of at most 256 bytes each; control tokens match by their spelling, "
        "visible or not. Each marker begins a new section",
    ] = ("<think>",)
    ends: Annotated[Sequence[str], "markers that end reasoning, at least one, with the same limits"] = ("</think>",)
    begins_inside: Annotated[bool, "True if the prompt ends inside of reasoning"] = False
    budget: Annotated[
        int | None,
        "maximum tokens of one section of reasoning; 0 ends it immediately, None is no limit. When it is used up, at a "
        "character boundary, `message` and the first of `ends` are appended, token by token as if they had been sampled",
        Range(0, 2**32 - 1),
    ] = None
    message: Annotated[str, "text appended before the end marker when the budget is used up, at most 16,384 bytes"] = ""


@described
class GrammarTrigger(msgspec.Struct, frozen=True):
    """Condition that activates a lazy grammar (`Request.grammar_lazy`), and the position where the grammar begins."""

    kind: Annotated[
        Literal["word", "pattern", "pattern_full", "token"],
        "`word`: the text `value` anywhere; if it is a single token, which must be in `Request.preserved_tokens`, that "
        "token. `pattern`: a match of the regular expression `value` anywhere. `pattern_full`: a match of the whole text so "
        "far. `token`: the token `token`. The grammar begins with the word, the token, or the first non-empty group of the "
        "expression, else with its match. Expressions use the syntax of Rust's regex crate, over bytes and without Unicode "
        "classes: no lookaround and no backreferences, so the cost per token does not depend on the length of the text",
    ]
    value: Annotated[str, "the word or the expression"] = ""
    token: Annotated[int | None, "the token's id"] = None
