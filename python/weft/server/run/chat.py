"""Chat requests for all APIs: messages become a prompt, and generated text is parsed into message parts."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from weft import Finished, InvalidRequestError, Request, Token
from weft.chat.answer.parts import AnswerForm, AnswerReader, CallArguments, CallStart, Part
from weft.chat.format import ChatPrompt
from weft.server import request_fields
from weft.server.request_fields.chat import ChatFields
from weft.server.run.client_timeouts import n_body_bytes
from weft.server.run.end_reason import stop_string
from weft.server.run.executor import Purpose
from weft.server.run.generation import Generation
from weft.server.run.service import Service
from weft.server.run.submission import BranchSubmission, Submission, each_branch
from weft.settings import Settings

__all__ = ["BranchParsers", "count_tokens", "submission", "submit_chat"]

_SubmissionT = TypeVar("_SubmissionT", Submission, BranchSubmission)

CHUNK_CHARACTERS = 1_024
"""Characters of the text before a fork that are parsed in one step."""


async def submit_chat(data: ChatFields, service: Service, *, n_more: int = 0) -> tuple[Generation, AnswerForm]:
    """Submits a chat. Returns the generation and the format for parsing its text.

    Args:
        data: The request's fields.
        service: The service.
        n_more: Bytes of messages that were not part of the request's body.

    Raises:
        InvalidRequestError: A field is invalid, or the template refuses the messages.
        WeftError: As [`Service.chat_prompt`] and [`Service.submit`].
    """
    files = request_fields.chat_files(data.messages)
    prompt = await service.chat_prompt(data, files, n_more=n_more, with_system_end=data.explain_cache is True)
    parsed = await submission(data, prompt, service)
    return await service.submit(parsed), prompt.answer_to(parsed.template)


async def count_tokens(data: ChatFields, service: Service, *, n_more: int = 0) -> int:
    """Returns the number of prompt tokens of a chat. `n_more` is the size of messages outside the request's body, in bytes.

    Raises:
        WeftError: As [`Service.chat_prompt`].
    """
    prompt = await service.chat_prompt(data, request_fields.chat_files(data.messages), n_more=n_more)
    return len(prompt.tokens)


async def submission(data: ChatFields, prompt: ChatPrompt, service: Service) -> Submission:
    """Returns the submission for a body whose messages were rendered to `prompt`. Long work runs on a worker thread.

    Raises:
        InvalidRequestError: A field is invalid.
    """
    # The grammar that constrains tool calls may have many rules.
    size = request_fields.branches_size(data) + (0 if prompt.constraint is None else n_body_bytes())
    return await service.executor.run(Purpose.PROMPT, size, _submission, data, prompt, service.settings)


def _submission(data: ChatFields, prompt: ChatPrompt, settings: Settings) -> Submission:
    """Returns the submission for a rendered chat. The reasoning budget applies even to models without reasoning."""
    # The engine reports the logprob of the sampled token only together with top logprobs.
    n_probs = ("top_logprobs", max(data.top_logprobs or 0, 1)) if data.logprobs else ("n_probs", data.n_probs)
    parsed = request_fields.submission(msgspec.structs.replace(data, prompt=prompt.tokens), settings, n_probs=n_probs)
    template = msgspec.structs.replace(
        parsed.template, checkpoints_at=prompt.turn_ends, system_end=prompt.system_end, cache_answers=settings.keep_chat_answers
    )
    parsed = msgspec.structs.replace(parsed, n_volatile=prompt.n_volatile)
    if prompt.constraint is None:
        return msgspec.structs.replace(parsed, template=template)
    held = partial(
        prompt.constraint.apply,
        budget=settings.reasoning_budget,
        message=request_fields.budget_message(data, settings, prompt.constraint.ends),
    )
    sent_as = {"grammar": "tools", "grammar_triggers": "tools"} if prompt.constraint.has_tools else {}
    try:
        template = held(template)
        branches = each_branch(parsed.branches, lambda branch: _with(branch, held(branch.template), sent_as))
    except InvalidRequestError as error:
        raise parsed.rename_parameter(error) from None
    return _with(msgspec.structs.replace(parsed, branches=branches), template, sent_as)


def _with(parsed: _SubmissionT, template: Request, sent_as: Mapping[str, str]) -> _SubmissionT:
    """Returns the submission with another template and additional field names."""
    return msgspec.structs.replace(parsed, template=template, sent_as={**parsed.sent_as, **sent_as})


class BranchParsers:
    """Parses the text of each branch of a chat into message parts."""

    def __init__(self, form: AnswerForm, before: Callable[[int], str] = lambda _: "") -> None:
        """Creates parsers.

        Args:
            form: Format of the generated text.
            before: Returns the text before a forked branch's own text.
        """
        self._form = form
        self._before = before
        self._readers: dict[int, AnswerReader] = {}
        self._n_calls_before: dict[int, int] = {}
        """For forked branches: complete tool calls before the fork."""
        self._callers: set[int] = set()
        self._cut: set[int] = set()

    def read(self, event: Token | Finished) -> list[Part]:
        """Returns the parts that an event adds to its branch. The final event also releases withheld text."""
        reader = self._readers.get(event.index)
        parts: list[Part] = []
        if reader is None:
            reader = self._readers[event.index] = self._form.reader()
            if before := self._before(event.index):
                parts = self._parse_prefix(event.index, reader, before)
        text = event.text
        parts += reader.read(text) if text else []
        if isinstance(event, Finished):
            parts += reader.end(is_truncated=event.finish_reason != "stop")
            if reader.is_cut:
                self._cut.add(event.index)
            del self._readers[event.index]
        if n_before := self._n_calls_before.get(event.index, 0):
            parts = [_renumbered(part, n_before) for part in parts]
        for part in parts:
            if isinstance(part, CallStart):
                self._callers.add(event.index)
        return parts

    def _parse_prefix(self, index: int, reader: AnswerReader, before: str) -> list[Part]:
        """Parses the text before a forked branch.

        If the fork is inside a tool call, the branch repeats that call from its beginning.
        """
        # In one step, the remaining text would be searched again after each marker.
        parts_before = [
            part
            for start in range(0, len(before), CHUNK_CHARACTERS)
            for part in reader.read(before[start : start + CHUNK_CHARACTERS])
        ]
        n_calls = sum(isinstance(part, CallStart) for part in parts_before)
        n_whole = self._n_calls_before[index] = n_calls - reader.is_cut
        return [part for part in parts_before if isinstance(part, CallStart | CallArguments) and part.call >= n_whole]

    def calls(self, finished: Finished) -> bool:
        """Returns whether a branch called a tool and was not interrupted within a call or where another could have followed."""
        is_cut = stop_string(finished) is not None and self.is_cut(finished.index)
        return finished.index in self._callers and finished.finish_reason == "stop" and not is_cut

    def is_cut(self, index: int) -> bool:
        """Returns whether a branch ended within a tool call."""
        return index in self._cut


def _renumbered(part: Part, n_before: int) -> Part:
    """Returns the part with its call index counted from the fork."""
    return msgspec.structs.replace(part, call=part.call - n_before) if isinstance(part, CallStart | CallArguments) else part
