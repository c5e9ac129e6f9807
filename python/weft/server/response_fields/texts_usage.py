"""Usage of embedding and rerank requests."""

import msgspec


class TextsUsage(msgspec.Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int
