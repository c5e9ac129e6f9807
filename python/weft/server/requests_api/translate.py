"""Conversion of generations to reports. No I/O here."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from weft import CacheExplanation, InvalidRequestError, Slot
from weft.fields.validation import check_range
from weft.request.branches import FORK_FIELDS
from weft.server.inference.generation import Generation
from weft.server.inference.submission import ForkSubmission
from weft.server.request_fields import prompts, requests
from weft.server.request_fields.fields import FORK_NAMES, CompletionFields
from weft.server.requests_api.schemas import BranchReport, ForkBody, ForkPlace, RequestReport, RequestsReport, RequestSummary
from weft.server.response_fields.result import Branches
from weft.server.service import Service
from weft.settings import Settings

MAX_REPORTED = 256
"""Maximum branches of a report, which includes settings and text of each."""

Slots = Mapping[tuple[int, int], int]
"""Slots of running branches, by request id and branch index."""


def reports(generations: Sequence[Generation], listed: Sequence[Slot]) -> RequestsReport:
    """Returns the report of an owner's requests."""
    slots = _slots(listed)
    return RequestsReport([_summary(one, slots) for one in sorted(generations, key=lambda one: one.created)])


def report(generation: Generation, service: Service, listed: Sequence[Slot], *, first: int) -> RequestReport:
    """Returns the report of a request with up to `MAX_REPORTED` branches, from `first` on.

    Raises:
        InvalidRequestError: `first` is negative.
    """
    check_range("first", first, 0)
    slots = _slots(listed)
    branches = Branches(generation, service.engine, service.model_name)
    last = min(first + MAX_REPORTED, n_branches(generation))
    places = [branch_index for index in range(first, last) if (branch_index := branch_of(generation, index)) is not None]
    reports = [_branch(generation, branches, *branch_index, slots) for branch_index in places]
    summary = msgspec.structs.asdict(_summary(generation, slots))
    return RequestReport(**summary, branches=reports, cache_explanation=_explanation(generation))


def _explanation(generation: Generation) -> CacheExplanation | list[CacheExplanation | None] | msgspec.UnsetType:
    known = generation.explanations_by_now()
    reports = [known.get(prompt) for prompt in range(len(generation.requests))]
    return msgspec.UNSET if not known else reports if len(reports) > 1 else known[0]


def branch_of(generation: Generation, index: int) -> tuple[int, int] | None:
    """Converts an index over all prompts to the prompt and the branch's index within it. Returns None if it does not exist."""
    if len(generation.streams) == 1:
        return (0, index) if 0 <= index < generation.n_branches(0) else None
    n = generation.requests[0].n
    return divmod(index, n) if 0 <= index < n * len(generation.streams) else None


def n_branches(generation: Generation) -> int:
    """Returns the number of branches of all prompts, including forks."""
    return sum(generation.n_branches(prompt) for prompt in range(len(generation.streams)))


_OTHER_NAMES = {
    "n_predict": ("max_tokens",),
    "max_completion_tokens": ("max_tokens",),
    "t_max_predict_ms": ("max_predict_ms",),
    "grammar": ("grammar", "json_schema"),
    "json_schema": ("grammar", "json_schema"),
    "response_format": ("grammar", "json_schema"),
}
"""Request fields that a body names differently."""


def fork_submission(data: ForkBody, settings: Settings) -> ForkSubmission:
    """Returns the fork request of a body; options are those that the body sets, as request fields.

    Raises:
        InvalidRequestError: A field is invalid.
    """
    given = {name: value for name in FORK_NAMES if (value := getattr(data, name)) is not None}
    parsed = requests.template(CompletionFields(**given), settings, n=1)
    changed = {field for name in given for field in _OTHER_NAMES.get(name, (name,))} & FORK_FIELDS
    options: dict[str, Any] = {name: getattr(parsed, name) for name in changed - {"logit_bias", "penalty_prompt"}}
    if data.n_probs is not None:
        options["logprobs"] = data.n_probs or None
    at, unit = _fork_position(data.at)
    return ForkSubmission(
        options=options,
        logit_bias=None if data.logit_bias is None else prompts.logit_bias(data.logit_bias),
        penalty_prompt=None if data.penalty_prompt is None else prompts.penalty_prompt(data.penalty_prompt),
        n=1 if data.n is None else data.n,
        at=at,
        unit=unit,
        append=prompts.pieces(data.append or ""),
        own_stream=data.stream is True,
    )


def _fork_position(at: ForkPlace | None) -> tuple[int | None, Literal["token", "byte"]]:
    if at is None:
        return None, "token"
    match at.token, at.byte:
        case int(token), None:
            return token, "token"
        case None, int(byte):
            return byte, "byte"
        case _:
            raise InvalidRequestError("at", 'at must be either {"token": n} or {"byte": n}')


def _slots(listed: Sequence[Slot]) -> Slots:
    return {(slot.request_id, slot.index): slot.id for slot in listed if slot.request_id is not None and slot.index is not None}


def _summary(generation: Generation, slots: Slots) -> RequestSummary:
    numbers = [stream.request_id for stream in generation.streams]
    return RequestSummary(
        id=generation.id,
        id_task=numbers,
        created=int(generation.created),
        stream=generation.submission.stream,
        n_prompts=len(numbers),
        n_branches=n_branches(generation),
        n_finished=generation.n_finished,
        n_running=sum(number in set(numbers) for number, _ in slots),
    )


def _branch(generation: Generation, branches: Branches, prompt: int, branch_index: int, slots: Slots) -> BranchReport:
    slot = slots.get((generation.streams[prompt].request_id, branch_index))
    reason = generation.reason(prompt, branch_index)
    return BranchReport(
        index=prompt * branches.n + branch_index,
        state="finished" if reason is not None else "waiting" if slot is None else "running",
        text=generation.texts[prompt].text(branch_index),
        n_predicted=generation.n_predicted(prompt, branch_index),
        reason=reason,
        id_slot=-1 if slot is None else slot,
        params=branches.settings(prompt, branch_index),
    )
