"""What a body says of thoughts, and of what its grammar waits for."""

from collections.abc import Sequence

from weft import GrammarTrigger, InvalidRequest, Thought
from weft.fields.shown import shown
from weft.server.request_fields.fields import CompletionFields
from weft.settings import Settings

__all__ = ["blamed_for_thoughts", "budget_message", "refuse_endless_thought", "tagged_thought", "thought", "triggers"]

MAX_TAGS = 16
"""Texts that end thoughts."""

MAX_TAG_BYTES = 256
"""Bytes of one."""

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
    return Thought(
        starts=starts,
        ends=ends,
        begins_inside=begins_inside,
        budget=settings.reasoning_budget if budget is None else None if budget < 0 else budget,
        message=budget_message(body, settings, ends),
    )


def budget_message(body: CompletionFields, settings: Settings, ends: Sequence[str]) -> str:
    """What is said before the end of a thought whose budget is used up, where these texts end one.

    Raises:
        InvalidRequest: one of them is in it: what follows that would be said to the user.
    """
    given = body.reasoning_budget_message
    message = settings.reasoning_budget_message if given is None else given
    if (found := next((end for end in ends if end in message), None)) is None:
        return message
    if given is None:
        # The body has named it; what ends the thoughts of chats is looked for at the start.
        raise InvalidRequest("reasoning_budget_end_tags", f"{shown(found)} is in the server's message, which says it too early")
    why = f"contains {shown(found)}, which ends the thought and is written after the message; leave it out"
    raise InvalidRequest("reasoning_budget_message", f"reasoning_budget_message {why}")


def blamed_for_thoughts(body: CompletionFields) -> str:
    """The field that is told of where the engine refuses a thought: what is said before its end, or what ends it."""
    tags = [body.reasoning_budget_end_tag or "", *(body.reasoning_budget_end_tags or ()), body.reasoning_budget_start_tag or ""]
    are_bounded = len(tags) - 2 <= MAX_TAGS and all(len(tag.encode()) <= MAX_TAG_BYTES for tag in tags)
    return "reasoning_budget_message" if are_bounded and body.reasoning_budget_message else "reasoning_budget_end_tags"


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
