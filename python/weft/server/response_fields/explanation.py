"""Cache explanations in responses."""

from collections.abc import Mapping

import msgspec

from weft import CacheExplanation

HEADER = "weft-cache"
"""Header of responses that are not streamed. A stream's headers are sent with its first token, before the explanation is
complete."""

MAX_IN_HEADER = 8
"""Maximum prompts of a request in the header. The body includes all of them."""

Explained = CacheExplanation | list[CacheExplanation] | msgspec.UnsetType


def explanations_of(by_prompt: Mapping[int, CacheExplanation]) -> Explained:
    """Returns the explanations of all prompts in order, or a single object if there is one."""
    explanations = [by_prompt[prompt] for prompt in sorted(by_prompt)]
    if not explanations:
        return msgspec.UNSET
    return explanations[0] if len(explanations) == 1 else explanations


def explanation_header(by_prompt: Mapping[int, CacheExplanation]) -> dict[str, str]:
    """Returns the header with short explanations, or no header if there are none."""
    shown = [by_prompt[prompt].short for prompt in sorted(by_prompt)[:MAX_IN_HEADER]]
    return {HEADER: ", ".join(shown)} if shown else {}
