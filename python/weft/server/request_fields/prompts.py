"""Prompts, logit biases and penalty prompts of a body, as texts and tokens."""

import re
from collections.abc import Sequence

from weft import InvalidRequestError, MixedPrompt
from weft._native import Biases, TokenIds
from weft.fields.excerpt import excerpt
from weft.server.inference.submission import Piece, SentPrompt
from weft.server.request_fields.fields import LogitBias, Prompt, TextPrompt
from weft.server.request_fields.media import marked

MAX_DIGITS = 18
"""Maximum digits of a token id. Longer ids exceed any vocabulary and are expensive to parse."""


def prompts(prompt: Prompt | TokenIds | MixedPrompt | None) -> list[SentPrompt]:
    """Returns the prompts of a body, each as a list of texts and tokens, or of texts and media.

    As in llama-server, a list is one prompt if any element is a token; otherwise each element is a prompt.
    """
    if prompt is None:
        raise InvalidRequestError("prompt", "a prompt must be given")
    if isinstance(prompt, str | TextPrompt):
        return [_pieces(prompt)]
    if not prompt:
        raise InvalidRequestError("prompt", "the list of prompts is empty")
    if isinstance(prompt, TokenIds | MixedPrompt):
        return [prompt]
    if any(isinstance(element, int) for element in prompt):
        if not all(isinstance(element, int | str) for element in prompt):
            raise InvalidRequestError("prompt", "a list with token ids may only have token ids and strings")
        return [[element for element in prompt if isinstance(element, int | str)]]
    return [_pieces(element) for element in prompt if not isinstance(element, int)]


def texts(name: str, given: Prompt | TokenIds | None) -> list[SentPrompt]:
    """Returns the texts of a body's field, parsed like prompts."""
    try:
        return prompts(given)
    except InvalidRequestError as error:
        message = f"{name} must be given" if given is None else error.message.replace("prompts", "texts")
        raise InvalidRequestError(name, message) from None


def _pieces(prompt: str | TextPrompt | list[int | str] | TokenIds) -> SentPrompt:
    if isinstance(prompt, TokenIds):
        return prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, TextPrompt):
        return [prompt.prompt_string] if prompt.multimodal_data is None else marked(prompt)
    return list(prompt)


def pieces(given: str | list[int | str] | TokenIds) -> Sequence[Piece]:
    """Returns one text, or one list of texts and tokens, as a list."""
    if isinstance(given, str):
        return [given] if given else []
    return given


def penalty_prompt(given: str | list[int | str] | TokenIds | None) -> Sequence[Piece] | None:
    """Returns the penalty prompt, or None if it is missing."""
    if not given:
        return None
    return pieces(given)


def logit_bias(biases: LogitBias | Biases) -> Sequence[tuple[Piece, float]]:
    """Returns tokens and texts with their biases; a ban is minus infinity."""
    if isinstance(biases, Biases):
        return biases
    pairs = [(_key(key), bias) for key, bias in biases.items()] if isinstance(biases, dict) else biases
    for key, bias in pairs:
        if bias is True:
            raise InvalidRequestError("logit_bias", f"the bias of {excerpt(key)} is true; it must be a number or false")
        if isinstance(key, int) and not -(2**31) <= key < 2**31:
            raise InvalidRequestError("logit_bias", f"logit_bias has the token {excerpt(key)}; token ids must be below 2³¹")
    return [(key, float("-inf") if bias is False else bias) for key, bias in pairs]


def _key(key: str) -> Piece:
    """Parses a key of OpenAI's object: a token id, or a text."""
    if re.fullmatch("-?[0-9]+", key) is None:
        return key
    if len(key) > MAX_DIGITS:
        raise InvalidRequestError("logit_bias", f"a token of {len(key)} digits is not in the vocabulary")
    return int(key)
