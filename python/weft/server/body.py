"""The part of a request that both dialects share: llama-server takes its own sampling fields on OpenAI's routes too.

Null is absent in every field, and a field that is not named here is ignored. A field that asks for what is not there is
refused by name, unless its value asks for nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from weft import Engine, InvalidRequest, Request
from weft.server.service import Piece
from weft.settings import Settings

__all__ = ["CompletionFields", "Prompt", "first_given", "prompts_of", "refuse_unsupported", "template"]


class TextPrompt(msgspec.Struct):
    """llama-server's prompt with media, of which we take the text."""

    prompt_string: str
    multimodal_data: list[Any] | None = None


Prompt = str | TextPrompt | list[int | str | TextPrompt | list[int | str]]
"""One text, one list of tokens and texts, or a list of prompts."""

LogitBias = list[tuple[int | str, float | bool]] | dict[str, float | bool]
"""Pairs, or OpenAI's object; a text stands for each of its tokens, and `false` bans."""

DEFAULT_SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]

MAX_LIMIT = 2**31 - 1
"""Limits above this are as good as this: the context ends every completion long before."""

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

    # What follows is refused unless it asks for nothing.
    adaptive_target: float | None = None
    dry_multiplier: float | None = None
    dynatemp_range: float | None = None
    grammar: str | None = None
    image_data: list[Any] | None = None
    json_schema: Any = None
    lora: list[Any] | None = None
    min_keep: int | None = None
    mirostat: int | None = None
    n_indent: int | None = None
    penalty_prompt: Any = None
    post_sampling_probs: bool | None = None
    response_fields: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    return_progress: bool | None = None
    samplers: str | list[str] | None = None
    system_prompt: Any = None
    t_max_predict_ms: int | None = None
    tfs_z: float | None = None
    timings_per_token: bool | None = None
    tools: list[Any] | None = None
    top_n_sigma: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None


# Field → whether a value asks for nothing.
_NEUTRAL: dict[str, Callable[[Any], bool]] = {
    "adaptive_target": lambda value: value < 0,
    "dry_multiplier": lambda value: value == 0,
    "dynatemp_range": lambda value: value == 0,
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
    "response_format": lambda value: value.get("type", "text") == "text",
    "return_progress": lambda value: value is False,
    "samplers": lambda value: value in (DEFAULT_SAMPLERS, "", [], "edskypmxt"),
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


def first_given(body: CompletionFields, *names: str) -> int | None:
    """The value of the first of several names for one field that the body gives; None where it gives none."""
    return next((value for name in names if (value := getattr(body, name)) is not None), None)


def prompts_of(prompt: Prompt | None) -> list[list[Piece]]:
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


def template(body: CompletionFields, settings: Settings, engine: Engine, *, n_probs: int) -> Request:
    """The request that a body asks for, all but its prompt."""

    def given(name: str) -> Any:  # noqa: ANN401 (each field has its own type)
        value = getattr(body, name)
        return getattr(settings, name) if value is None else value

    n = first_given(body, "n_cmpl", "n")
    limit = first_given(body, "n_predict", "max_completion_tokens", "max_tokens")
    if limit is not None and limit < -1:
        raise InvalidRequest("n_predict", f"n_predict is {limit}; it must be -1 or more")
    return Request(
        prompt=(),
        n=1 if n is None else n,
        max_tokens=settings.n_predict if limit is None else None if limit == -1 else min(limit, MAX_LIMIT),
        stop=[word for word in ([body.stop] if isinstance(body.stop, str) else body.stop or []) if word],
        seed=_seed(given("seed")),
        logit_bias=_logit_bias(body.logit_bias or [], engine),
        n_probs=n_probs,
        **{name: given(name) for name in _SAMPLING},
    )


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


def _logit_bias(biases: LogitBias, engine: Engine) -> Sequence[tuple[int, float]]:
    pairs = [(_key(key), bias) for key, bias in biases.items()] if isinstance(biases, dict) else biases
    result: list[tuple[int, float]] = []
    for key, bias in pairs:
        if bias is True:
            raise InvalidRequest("logit_bias", f"the bias of {key!r} is true; it must be a number or false")
        number = float("-inf") if bias is False else bias
        tokens = [key] if isinstance(key, int) else engine.tokenize(key, add_special=False, parse_special=False)
        result += [(token, number) for token in tokens]
    return result


def _key(key: str) -> int | str:
    """A key of OpenAI's object: a token's number, or a text."""
    try:
        return int(key)
    except ValueError:
        return key
