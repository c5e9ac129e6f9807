"""Chat requests for all APIs: messages become a prompt, and the request is submitted."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec

from weft import InvalidRequestError, MixedPrompt
from weft._native import TokenIds
from weft.chat.pipeline import ChatPrompt
from weft.server.executor import Purpose
from weft.server.inference.generation import Generation
from weft.server.inference.submission import BranchSubmission, Rename, Submission, each_branch, renaming, unchanged
from weft.server.media.files import MediaFile
from weft.server.request_fields import requests
from weft.server.request_fields.branches import branches_size
from weft.server.request_fields.chat import ChatFields
from weft.server.request_fields.media import chat_files
from weft.server.service import Service
from weft.server.streaming.client_timeouts import n_body_bytes
from weft.settings import Settings

OptionsT = TypeVar("OptionsT", Submission, BranchSubmission)

MESSAGE_SIZE = 64
"""Cost of processing a message in addition to its text, in characters."""


async def submit_chat(
    data: ChatFields,
    service: Service,
    *,
    rename: Rename = unchanged,
    n_more: int = 0,
    context: Sequence[int] = (),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Generation:
    """Submits a chat.

    Args:
        data: The request's fields.
        service: The service.
        rename: Names invalid fields as the client's API does.
        n_more: Bytes of messages that were not part of the request's body.
        context: Tokens before the prompt: an earlier prompt with its answer.
        more: Fields of the engine's request that `data` does not have.

    Raises:
        InvalidRequestError: A field is invalid, or the template refuses the messages.
        ContextOverflowError: The prompt cannot fit.
        WeftError: As [`MediaReader.read`] and [`Service.submit`].
    """
    with renaming(rename):
        prompt = await _prompt(data, service, n_more=n_more, with_system_end=data.explain_cache is True)
        if context:
            prompt = _after_context(prompt, context, service)
        # The grammar that constrains tool calls may have many rules.
        size = branches_size(data) + (0 if prompt.constraint is None else n_body_bytes())
        parsed = await service.executor.run(Purpose.PROMPT, size, _submission, data, prompt, service.settings)
        if more:
            parsed = msgspec.structs.replace(parsed, template=msgspec.structs.replace(parsed.template, **more))
        return await service.submit(parsed, prompt.answer_to(parsed.template))


async def count_tokens(data: ChatFields, service: Service, *, rename: Rename = unchanged, n_more: int = 0) -> int:
    """Returns the number of prompt tokens of a chat. The arguments are those of `submit_chat`.

    Raises:
        InvalidRequestError: A field is invalid, or the template refuses the messages.
        ContextOverflowError: The prompt cannot fit.
        WeftError: As [`MediaReader.read`].
    """
    with renaming(rename):
        return len((await _prompt(data, service, n_more=n_more)).tokens)


async def rendered_text(data: ChatFields, service: Service) -> str:
    """Renders a chat and returns the text. Raises as `count_tokens`, but does not read the files."""
    files = chat_files(data.messages)
    service.media.check(files)
    chat = await service.compiled_chat()
    return await service.executor.run(Purpose.TEXT, _size(data, files), chat.text, data)


def pin_prefix(shared: ChatFields, generation: Generation, service: Service, *, key: bytes, seconds: float) -> None:
    """Pins the tokens that a chat's prompt shares with the prompt of another chat, which is rendered in the background.

    Args:
        shared: The other chat, with the parts that later chats share.
        generation: The submitted chat.
        service: The service.
        key: Identifies the prefix, for all adapters.
        seconds: Lifetime of the pin since the last request for it.
    """
    prompt, size = generation.requests[0].prompt, n_body_bytes()

    async def prefix() -> Sequence[int]:
        if isinstance(prompt, MixedPrompt):
            return []
        whole = cast("Sequence[int]", prompt)
        other = await service.executor.run_in_thread(Purpose.TEXT, size, service.chat.prompt, shared)
        pairs = zip(cast("list[int]", other.tokens), whole, strict=False)
        return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]

    adapters = service.request_builder.adapters(None)
    service.auto_pinner.keep(key + repr(adapters).encode(), seconds, prefix, adapters)


def drop_stop_string(service: Service, tokens: list[int], n_prompt: int, stop: str) -> None:
    """Removes the tokens of a stop string from the end of a prompt and its answer, but keeps text within its first token."""
    model = service.engine.model
    sought, tail = stop.encode(), b""
    while sought not in tail and len(tokens) > n_prompt:
        tail = model.token_bytes(tokens.pop()) + tail
    if kept := tail.partition(sought)[0]:
        tokens += model.tokenize(kept, add_special=False, parse_special=False)


async def _prompt(data: ChatFields, service: Service, *, n_more: int, with_system_end: bool = False) -> ChatPrompt:
    """Renders a chat and returns its tokens."""
    files = chat_files(data.messages)
    media = await service.media.read(files)
    chat = await service.compiled_chat()
    size = _size(data, files) + n_more
    return await service.executor.run(Purpose.PROMPT, size, chat.prompt, data, media, with_system_end=with_system_end)


def _size(data: ChatFields, files: Sequence[MediaFile]) -> int:
    """Estimates the cost of rendering a chat. A template receives only data from the body, without the files' contents."""
    n_bytes = n_body_bytes() - sum(len(file.source) for file in files)
    return max(n_bytes, 0) + MESSAGE_SIZE * len(data.messages or ())


def _after_context(prompt: ChatPrompt, context: Sequence[int], service: Service) -> ChatPrompt:
    """Returns the prompt after the tokens of an earlier prompt and its answer.

    Raises:
        ContextOverflowError: The tokens do not fit.
        InvalidRequestError: A token is not in the vocabulary.
    """
    model = service.engine.model
    try:
        known = context if isinstance(context, TokenIds) else TokenIds(context)
    except OverflowError:
        raise InvalidRequestError("context", "context has a token id of 2³¹ or more") from None
    service.request_builder.check_length(known)
    if (unknown := known.outside(model.n_vocab)) is not None:
        raise InvalidRequestError(
            "context", f"context has token {unknown}, which is not in the vocabulary ({model.n_vocab} tokens)"
        )
    tokens = prompt.tokens
    assert isinstance(tokens, list), "a prompt with a context has no images"
    n_opening = 1 if model.adds_bos and tokens[:1] == [model.bos_token] else 0
    return msgspec.structs.replace(prompt, tokens=[*context, *tokens[n_opening:]], turn_ends=[], system_end=None)


def _submission(data: ChatFields, prompt: ChatPrompt, settings: Settings) -> Submission:
    """Returns the submission for a rendered chat."""
    # The engine reports the logprob of the sampled token only together with top logprobs.
    n_probs = ("top_logprobs", max(data.top_logprobs or 0, 1)) if data.logprobs else ("n_probs", data.n_probs)
    parsed = requests.submission(msgspec.structs.replace(data, prompt=prompt.tokens), settings, n_probs=n_probs)
    template = msgspec.structs.replace(parsed.template, **prompt.request_fields, system_end=prompt.system_end)
    # The grammar of tool calls is checked like one of the client.
    has_tools = prompt.constraint is not None and prompt.constraint.has_tools
    names = {"grammar": "tools", "grammar_triggers": "tools"} if has_tools else {}

    def constrained(options: OptionsT) -> OptionsT:
        return msgspec.structs.replace(
            options, template=prompt.constrained(options.template), sent_as={**options.sent_as, **names}
        )

    with renaming(parsed.rename_parameter):
        whole = constrained(msgspec.structs.replace(parsed, template=template))
        branches = each_branch(parsed.branches, constrained)
    return msgspec.structs.replace(whole, branches=branches, n_volatile=prompt.n_volatile)
