"""Unsupported fields: each is refused by name unless its value disables the feature."""

from collections.abc import Callable, Container, Mapping
from typing import Any

import msgspec

from weft import InvalidRequestError
from weft.chat.request_options import REASONING_FORMATS
from weft.server.request_fields.fields import CompletionFields

__all__ = ["refuse", "refuse_unsupported"]


# Field to a predicate for values that disable the feature.
_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "anti_prompt": lambda value: not value,
    "assistant_name": lambda value: not value,
    "best_of": lambda value: value == 1,
    "image_data": lambda value: not value,
    "n_cache_reuse": lambda value: value == 0,
    "parse_tool_calls": lambda value: value is False,
    # llama.cpp's web page always sends it. It applies to chats; the text of a completion is never split.
    "reasoning_format": lambda value: isinstance(value, str) and (not value or value in REASONING_FORMATS),
    "service_tier": lambda value: value in ("auto", "default"),
    "store": lambda value: value is False,
    "system_prompt": lambda value: not value,
    "t_max_prompt_ms": lambda value: value <= 0,
    "tools": lambda value: not value,
}


def refuse_unsupported(
    body: CompletionFields, more: dict[str, Callable[[Any], bool]] | None = None, *, but: Container[str] = ()
) -> None:
    """Raises [`InvalidRequestError`] for the first field that enables an unsupported feature.

    Args:
        body: The request.
        more: Further fields that an API does not support.
        but: Fields that it does support.
    """
    refuse(body, {name: is_neutral for name, is_neutral in (_NEUTRAL | (more or {})).items() if name not in but})


def refuse(body: msgspec.Struct, table: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raises [`InvalidRequestError`] for the first field of the table whose value is not neutral. Missing fields are skipped."""
    for name, is_neutral in table.items():
        value = getattr(body, name, None)
        if value is not None and not is_neutral(value):
            raise InvalidRequestError(name, f"{name} is not supported; leave it out")
