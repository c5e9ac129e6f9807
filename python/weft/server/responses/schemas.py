"""The fields of OpenAI's responses, by its names (https://platform.openai.com/docs/api-reference/responses)."""

from typing import Any

import msgspec

from weft import CacheExplanation
from weft.server.request_fields.fields import SamplingFields

__all__ = [
    "CompactBody",
    "CompactedResponse",
    "Conversation",
    "ConversationBody",
    "ConversationRef",
    "CountBody",
    "CreateResponse",
    "Deleted",
    "Failure",
    "IncompleteDetails",
    "InputTokens",
    "InputTokensDetails",
    "ItemList",
    "ItemsBody",
    "MetadataBody",
    "OutputTokensDetails",
    "Response",
    "ResponseFields",
    "Transformation",
    "Usage",
]


class ResponseFields(SamplingFields, kw_only=True):
    """What a prompt is made of, in every route that makes one, and how tokens are chosen. There is one model, by any name."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    """What is said now: a text of the user, or items."""
    instructions: str | None = None
    """What the system says before everything else, this time only."""
    previous_response_id: str | None = None
    """The response that this one goes on from, with all that stands before it."""
    conversation: str | dict[str, Any] | None = None
    """The conversation that this goes on, and is added to: its id, or `{"id"}`."""
    tools: list[dict[str, Any]] | None = None
    """Functions, as `{"type": "function", "name", "description", "parameters", "strict"}`."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    """`effort` reaches the template; `summary` may be `auto`, and there is none."""
    text: dict[str, Any] | None = None
    """`format`: `text`, `json_object`, or `json_schema` with its `schema`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the template, as in chats."""
    truncation: str | None = None
    """`auto` leaves out the oldest turns where all of them are too many for the context; `disabled` is the default."""

    # What follows is refused unless it asks for nothing.
    personality: Any = None


class CreateResponse(ResponseFields, kw_only=True):
    """`POST /v1/responses`."""

    background: bool | None = None
    """Whether the answer is written whether its client waits for it or not."""
    include: list[str] | None = None
    """`message.output_text.logprobs` tells log-probabilities, `reasoning.encrypted_content` the thought in one word."""
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    """A limit to the tools that a server runs itself; here the client runs all of them."""
    metadata: dict[str, str] | None = None
    """Up to 16 texts, which are told again."""
    prompt_cache_key: str | None = None
    """Told again; there is one cache, and nothing to choose."""
    safety_identifier: str | None = None
    """Told again."""
    store: bool | None = None
    """Whether the response is kept, which is the default."""
    stream: bool | None = None
    top_logprobs: int | None = None
    """How many likely tokens are told of each one, 0 to 20."""
    user: str | None = None
    """Told again."""

    # llama-server's and Weft's own, as in completions.
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    max_token_gap_ms: float | None = None
    t_max_predict_ms: float | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    lora: Any = None
    grammar: str | None = None
    sse_ping_interval: int | None = None
    return_progress: bool | None = None
    """Whether a stream reports how far the prompt is, in `prompt_progress` of further `response.in_progress` events."""
    explain_cache: bool | None = None
    """Whether the answer tells why what was computed of the prompt had to be: `cache_explanation`."""

    # What follows is refused unless it asks for nothing.
    access_programs: Any = None
    background_options: Any = None
    context_management: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    stream_options: Any = None


class CountBody(ResponseFields, kw_only=True):
    """`POST /v1/responses/input_tokens`."""


class CompactBody(ResponseFields, kw_only=True):
    """`POST /v1/responses/compact`. How a summary is written may be said as in a response."""

    max_output_tokens: int | None = None
    prompt_cache_key: str | None = None
    seed: int | None = None

    # What follows is refused unless it asks for nothing.
    image: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None


class ConversationRef(msgspec.Struct):
    """Which conversation a response belongs to."""

    id: str


class Failure(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response ended early: `max_output_tokens`, whether those or the context ran out."""

    reason: str


class InputTokensDetails(msgspec.Struct):
    """`cached_tokens` of the prompt were found computed; the others are now, and can be found."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """`reasoning_tokens` of what was written are a thought; the marks around it count with what they come with."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """What a response cost, in tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Transformation(msgspec.Struct):
    """An item of the input that was left out: a thought that only another server can read."""

    id: str
    action: str = "removed"
    reason: str = "model_mismatch"
    type: str = "reasoning"


class Response(msgspec.Struct, kw_only=True):
    """A response, as far as it is written."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    """`queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`."""
    background: bool
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[msgspec.Raw]
    """Items: messages, thoughts and calls of functions."""
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationRef | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: str
    input_transformations: list[Transformation]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    """What it cost, once it has ended."""
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET
    """Why what was computed of the prompt had to be, once it has ended, where that was asked for."""
    user: str | msgspec.UnsetType = msgspec.UNSET
    """As it was given."""
    metadata: dict[str, str]


class Deleted(msgspec.Struct):
    """What is gone."""

    id: str
    object: str
    deleted: bool


class ItemList(msgspec.Struct):
    """Some items, and whether there are more behind them."""

    object: str
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct):
    """How long a prompt is, in tokens."""

    object: str
    input_tokens: int


class CompactedResponse(msgspec.Struct):
    """What to send in place of a long conversation: what the user said, and one item that stands for the rest."""

    id: str
    object: str
    created_at: int
    output: list[msgspec.Raw]
    usage: Usage


class ConversationBody(msgspec.Struct):
    """`POST /v1/conversations`."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class MetadataBody(msgspec.Struct):
    """`POST /v1/conversations/{id}`."""

    metadata: dict[str, str] | None = None


class ItemsBody(msgspec.Struct):
    """`POST /v1/conversations/{id}/items`."""

    items: list[dict[str, Any]]


class Conversation(msgspec.Struct):
    """A conversation; its items are asked for by a route of their own."""

    id: str
    object: str
    created_at: int
    metadata: dict[str, str]
