"""Reasoning options and grammar triggers of a body."""

from collections.abc import Sequence

from weft import GrammarTrigger, InvalidRequestError, ReasoningConfig
from weft.chat.request_options import budget_message
from weft.server.request_fields.fields import CompletionFields
from weft.settings import Settings

MAX_TAGS = 16
"""Maximum end markers of reasoning."""

MAX_TAG_BYTES = 256
"""Maximum size of a marker, in bytes."""

_KINDS = ("token", "word", "pattern", "pattern_full")
"""Kinds of triggers, by llama-server's numbers."""


def triggers(body: CompletionFields) -> tuple[GrammarTrigger, ...]:
    """Returns the triggers of the body's grammar.

    Raises:
        InvalidRequestError: A kind is unknown, or a token trigger has no id.
    """
    read = []
    for given in body.grammar_triggers or ():
        if not 0 <= given.type < len(_KINDS):
            message = (
                f"grammar_triggers has the type {given.type}; it must be 0 (token), 1 (word), 2 (pattern) or 3 (pattern_full)"
            )
            raise InvalidRequestError("grammar_triggers", message)
        kind = _KINDS[given.type]
        if kind == "token" and given.token is None:
            raise InvalidRequestError("grammar_triggers", "grammar_triggers has an entry of type 0 without a token")
        read.append(GrammarTrigger(kind, given.value, given.token))  # type: ignore[arg-type]
    return tuple(read)


def reasoning(
    body: CompletionFields, settings: Settings, *, starts: Sequence[str], ends: Sequence[str], begins_inside: bool
) -> ReasoningConfig:
    """Returns the reasoning configuration with these markers, and the budget and message of the body or the server."""
    budget = body.thinking_budget_tokens if body.reasoning_budget_tokens is None else body.reasoning_budget_tokens
    return ReasoningConfig(
        starts=starts,
        ends=ends,
        begins_inside=begins_inside,
        budget=settings.reasoning_budget if budget is None else None if budget < 0 else budget,
        message=budget_message(body.reasoning_budget_message, settings.reasoning_budget_message, ends),
    )


def reasoning_parameter(body: CompletionFields) -> str:
    """Returns the field to report if the engine refuses the reasoning configuration: the message or the end markers."""
    tags = [body.reasoning_budget_end_tag or "", *(body.reasoning_budget_end_tags or ()), body.reasoning_budget_start_tag or ""]
    are_bounded = len(tags) - 2 <= MAX_TAGS and all(len(tag.encode()) <= MAX_TAG_BYTES for tag in tags)
    return "reasoning_budget_message" if are_bounded and body.reasoning_budget_message else "reasoning_budget_end_tags"


def tagged_reasoning(body: CompletionFields, settings: Settings) -> ReasoningConfig | None:
    """Returns the reasoning configuration with the body's own markers, or None if it has none."""
    start = body.reasoning_budget_start_tag
    ends = [end for end in body.reasoning_budget_end_tags or [body.reasoning_budget_end_tag or ""] if end]
    if not ends:
        return None
    opening = body.generation_prompt or ""
    begins_inside = bool(start) and opening.rfind(start or "") > max(map(opening.rfind, ends))
    if not start:
        raise InvalidRequestError(
            "reasoning_budget_start_tag", "reasoning_budget_start_tag is required with reasoning_budget_end_tags"
        )
    return reasoning(body, settings, starts=(start,), ends=tuple(ends), begins_inside=begins_inside)


def refuse_unmarked_reasoning(body: CompletionFields) -> None:
    """Refuses reasoning options without end markers, which prompts other than chats must provide.

    Raises:
        InvalidRequestError: There is a budget or message for reasoning, but no end marker.
    """
    if body.reasoning_budget_end_tag or any(body.reasoning_budget_end_tags or ()):
        return
    budgets = ("reasoning_budget_tokens", "thinking_budget_tokens")
    names = [name for name in budgets if (value := getattr(body, name)) is not None and value >= 0]
    names += [name for name in ("reasoning_budget_message", "reasoning_budget_start_tag") if getattr(body, name)]
    if names:
        message = f"{names[0]} requires reasoning_budget_end_tags"
        raise InvalidRequestError(names[0], message)
