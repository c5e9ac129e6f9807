"""The fields of Weft's own routes to requests that run."""

import msgspec

from weft.server.request_fields import ForkFields
from weft.server.response_fields import GenerationSettings, Timings
from weft.server.response_fields.explanation import Explained

__all__ = [
    "BranchReport",
    "ForkBody",
    "ForkEnd",
    "ForkEvent",
    "ForkPlace",
    "Forked",
    "RequestReport",
    "RequestSummary",
    "RequestsReport",
]


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
    cache_explanation: Explained = msgspec.UNSET
    """Why what is computed of its prompt has to be, where it asked for that and has begun in a slot.

    Of several prompts a list of those that have begun."""


class ForkPlace(msgspec.Struct, forbid_unknown_fields=True):
    """A place in the text of a branch, its prompt not counted: after so many tokens, or after so many bytes."""

    token: int | None = None
    byte: int | None = None


class ForkBody(ForkFields, kw_only=True, forbid_unknown_fields=True):
    """`POST /requests/{id}/branches/{index}/fork`: how the forks go on, where not as their branch would."""

    n: int | None = None
    """How many forks; 1 where nothing is said."""
    at: ForkPlace | None = None
    """Where they part from the branch; its end where nothing is said."""
    append: str | list[int | str] | None = None
    """What stands between there and what they write."""
    stream: bool | None = None
    """Whether they get a stream of their own, which is this answer; otherwise they come into the request's."""


class Forked(msgspec.Struct):
    """The numbers of forks in the stream of their request."""

    indices: list[int]


class ForkEvent(msgspec.Struct, kw_only=True):
    """One token of a fork that has a stream of its own. The first of them says by which `id` the forks are found as a request."""

    id: str | msgspec.UnsetType = msgspec.UNSET
    index: int
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int
    tokens_predicted: int


class ForkEnd(msgspec.Struct, kw_only=True):
    """The end of such a fork: `content` is what was held back of its text."""

    id: str | msgspec.UnsetType = msgspec.UNSET
    index: int
    content: str
    stop: bool = True
    reason: str
    """`end`, `stop`, `length`, `context_full` or `cancelled`."""
    stopping_word: str
    truncated: bool
    tokens_predicted: int
    tokens_evaluated: int
    """Tokens of what it continued."""
    tokens_computed: int
    """Of these, those that were computed for it; the others were shared."""
    timings: Timings
