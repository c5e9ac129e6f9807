"""Messages between the HTTP process and the replicas: plain data that can be pickled efficiently."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec

from weft._native import Biases, CompactLogprobs, MixedPrompt, Model, TokenIds
from weft.errors import NotSupportedError, WeftError
from weft.events import CacheExplanation, Event, Logprob, Logprobs, PromptLogprobs, Token
from weft.ray.digest import Digest
from weft.request import Prompt, Request
from weft.request.schema import schema_text


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a replica."""

    id: str
    """Id of the call, for cancellation."""
    request: Request
    """The request, without its prompt."""
    tokens: bytes
    """The prompt, encoded by `packed`."""
    salt: bytes
    """Key of its block hashes, which depends on its adapters."""
    only: str | None = None
    """Id of the only replica that may handle it; None is any."""
    avoid: tuple[str, ...] = ()
    """Replicas that have failed to handle it, which are tried last."""


class MethodCall(msgspec.Struct, frozen=True):
    """A call of a method of a replica."""

    method: str
    given: tuple[Any, ...]
    only: str | None = None
    """Id of the only replica that may handle it; None is any."""


class RequestAccepted(msgspec.Struct, frozen=True):
    """First message of a response: the replica has queued the request."""

    replica_id: str
    request_id: int
    """Id of the request in the replica's engine."""


class ReplicaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Constant properties of a replica, as plain copies of the compiled engine's objects."""

    limits: SimpleNamespace
    compute: SimpleNamespace
    is_repeatable: bool
    no_speculation_reason: str | None
    draft_type: str | None
    embeddings_are_repeatable: bool
    adapters: list[SimpleNamespace]
    stats: SimpleNamespace
    """Stats at the time of the copy, as `embedding_stats`."""
    embedding_stats: SimpleNamespace
    model: dict[str, Any]
    """Properties of the weights: `n_params`, `size_bytes`, and so on."""


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """Periodic report of a replica, about once a second."""

    digest: Digest
    stats: SimpleNamespace
    embedding_stats: SimpleNamespace


Sent = RequestAccepted | CacheExplanation | list[Event] | WeftError
"""Messages of a response to a call: `RequestAccepted`, causes of cache misses if requested, lists of events, or a final error."""


def packed(tokens: Sequence[int]) -> bytes:
    """Encodes token ids as 32-bit integers."""
    return array("i", tokens).tobytes()


def unpacked(tokens: bytes) -> list[int]:
    """Decodes the result of `packed`."""
    numbers = array("i")
    numbers.frombytes(tokens)
    return numbers.tolist()


def tokens_of(prompt: Prompt, model: Model) -> list[int]:
    """Returns the token ids of a prompt.

    Raises:
        NotSupportedError: The prompt has images or audio.
        InvalidRequestError: The value is not a prompt.
    """
    if isinstance(prompt, str):
        return model.tokenize(prompt)
    if isinstance(prompt, TokenIds):
        return prompt.part(0, len(prompt))
    if not isinstance(prompt, MixedPrompt):
        if all(type(piece) is int for piece in prompt):
            return list(prompt)  # type: ignore[arg-type]  # Checked above.
        prompt = model.tokenize_parts(prompt)
    if prompt.media:
        raise NotSupportedError("images and audio are not sent to replicas; serve such a model without Ray")
    return prompt.text_tokens


def portable_request(request: Request) -> Request:
    """Returns a request without its prompt, with plain data only.

    Raises:
        InvalidRequestError: The JSON schema is invalid.
    """
    branches = tuple({name: _plain(name, value) for name, value in branch.items()} for branch in request.branches)
    plain = {name: _plain(name, getattr(request, name)) for name in ("logit_bias", "penalty_prompt", "json_schema")}
    return msgspec.structs.replace(request, prompt=(), branches=branches, **plain)


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 (a field of any type)
    if name == "json_schema" and value is not None:
        return schema_text(value)
    if isinstance(value, TokenIds):
        return value.part(0, len(value))
    return list(value) if isinstance(value, Biases) else value


def portable(event: Event) -> Event:
    """Returns an event of a compact stream with its log-probabilities as lists of pairs."""
    return _converted(event, CompactLogprobs.pairs)


def received(event: Event, model: Model, *, compact: bool) -> Event:
    """Reverts `portable`, with the spelling of tokens from this process's vocabulary."""
    return _converted(event, partial(CompactLogprobs, model) if compact else partial(_logprobs, model))


def _converted(event: Event, convert: Callable[[Any], Any]) -> Event:
    if isinstance(event, Token) and event.logprobs is not None:
        return msgspec.structs.replace(event, logprobs=convert(event.logprobs))
    if isinstance(event, PromptLogprobs):
        return msgspec.structs.replace(event, logprobs=tuple(None if one is None else convert(one) for one in event.logprobs))
    return event


def _logprobs(model: Model, pairs: Sequence[tuple[int, float]]) -> Logprobs:
    chosen, *top = (Logprob(token, model.token_bytes(token), logprob) for token, logprob in pairs)
    return Logprobs(chosen, tuple(top))
