"""Fields for what is not there: each is refused by name, unless its value asks for nothing."""

from collections.abc import Callable, Container, Mapping
from typing import Any

from weft import InvalidRequest
from weft.server.request_fields.fields import CompletionFields

__all__ = ["refuse", "refuse_unsupported"]


def _is_no_budget(tokens: Any) -> bool:  # noqa: ANN401 (any JSON)
    """llama-server's number for no limit is any below 0; `False` and the like are no numbers of tokens."""
    return isinstance(tokens, int) and tokens < 0


# Field → whether a value asks for nothing.
_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "anti_prompt": lambda value: not value,
    "assistant_name": lambda value: not value,
    "grammar_lazy": lambda value: value is False,
    "grammar_triggers": lambda value: not value,
    "image_data": lambda value: not value,
    "n_cache_reuse": lambda value: value == 0,
    "parse_tool_calls": lambda value: value is False,
    "preserved_tokens": lambda value: not value,
    "reasoning_budget_tokens": _is_no_budget,
    # What llama.cpp's own page always sends; a thought stays in the text where it is not taken out.
    "reasoning_format": lambda value: value in ("", "none", "auto"),
    "service_tier": lambda value: value in ("auto", "default"),
    "store": lambda value: value is False,
    "system_prompt": lambda value: not value,
    "t_max_prompt_ms": lambda value: value <= 0,
    "thinking_budget_tokens": _is_no_budget,
    "tools": lambda value: not value,
}


def refuse_unsupported(
    body: CompletionFields, more: dict[str, Callable[[Any], bool]] | None = None, *, but: Container[str] = ()
) -> None:
    """Raises [`InvalidRequest`] for the first field that asks for what is not there.

    `more` names what a dialect refuses besides, `but` what it does not refuse.
    """
    refuse(body, {name: is_neutral for name, is_neutral in (_NEUTRAL | (more or {})).items() if name not in but})


def refuse(body: CompletionFields, table: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raises [`InvalidRequest`] for the first field of the table that asks for something; a body need not have all of them."""
    for name, is_neutral in table.items():
        value = getattr(body, name, None)
        if value is not None and not is_neutral(value):
            raise InvalidRequest(name, f"{name} is not supported; leave it out")
