"""Why what was computed of prompts had to be, in answers."""

from collections.abc import Mapping

import msgspec

from weft import CacheExplanation

__all__ = ["HEADER", "Explained", "explanation_header", "explanations_of"]

HEADER = "weft-cache"
"""The header of whole answers. The headers of a stream leave with its first token, and the end of its first branch tells more."""

MAX_IN_HEADER = 8
"""Prompts of one request whose explanations stand in the header: others do in the answer alone."""

Explained = CacheExplanation | list[CacheExplanation] | msgspec.UnsetType


def explanations_of(told: Mapping[int, CacheExplanation]) -> Explained:
    """Of all prompts of a request, in their order: one object where there is one."""
    explanations = [told[prompt] for prompt in sorted(told)]
    if not explanations:
        return msgspec.UNSET
    return explanations[0] if len(explanations) == 1 else explanations


def explanation_header(told: Mapping[int, CacheExplanation]) -> dict[str, str]:
    """The same in short, without any text; no header where nothing is told."""
    shown = [told[prompt].short for prompt in sorted(told)[:MAX_IN_HEADER]]
    return {HEADER: ", ".join(shown)} if shown else {}
