"""The fields of Weft's own routes to requests that run."""

import msgspec

from weft.server.response_fields import GenerationSettings

__all__ = ["BranchReport", "RequestReport", "RequestSummary", "RequestsReport"]


class RequestSummary(msgspec.Struct, kw_only=True):
    """One request that runs, or waits.

    `id` is what the header `X-Request-Id` of its answer says, and stands behind the dash of an id of OpenAI's; `id_task` are
    the numbers of its prompts in `/slots`.
    """

    id: str
    id_task: list[int]
    created: int
    """When it came, in seconds since 1970."""
    stream: bool
    n_prompts: int
    n_branches: int
    """Of all prompts."""
    n_finished: int
    n_running: int
    """Of the others, those that are in a slot."""


class RequestsReport(msgspec.Struct):
    """The requests of whoever asks, the oldest first."""

    requests: list[RequestSummary]


class BranchReport(msgspec.Struct, kw_only=True):
    """One branch, as far as its client has been told of it."""

    index: int
    state: str
    """`waiting`, for a slot; `running`; or `finished`."""
    text: str
    n_predicted: int
    reason: str | None
    """Why it ended: `end`, `stop`, `length`, `context_full` or `cancelled`."""
    id_slot: int
    """Where it runs; -1 is nowhere."""
    params: GenerationSettings


class RequestReport(RequestSummary, kw_only=True):
    """The same, with its branches: at most 256, from the one on that the query's `first` says."""

    branches: list[BranchReport]
