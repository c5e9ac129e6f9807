"""What a body says of thoughts, and of what its grammar waits for."""

from collections.abc import Sequence

from weft import GrammarTrigger, InvalidRequest, Thought
from weft.server.request_fields.fields import CompletionFields
from weft.settings import Settings

__all__ = ["refuse_endless_thought", "tagged_thought", "thought", "triggers"]

_KINDS = ("token", "word", "pattern", "pattern_full")
"""What llama-server's numbers of kinds mean."""


def triggers(body: CompletionFields) -> tuple[GrammarTrigger, ...]:
    """What the body's grammar waits for.

    Raises:
        InvalidRequest: a kind that there is not, a token without its id, or nothing to wait for.
    """
    read = []
    for given in body.grammar_triggers or ():
        if not 0 <= given.type < len(_KINDS):
            message = (
                f"grammar_triggers has the type {given.type}; it must be 0 (token), 1 (word), 2 (pattern) or 3 (pattern_full)"
            )
            raise InvalidRequest("grammar_triggers", message)
        kind = _KINDS[given.type]
        if kind == "token" and given.token is None:
            raise InvalidRequest("grammar_triggers", "grammar_triggers has one of type 0 without a token")
        read.append(GrammarTrigger(kind, given.value, given.token))  # type: ignore[arg-type]
    return tuple(read)


def thought(
    body: CompletionFields, settings: Settings, *, starts: Sequence[str], ends: Sequence[str], begins_inside: bool
) -> Thought:
    """A thought with these markers, with the body's budget and message, or the server's."""
    budget = body.thinking_budget_tokens if body.reasoning_budget_tokens is None else body.reasoning_budget_tokens
    message = body.reasoning_budget_message
    return Thought(
        starts=starts,
        ends=ends,
        begins_inside=begins_inside,
        budget=settings.reasoning_budget if budget is None else None if budget < 0 else budget,
        message=settings.reasoning_budget_message if message is None else message,
    )


def tagged_thought(body: CompletionFields, settings: Settings) -> Thought | None:
    """The thought whose markers the body itself names; None where it names none."""
    start = body.reasoning_budget_start_tag
    ends = [end for end in body.reasoning_budget_end_tags or [body.reasoning_budget_end_tag or ""] if end]
    if not ends:
        return None
    opening = body.generation_prompt or ""
    begins_inside = bool(start) and opening.rfind(start or "") > max(map(opening.rfind, ends))
    if not start:
        raise InvalidRequest("reasoning_budget_start_tag", "reasoning_budget_start_tag must be given beside what ends a thought")
    return thought(body, settings, starts=(start,), ends=tuple(ends), begins_inside=begins_inside)


def refuse_endless_thought(body: CompletionFields) -> None:
    """Of a prompt that is no chat only the body says what a thought is: without that, nothing can be asked of one.

    Raises:
        InvalidRequest: a budget or a message for thoughts, and nothing that ends them.
    """
    if body.reasoning_budget_end_tag or any(body.reasoning_budget_end_tags or ()):
        return
    budgets = ("reasoning_budget_tokens", "thinking_budget_tokens")
    asked = [name for name in budgets if (value := getattr(body, name)) is not None and value >= 0]
    asked += [name for name in ("reasoning_budget_message", "reasoning_budget_start_tag") if getattr(body, name)]
    if asked:
        message = f"{asked[0]} needs reasoning_budget_end_tags, which say what ends a thought"
        raise InvalidRequest(asked[0], message)
