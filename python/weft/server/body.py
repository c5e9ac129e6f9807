"""The part of a request that both dialects share: llama-server takes its own sampling fields on OpenAI's routes too.

Null is absent in every field, and a field that is not named here is ignored. A field that asks for what is not there is
refused by name, unless its value asks for nothing.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import InvalidRequest, Request
from weft.server.submission import Piece, Submission
from weft.settings import Settings

__all__ = ["SAMPLERS", "CompletionFields", "Prompt", "first_given", "refuse_unsupported", "submission", "template"]


class TextPrompt(msgspec.Struct):
    """llama-server's prompt with media, of which we take the text."""

    prompt_string: str
    multimodal_data: list[Any] | None = None


Prompt = str | TextPrompt | list[int | str | TextPrompt | list[int | str]]
"""One text, one list of tokens and texts, or a list of prompts."""

LogitBias = list[tuple[int | str, float | bool]] | dict[str, float | bool]
"""Pairs, or OpenAI's object; a text stands for each of its tokens, and `false` bans."""

SAMPLERS = ["penalties", "top_k", "top_p", "min_p", "temperature"]
"""What is applied to the logits, in this order."""

IDLE_SAMPLERS = {"dry", "top_n_sigma", "typ_p", "xtc", "adaptive_p"}
"""llama-server's other samplers: each has a field of its own, which can only leave it off."""

SAMPLER_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}
"""llama-server's short spelling of the list."""

MAX_DIGITS = 18
"""A token's number of more digits is in no vocabulary, and costly to read."""

MAX_LIMIT = 2**31 - 1
"""Limits above this are as good as this: the context ends every completion long before."""

ANY_SLOT = -1
"""llama-server's number for no slot in particular."""

RANDOM_SEED = 2**32 - 1
"""llama-server's number for "any seed", as -1 is."""


class CompletionFields(msgspec.Struct, kw_only=True):
    """Fields of a completion, in llama-server's spelling. `None` takes the server's default."""

    prompt: Prompt | None = None
    stream: bool | None = None
    n: int | None = None
    n_cmpl: int | None = None
    n_predict: int | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = None
    ignore_eos: bool | None = None
    n_probs: int | None = None
    logprobs: int | None = None
    id_slot: int | None = None

    # What follows is refused unless it asks for nothing.
    adaptive_target: float | None = None
    dry_multiplier: float | None = None
    dynatemp_range: float | None = None
    grammar: Any = None
    image_data: Any = None
    json_schema: Any = None
    lora: Any = None
    min_keep: int | None = None
    mirostat: int | None = None
    n_indent: int | None = None
    penalty_prompt: Any = None
    post_sampling_probs: bool | None = None
    response_fields: Any = None
    response_format: Any = None
    return_progress: bool | None = None
    samplers: str | list[str] | None = None
    system_prompt: Any = None
    t_max_predict_ms: int | None = None
    tfs_z: float | None = None
    timings_per_token: bool | None = None
    tools: Any = None
    top_n_sigma: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None


def _is_free_text(response_format: Any) -> bool:  # noqa: ANN401 (any JSON)
    return not response_format or (isinstance(response_format, dict) and response_format.get("type") in (None, "text"))


def _is_our_order(samplers: str | list[str]) -> bool:
    names = [SAMPLER_LETTERS.get(letter, letter) for letter in samplers] if isinstance(samplers, str) else samplers
    return not names or [name for name in names if name not in IDLE_SAMPLERS] == SAMPLERS


# Field → whether a value asks for nothing.
_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "adaptive_target": lambda value: value < 0,
    "dry_multiplier": lambda value: value == 0,
    "dynatemp_range": lambda value: value <= 0,
    "grammar": lambda value: value == "",
    "image_data": lambda value: not value,
    # `{}` is a schema: any JSON.
    "json_schema": lambda value: value is None,
    "lora": lambda value: not value,
    "min_keep": lambda value: value == 0,
    "mirostat": lambda value: value == 0,
    "n_indent": lambda value: value == 0,
    "penalty_prompt": lambda value: not value,
    "post_sampling_probs": lambda value: value is False,
    "response_fields": lambda value: not value,
    "response_format": _is_free_text,
    "return_progress": lambda value: value is False,
    "samplers": _is_our_order,
    "system_prompt": lambda value: not value,
    "t_max_predict_ms": lambda value: value <= 0,
    "tfs_z": lambda value: value >= 1,
    "timings_per_token": lambda value: value is False,
    "tools": lambda value: not value,
    "top_n_sigma": lambda value: value <= 0,
    "typical_p": lambda value: value >= 1,
    "xtc_probability": lambda value: value == 0,
}


def refuse_unsupported(body: CompletionFields, more: dict[str, Callable[[Any], bool]] | None = None) -> None:
    """Raises [`InvalidRequest`] for the first field that asks for what is not there.

    `more` names what a dialect refuses besides.
    """
    for name, is_neutral in (_NEUTRAL | (more or {})).items():
        value = getattr(body, name)
        if value is not None and not is_neutral(value):
            raise InvalidRequest(name, f"{name} is not supported; leave it out")


def first_given(body: CompletionFields, *names: str) -> tuple[str, int | None]:
    """The first of several names for one field that the body gives, and its value; the last, with None, where it gives none."""
    return next(((name, value) for name in names if (value := getattr(body, name)) is not None), (names[-1], None))


def _prompts(prompt: Prompt | None) -> list[list[Piece]]:
    """The prompts of a body, each a list of texts and tokens.

    A list is one prompt if any of its elements is a token, as llama-server reads it; otherwise each element is a prompt.
    """
    if prompt is None:
        raise InvalidRequest("prompt", "a prompt must be given")
    if isinstance(prompt, str | TextPrompt):
        return [_pieces(prompt)]
    if not prompt:
        raise InvalidRequest("prompt", "the list of prompts is empty")
    if any(isinstance(element, int) for element in prompt):
        if not all(isinstance(element, int | str) for element in prompt):
            raise InvalidRequest("prompt", "a list that holds tokens may hold texts beside them, and nothing else")
        return [[element for element in prompt if isinstance(element, int | str)]]
    return [_pieces(element) for element in prompt if not isinstance(element, int)]


def _pieces(prompt: str | TextPrompt | list[int | str]) -> list[Piece]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, TextPrompt):
        if prompt.multimodal_data:
            raise InvalidRequest("prompt", "multimodal_data is not supported; leave it out")
        return [prompt.prompt_string]
    return list(prompt)


def submission(body: CompletionFields, settings: Settings, *, n_probs: tuple[str, int | None]) -> Submission:
    """What a body asks for; `n_probs` with the name that the body has for it."""
    name, value = n_probs
    return Submission(
        prompts=_prompts(body.prompt),
        template=template(body, settings, n_probs=value or 0),
        logit_bias=_logit_bias(body.logit_bias or []),
        slot=None if body.id_slot == ANY_SLOT else body.id_slot,
        sent_as={"n": first_given(body, *_N)[0], "n_probs": name},
    )


def template(body: CompletionFields, settings: Settings, *, n_probs: int = 0) -> Request:
    """The request that a body asks for, all but its prompt and its biases."""

    def given(name: str) -> Any:  # noqa: ANN401 (each field has its own type)
        value = getattr(body, name)
        return getattr(settings, name) if value is None else value

    _, n = first_given(body, *_N)
    name, limit = first_given(body, "n_predict", "max_completion_tokens", "max_tokens")
    if limit is not None and limit < -1:
        raise InvalidRequest(name, f"{name} is {limit}; it must be -1 or more")
    return Request(
        prompt=(),
        n=1 if n is None else n,
        max_tokens=settings.n_predict if limit is None else None if limit == -1 else min(limit, MAX_LIMIT),
        stop=[word for word in ([body.stop] if isinstance(body.stop, str) else body.stop or []) if word],
        seed=_seed(given("seed")),
        n_probs=n_probs,
        **{name: given(name) for name in _SAMPLING},
    )


_N = ("n_cmpl", "n")

_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
)


def _seed(seed: int | None) -> int | None:
    """Seeds have 32 bits; larger ones wrap, as llama-server's do."""
    return None if seed in (None, -1, RANDOM_SEED) else seed % 2**32


def _logit_bias(biases: LogitBias) -> Sequence[tuple[Piece, float]]:
    pairs = [(_key(key), bias) for key, bias in biases.items()] if isinstance(biases, dict) else biases
    for key, bias in pairs:
        if bias is True:
            raise InvalidRequest("logit_bias", f"the bias of {key!r} is true; it must be a number or false")
    return [(key, float("-inf") if bias is False else bias) for key, bias in pairs]


def _key(key: str) -> Piece:
    """A key of OpenAI's object: a token's number, or a text."""
    if re.fullmatch("-?[0-9]+", key) is None:
        return key
    if len(key) > MAX_DIGITS:
        raise InvalidRequest("logit_bias", f"a token of {len(key)} digits is outside of the vocabulary")
    return int(key)
