"""What vectors and scores cost."""

import msgspec

__all__ = ["TextsUsage"]


class TextsUsage(msgspec.Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int
