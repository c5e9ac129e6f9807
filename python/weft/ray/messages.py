"""What goes between the process that speaks HTTP and those that compute: plain data, which pickles well."""

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from weft._native import Biases, CompactLogprobs, MixedPrompt, Model, TokenIds
from weft.errors import NotSupported, WeftError
from weft.events import CacheExplanation, Event, Logprob, Logprobs, PromptLogprobs, Token
from weft.ray.digest import Digest
from weft.request import Prompt, Request
from weft.request.schema import schema_text

__all__ = [
    "Begun",
    "Call",
    "Facts",
    "Sent",
    "Told",
    "packed",
    "portable",
    "portable_request",
    "received",
    "tokens_of",
    "unpacked",
]


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request on its way to a replica."""

    id: str
    """By which its branches are cancelled."""
    request: Request
    """All but the prompt."""
    tokens: bytes
    """The prompt, as `packed` writes it."""
    salt: bytes
    """The key of the hashes of its blocks, which follows its adapters."""
    only: str | None = None
    """The replica that it is for; None is any."""
    avoid: tuple[str, ...] = ()
    """Replicas that did not take it before: they come last."""


class Question(msgspec.Struct, frozen=True):
    """A method of a replica, and what it is given."""

    method: str
    given: tuple[Any, ...]
    only: str | None = None
    """As of `Call`."""


class Begun(msgspec.Struct, frozen=True):
    """The first message of an answer: the replica has the request."""

    replica_id: str
    request_id: int
    """By which the replica's engine counts it."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while a replica lives. Each is told as the compiled engine's object of that name."""

    limits: SimpleNamespace
    compute: SimpleNamespace
    is_repeatable: bool
    embeddings_are_repeatable: bool
    adapters: list[SimpleNamespace]
    stats: SimpleNamespace
    """Of the time when they were asked for, as the next one."""
    vector_stats: SimpleNamespace
    model: dict[str, Any]
    """What only the weights tell: `n_params`, `size_bytes`, and so on."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica tells of itself about once a second."""

    digest: Digest
    stats: SimpleNamespace
    vector_stats: SimpleNamespace


Sent = Begun | CacheExplanation | list[Event] | WeftError
"""What a replica answers a call with: that it has it; why its prompt is computed, if it asks; events as they come; and at the end
perhaps an error."""


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as 32 bits each."""
    return array("i", tokens).tobytes()


def unpacked(tokens: bytes) -> list[int]:
    """What `packed` wrote."""
    numbers = array("i")
    numbers.frombytes(tokens)
    return numbers.tolist()


def tokens_of(prompt: Prompt, model: Model) -> list[int]:
    """The tokens of a prompt.

    Raises:
        NotSupported: It holds pictures or sounds.
        InvalidRequest: It is no prompt.
    """
    if isinstance(prompt, str):
        return model.tokenize(prompt)
    if isinstance(prompt, TokenIds):
        return prompt.part(0, len(prompt))
    if not isinstance(prompt, MixedPrompt):
        if all(type(piece) is int for piece in prompt):
            return list(prompt)  # type: ignore[arg-type]  # As was just seen.
        prompt = model.tokenize_parts(prompt)
    if prompt.media:
        raise NotSupported("pictures and sounds are not sent to replicas; serve such a model without Ray")
    return prompt.text_tokens


def portable_request(request: Request) -> Request:
    """The same without its prompt, of plain data alone.

    Raises:
        InvalidRequest: What is given as a JSON schema is none.
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
    """An event of a stream that is read compactly, its log-probabilities as lists of pairs."""
    if isinstance(event, Token) and event.logprobs is not None:
        return msgspec.structs.replace(event, logprobs=cast("CompactLogprobs", event.logprobs).pairs())
    if isinstance(event, PromptLogprobs):
        told = cast("Sequence[CompactLogprobs | None]", event.logprobs)
        pairs = tuple(None if one is None else one.pairs() for one in told)
        return msgspec.structs.replace(event, logprobs=pairs)
    return event


def received(event: Event, model: Model, *, compact: bool) -> Event:
    """What `portable` was given, with log-probabilities that are spelt by this process's vocabulary."""
    pairs: Any
    if isinstance(event, Token) and (pairs := event.logprobs) is not None:
        return msgspec.structs.replace(event, logprobs=_logprobs(pairs, model, compact=compact))
    if isinstance(event, PromptLogprobs):
        pairs = event.logprobs
        told = tuple(None if one is None else _logprobs(one, model, compact=compact) for one in pairs)
        return msgspec.structs.replace(event, logprobs=told)
    return event


def _logprobs(pairs: Any, model: Model, *, compact: bool) -> CompactLogprobs | Logprobs:  # noqa: ANN401 (stands where others do)
    if compact:
        return CompactLogprobs(model, pairs)
    chosen, *top = (Logprob(token, model.token_bytes(token), logprob) for token, logprob in pairs)
    return Logprobs(chosen, tuple(top))
