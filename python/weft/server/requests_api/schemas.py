"""Fields of the routes for active requests."""

import msgspec

from weft import CacheExplanation
from weft.server.request_fields.fields import ForkFields
from weft.server.response_fields.settings import GenerationSettings
from weft.server.response_fields.timings import Timings


class RequestSummary(msgspec.Struct, kw_only=True):
    """A queued or running request.

    `id` is the value of the response's `X-Request-Id` header, and the part after the dash of OpenAI-style ids; `id_task` are the
    ids of its prompts in `/slots`.
    """

    id: str
    id_task: list[int]
    created: int
    """Time of arrival as a Unix timestamp in seconds."""
    stream: bool
    n_prompts: int
    n_branches: int
    """Branches of all prompts."""
    n_finished: int
    n_running: int
    """Unfinished branches that are in a slot."""


class RequestsReport(msgspec.Struct):
    """The caller's requests, oldest first."""

    requests: list[RequestSummary]


class BranchReport(msgspec.Struct, kw_only=True):
    """A branch, with the text and state of the events read so far."""

    index: int
    state: str
    """`waiting` (for a slot), `running` or `finished`."""
    text: str
    n_predicted: int
    reason: str | None
    """Finish reason: `end`, `stop`, `length`, `context_full` or `cancelled`."""
    id_slot: int
    """Slot of a running branch, else -1."""
    params: GenerationSettings


class RequestReport(RequestSummary, kw_only=True):
    """A request with its branches: at most 256, beginning at the query's `first`."""

    branches: list[BranchReport]
    cache_explanation: CacheExplanation | list[CacheExplanation | None] | msgspec.UnsetType = msgspec.UNSET
    """Explains why prompt tokens had to be computed, if the request asked for it and has started.

    A list if there are several prompts, with null for those that have not started.
    """


class ForkPlace(msgspec.Struct, forbid_unknown_fields=True):
    """A position in the text of a branch, not counting its prompt, in tokens or in bytes."""

    token: int | None = None
    byte: int | None = None


class ForkBody(ForkFields, kw_only=True, forbid_unknown_fields=True):
    """`POST /requests/{id}/branches/{index}/fork`: options of the forks that differ from the branch's."""

    n: int | None = None
    """Number of forks; defaults to 1."""
    at: ForkPlace | None = None
    """Fork position; defaults to the end of the branch."""
    append: str | list[int | str] | None = None
    """Text between the fork position and the forks' own text."""
    stream: bool | None = None
    """Streams the forks in the response; otherwise they join the stream of the request."""


class Forked(msgspec.Struct):
    """Indices of forks in the stream of their request."""

    indices: list[int]


class _ForkPayload(msgspec.Struct, kw_only=True):
    id: str | msgspec.UnsetType = msgspec.UNSET
    index: int
    content: str


class ForkEvent(_ForkPayload, kw_only=True):
    """One token of a fork with its own stream. The first event has the forks' request `id`."""

    tokens: list[int]
    stop: bool = False
    id_slot: int
    tokens_predicted: int


class ForkEnd(_ForkPayload, kw_only=True):
    """End of such a fork; `content` is the text withheld until then."""

    stop: bool = True
    reason: str
    """Finish reason: `end`, `stop`, `length`, `context_full` or `cancelled`."""
    stopping_word: str
    truncated: bool
    tokens_predicted: int
    tokens_evaluated: int
    """Tokens of the prompt and text that it continued."""
    tokens_computed: int
    """Computed tokens among them; the others were shared."""
    timings: Timings
