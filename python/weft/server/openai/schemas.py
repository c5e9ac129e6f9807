"""Fields of OpenAI's completions, chats, embeddings and models (https://platform.openai.com/docs/api-reference)."""

from typing import Annotated, Any

import msgspec
from litestar.params import Parameter

from weft import CacheExplanation
from weft.server.request_fields.chat import ChatFields
from weft.server.request_fields.fields import CompletionFields, Prompt
from weft.server.response_fields.explanation import Explained
from weft.server.response_fields.probabilities import TokenProbability
from weft.server.response_fields.progress import PromptProgress
from weft.server.response_fields.result import CompletionResult
from weft.server.response_fields.texts_usage import TextsUsage
from weft.server.response_fields.timings import Timings


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool | None = None


class CreateCompletion(CompletionFields, kw_only=True):
    """`POST /v1/completions`. `model` is ignored: there is one model.

    `event_format` selects another stream format: `srb` for single-request batching.
    """

    model: str | None = None
    event_format: str | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    """Prepends the prompt to the text; with `logprobs`, the prompt's tokens have logprobs too."""

    suffix: str | None = None
    """Text after the completion, for infilling. Requires a model that was trained for it."""
    best_of: int | None = None
    """Number of completions to generate, of which the `n` with the highest mean logprob are returned; not for streams."""


class Logprobs(msgspec.Struct):
    """OpenAI's lists, with an entry for each token, and llama-server's `content` for the sampled tokens.

    `text_offset` counts characters of the choice's text. The first token of a prompt has no logprob.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    content: list[TokenProbability]


class Choice(msgspec.Struct):
    """A branch, or a piece of it. `index` numbers the branches of all prompts, prompt by prompt."""

    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: str | None
    score: float | msgspec.UnsetType = msgspec.UNSET
    """With `best_of` and `beam_width`, at a branch's end: the rank score; higher is better."""


class PromptTokensDetails(msgspec.Struct):
    """Number of prompt tokens that were cached."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Drafted tokens of a request with a prediction, by whether they were generated."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(msgspec.Struct):
    """Token usage: each prompt once, and all branches including end tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class _Response(msgspec.Struct, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]


class Completion(_Response, kw_only=True):
    """The complete response, in either format."""

    usage: Usage
    timings: Timings
    cache_explanation: Explained = msgspec.UNSET
    verbose: CompletionResult | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="__verbose")
    """llama-server's result of the first branch."""


class CompletionObject(Completion, kw_only=True):
    """The complete response."""

    choices: list[Choice]


class Chunk(_Response, kw_only=True):
    """An event of a stream, in either format.

    With `include_usage`, `usage` is null until the last chunk, which has no choices. `timings` are sent at the end of a branch,
    in that last chunk as totals, and with `timings_per_token` for each token.
    """

    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET
    verbose: CompletionResult | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="__verbose")
    """llama-server's last event of a branch, at its end."""


class ModelMeta(msgspec.Struct):
    """Parameters of the model; `size` in bytes."""

    vocab_type: int
    n_vocab: int
    n_ctx: int
    """Maximum tokens of one completion's context."""
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: str
    """Quantization, in llama.cpp's words."""


class Architecture(msgspec.Struct):
    """Kinds of input and output."""

    input_modalities: list[str]
    output_modalities: list[str]


class ModelCard(msgspec.Struct):
    """OpenAI's description of a model."""

    id: str
    aliases: list[str]
    """All configured names."""
    tags: list[str]
    """Tags set by the operator."""
    object: str
    created: int
    owned_by: str
    meta: ModelMeta
    architecture: Architecture
    engine_state: str | msgspec.UnsetType = msgspec.UNSET
    """INIT, LOADING, READY, RUNNING or DEAD, with `--compat srb`."""
    type: str = "model"
    """This and the next two are Anthropic's fields, whose clients use the same route."""
    display_name: str = ""
    created_at: str = ""
    """`created` in the format of RFC 3339."""


class ModelDetails(msgspec.Struct):
    """The part of llama-server's description of a model with Ollama's format. Fields that llama-server leaves empty are empty."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: list[str] = msgspec.field(default_factory=lambda: [""])
    parameter_size: str = ""
    quantization_level: str = ""


class ModelName(msgspec.Struct):
    """llama-server's description of a model. Fields that llama-server leaves empty are empty."""

    name: str
    model: str
    tags: list[str]
    capabilities: list[str]
    modified_at: str = ""
    size: str = ""
    digest: str = ""
    type: str = "model"
    description: str = ""
    parameters: str = ""
    details: ModelDetails = msgspec.field(default_factory=ModelDetails)


class ModelList(msgspec.Struct):
    """The list of the one model."""

    object: str
    data: list[ModelCard]
    models: list[ModelName]
    first_id: str
    """This and the next two are Anthropic's pagination fields."""
    last_id: str
    has_more: bool = False


class CreateEmbedding(msgspec.Struct):
    """`POST /v1/embeddings`."""

    input: Prompt | None = None
    model: str | None = None
    # Not a `Literal`: msgspec's message about a wrong value would not list the valid ones.
    encoding_format: Annotated[str | None, Parameter(schema_extra={"enum": ["float", "base64", None]})] = None
    dimensions: int | None = None
    user: str | None = None
    embd_normalize: int | None = None
    lora: Any = None


class EmbeddingObject(msgspec.Struct):
    """The embedding of one text: numbers, or 32-bit floats in little-endian order as base64."""

    object: str
    embedding: list[float] | str
    index: int
    encoding_format: str | msgspec.UnsetType = msgspec.UNSET


class EmbeddingList(msgspec.Struct):
    """The embeddings of all texts, in order."""

    object: str
    data: list[EmbeddingObject]
    model: str
    usage: TextsUsage


class CreateChatCompletion(ChatFields, kw_only=True):
    """`POST /v1/chat/completions`. `model` is ignored: there is one model."""

    model: str | None = None
    stream_options: StreamOptions | None = None


class ChatLogprobs(msgspec.Struct):
    """Logprobs of a message, one entry per token."""

    content: list[TokenProbability]
    refusal: None = None
    """Logprobs of a refusal, which never occurs."""


class CalledFunction(msgspec.Struct, kw_only=True):
    """Name and arguments of a function call: the JSON of an object, or in a chunk a piece of it."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A tool call."""

    index: int | msgspec.UnsetType = msgspec.UNSET
    """Index within the message of the call that a chunk continues."""
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: CalledFunction


class Message(msgspec.Struct):
    """The assistant's message. `content` is null if there are only calls."""

    role: str
    content: str | None
    refusal: None = None
    """Refusals of OpenAI's models; always null here."""
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET
    """The call, if the body has `functions`."""


class ChatChoice(msgspec.Struct):
    """A branch."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str
    score: float | msgspec.UnsetType = msgspec.UNSET
    """With `beam_width`: the rank score; higher is better."""


class ChatCompletion(Completion, kw_only=True):
    """The complete response."""

    choices: list[ChatChoice]


class Delta(msgspec.Struct):
    """Additions of a chunk to a message: first its role without content, then text, finally nothing."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType | None = msgspec.UNSET
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: CalledFunction | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct):
    """A piece of a branch."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    score: float | msgspec.UnsetType = msgspec.UNSET
    """Rank score at a branch's end, as in complete responses."""


class InputTokens(msgspec.Struct):
    """Length of a prompt, in tokens."""

    object: str
    input_tokens: int
