"""Fields of OpenAI's responses (https://platform.openai.com/docs/api-reference/responses)."""

from typing import Annotated, Any

import msgspec

from weft import CacheExplanation
from weft.server.request_fields.fields import SamplingFields
from weft.server.request_fields.unsupported import EMPTY, UnsupportedUnless, only_fields


class ResponseFields(SamplingFields, kw_only=True):
    """Fields of all routes that build a prompt, and sampling parameters. `model` is ignored: there is one model."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    """New input: a user message as text, or items."""
    instructions: str | None = None
    """System message for this response only."""
    previous_response_id: str | None = None
    """The response that this one continues."""
    conversation: str | dict[str, Any] | None = None
    """The conversation that this response continues and is added to: its id, or `{"id"}`."""
    tools: list[dict[str, Any]] | None = None
    """Functions, as `{"type": "function", "name", "description", "parameters", "strict"}`."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    """`effort` is passed to the template; `summary` may be `auto`, but no summary is made."""
    text: dict[str, Any] | None = None
    """`format`: `text`, `json_object`, or `json_schema` with its `schema`."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the template, as in chats."""
    truncation: str | None = None
    """`auto` drops the oldest turns that do not fit the context; `disabled` is the default."""

    # UnsupportedUnless: refused unless the value disables the feature.
    personality: Annotated[Any, EMPTY] = None


class GenerationFields(ResponseFields, kw_only=True):
    """Fields of the routes that generate."""

    max_output_tokens: int | None = None
    prompt_cache_key: str | None = None
    """Repeated in the response; there is a single cache."""
    seed: int | None = None

    # UnsupportedUnless: refused unless the value disables the feature.
    image: Annotated[Any, only_fields(context_compression=("auto", "disabled"))] = None
    prompt_cache_options: Annotated[Any, only_fields(mode=("implicit",), prewarm=(False,), ttl=("30m",))] = None
    prompt_cache_retention: Annotated[Any, UnsupportedUnless(lambda value: value == "in_memory")] = None
    service_tier: Annotated[Any, UnsupportedUnless(lambda value: value in ("auto", "default"))] = None


class CompactBody(GenerationFields, kw_only=True):
    """`POST /v1/responses/compact`. The sampling parameters apply to the summary."""


class CreateResponse(GenerationFields, kw_only=True):
    """`POST /v1/responses`."""

    background: bool | None = None
    """Generates the response independently of the client's connection."""
    include: list[str] | None = None
    """`message.output_text.logprobs` adds logprobs, `reasoning.encrypted_content` the reasoning as opaque text."""
    max_tool_calls: int | None = None
    """Limits server-side tools, which do not exist here."""
    metadata: dict[str, str] | None = None
    """Up to 16 texts, which the response repeats."""
    safety_identifier: str | None = None
    """Repeated in the response."""
    store: bool | None = None
    """Stores the response; defaults to true."""
    stream: bool | None = None
    top_logprobs: int | None = None
    """Number of top logprobs per token, 0 to 20."""
    user: str | None = None
    """Repeated in the response."""

    # llama-server's and Weft's own fields, as in completions.
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
    """Adds events `response.in_progress` to a stream that report the progress of the prompt as `prompt_progress`."""
    explain_cache: bool | None = None
    """Adds `cache_explanation` to the response: which prompt tokens had to be computed, and why."""

    # UnsupportedUnless: refused unless the value disables the feature.
    access_programs: Annotated[Any, EMPTY] = None
    background_options: Annotated[Any, only_fields(completion_window=("soonest",))] = None
    context_management: Annotated[Any, EMPTY] = None
    moderation: Annotated[Any, EMPTY] = None
    prompt: Annotated[Any, EMPTY] = None
    stream_options: Annotated[Any, only_fields(include_obfuscation=(False,))] = None


class CountBody(ResponseFields, kw_only=True):
    """`POST /v1/responses/input_tokens`."""


class ConversationRef(msgspec.Struct):
    """The conversation of a response."""

    id: str


class Failure(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response ended early: always `max_output_tokens`, also if the context was full."""

    reason: str


class InputTokensDetails(msgspec.Struct):
    """Prompt tokens: `cached_tokens` were cached, the others were computed and are cached now."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """`reasoning_tokens` are output tokens of the reasoning; its markers count with the adjacent text."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token usage of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Transformation(msgspec.Struct):
    """An input item that was omitted: reasoning that only another server can read."""

    id: str
    action: str = "removed"
    reason: str = "model_mismatch"
    type: str = "reasoning"


class Response(msgspec.Struct, kw_only=True):
    """A response in its current state."""

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
    """Items: messages, reasoning and function calls."""
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
    """Token usage, once the response has ended."""
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET
    """Reasons why prompt tokens had to be computed, once the response has ended, if requested."""
    user: str | msgspec.UnsetType = msgspec.UNSET
    """Repeated from the request."""
    metadata: dict[str, str]


class Deleted(msgspec.Struct):
    """Confirmation of a deletion."""

    id: str
    object: str
    deleted: bool


class ItemList(msgspec.Struct):
    """A page of a list, and whether more items follow."""

    object: str
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct):
    """Length of a prompt, in tokens."""

    object: str
    input_tokens: int


class CompactedResponse(msgspec.Struct):
    """Replacement for a long conversation: the user's messages, and one item with a summary."""

    id: str
    object: str
    created_at: int
    output: list[msgspec.Raw]
    usage: Usage


class MetadataBody(msgspec.Struct):
    """`POST /v1/conversations/{id}`."""

    metadata: dict[str, str] | None = None


class ConversationBody(MetadataBody):
    """`POST /v1/conversations`."""

    items: list[dict[str, Any]] | None = None


class ItemsBody(msgspec.Struct):
    """`POST /v1/conversations/{id}/items`."""

    items: list[dict[str, Any]]


class Conversation(msgspec.Struct):
    """A conversation. Another route returns its items."""

    id: str
    object: str
    created_at: int
    metadata: dict[str, str]
