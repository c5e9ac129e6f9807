"""Fields of Ollama's routes (https://docs.ollama.com/api)."""

from typing import Annotated, Any

import msgspec

from weft import CacheExplanation
from weft.server.request_fields.unsupported import EMPTY, UnsupportedUnless
from weft.server.response_fields.probabilities import TokenProbability

ZERO = UnsupportedUnless(lambda value: value == 0)
OFF = UnsupportedUnless(lambda value: value is False)
ON = UnsupportedUnless(lambda value: value is True)


class Options(
    msgspec.Struct,
    kw_only=True,
    rename={"n_keep": "num_keep", "n_predict": "num_predict", "penalize_nl": "penalize_newline"},
):
    """Generation options, as the fields of completions. Unknown options are ignored, as in Ollama."""

    n_keep: int | None = None
    seed: int | None = None
    n_predict: int | None = None
    """Maximum tokens; -1 is unlimited, and -2 (until the context is full) is equivalent here."""
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    repeat_last_n: int | None = None
    temperature: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_nl: bool | None = None
    stop: list[str] | None = None
    num_ctx: int | None = None
    """Refused if a completion has less context."""
    num_batch: int | None = None
    """Maximum prompt tokens computed per step."""
    draft_num_predict: int | None = None
    """Maximum drafted tokens per step, 0 to 64; 0 disables speculative decoding, values below 0 select the server's."""

    # Server-wide settings: refused unless the value disables the feature.
    embedding_only: Annotated[bool | None, OFF] = None
    f16_kv: Annotated[bool | None, ON] = None
    logits_all: Annotated[bool | None, OFF] = None
    low_vram: Annotated[bool | None, OFF] = None
    main_gpu: Annotated[int | None, ZERO] = None
    num_gpu: Annotated[int | None, UnsupportedUnless(lambda value: value == -1)] = None
    num_thread: Annotated[int | None, ZERO] = None
    numa: Annotated[bool | None, OFF] = None
    use_mlock: Annotated[bool | None, OFF] = None
    use_mmap: Annotated[bool | None, ON] = None
    vocab_only: Annotated[bool | None, OFF] = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields of both generating routes. `model` is ignored: there is one model."""

    model: str | None = None
    stream: bool | None = None
    """Streams the response, as a line of JSON for each token; defaults to true."""
    format: Any = None
    """`json`, or a JSON schema."""
    options: Options | None = None
    keep_alive: float | str | None = None
    """Seconds, or a text like `5m`, after the last request before the model may be unloaded, if that is earlier than the server's
    own setting. Negative values disable unloading. Has no effect if the server never unloads the model."""
    think: bool | str | None = None
    """Enables reasoning, or sets its effort: `low`, `medium`, `high` or `max`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    shift: bool | None = None
    """Drops the middle of a full context; defaults to the server's setting."""

    # Weft's own fields.
    explain_cache: bool | None = None
    """Adds `cache_explanation` to the response: which prompt tokens had to be computed, and why."""

    # UnsupportedUnless: refused unless the value disables the feature. Prompts are never truncated.
    truncate: Annotated[bool | None, OFF] = None
    debug_render_only: Annotated[bool | None, OFF] = msgspec.field(default=None, name="_debug_render_only")


class GenerateBody(GenerationFields, kw_only=True):
    """`POST /api/generate`."""

    prompt: str | None = None
    """If empty, the model is loaded, or unloaded if `keep_alive` is 0."""
    suffix: str | None = None
    """Text after the completion, for infilling. Requires a model that was trained for it."""
    images: list[str] | None = None
    """Images in base64. With `raw`, `[img-0]` in the prompt marks the first; without such marks, images precede the prompt."""
    system: str | None = None
    context: list[int] | None = None
    """Tokens of an earlier response, which this one continues."""
    raw: bool | None = None
    """Passes the prompt to the model unchanged, without the chat template."""

    # UnsupportedUnless: refused unless the value disables the feature.
    template: Annotated[str | None, EMPTY] = None
    width: Annotated[int | None, ZERO] = None
    height: Annotated[int | None, ZERO] = None
    steps: Annotated[int | None, ZERO] = None


class GivenFunction(msgspec.Struct):
    """A called function."""

    name: str
    arguments: dict[str, Any] | None = None


class GivenCall(msgspec.Struct):
    """A tool call in an earlier response."""

    function: GivenFunction
    id: str | None = None


class GivenMessage(msgspec.Struct, kw_only=True):
    """A message with the role `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    """Images in base64."""
    tool_calls: list[GivenCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(GenerationFields, kw_only=True):
    """`POST /api/chat`."""

    messages: list[GivenMessage] | None = None
    """If empty, the model is loaded, or unloaded if `keep_alive` is 0."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, in OpenAI's format."""


class _EmbeddingFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    keep_alive: float | str | None = None
    options: Options | None = None


class EmbedBody(_EmbeddingFields, kw_only=True):
    """`POST /api/embed`."""

    input: str | list[str] | None = None
    dimensions: int | None = None
    """Number of dimensions to keep, after which the embedding is normalized again; 0 keeps all."""
    truncate: bool | None = None
    """Truncates texts that are too long, instead of refusing them; defaults to true."""


class EmbeddingsBody(_EmbeddingFields, kw_only=True):
    """`POST /api/embeddings`."""

    prompt: str | None = None


class _Line(msgspec.Struct, kw_only=True):
    """A line of a stream, or a complete response. The final one has the reason; durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | msgspec.UnsetType = msgspec.UNSET
    """`stop`, `length`, or for requests without a prompt `load` or `unload`."""
    context: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Tokens of the prompt and the completion, for a following request."""
    total_duration: int | msgspec.UnsetType = msgspec.UNSET
    load_duration: int | msgspec.UnsetType = msgspec.UNSET
    """Part of the total before the engine received the prompt."""
    prompt_eval_count: int | msgspec.UnsetType = msgspec.UNSET
    """Prompt tokens, including cached ones."""
    prompt_eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    eval_count: int | msgspec.UnsetType = msgspec.UNSET
    eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET


class GenerateAnswer(_Line, kw_only=True):
    """Response of `/api/generate`, or a line of its stream."""

    response: str
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET


class CallFunction(msgspec.Struct):
    """A called function with the call's index."""

    index: int
    name: str
    arguments: dict[str, Any]


class Call(msgspec.Struct):
    """A tool call."""

    id: str
    function: CallFunction


class AssistantMessage(msgspec.Struct):
    """The assistant's message, or a piece of it."""

    role: str
    content: str
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(_Line, kw_only=True):
    """Response of `/api/chat`, or a line of its stream."""

    message: AssistantMessage
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET


class Embedded(msgspec.Struct):
    """The embeddings of all texts, in order; durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbedded(msgspec.Struct):
    """The embedding of a text."""

    embedding: list[float]


class ModelDetails(msgspec.Struct, kw_only=True):
    """Format and size of a model."""

    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ServedModel(msgspec.Struct, kw_only=True):
    """The served model. The `digest` is derived from the file's name, size and time, not its contents."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    capabilities: list[str]


class ServedModels(msgspec.Struct):
    """The list of the one model."""

    models: list[ServedModel]


class LoadedModel(msgspec.Struct, kw_only=True):
    """The loaded model; sizes in bytes."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    """Always far in the future, as the time of the last request is unknown."""
    size_vram: int
    context_length: int


class LoadedModels(msgspec.Struct):
    """The list of the one model, empty while it is unloaded."""

    models: list[LoadedModel]


class ModelShown(msgspec.Struct, kw_only=True):
    """The served model with its settings."""

    license: str
    modelfile: str
    parameters: str
    """Default sampling parameters, one per line."""
    template: str
    """The chat template in Jinja."""
    details: ModelDetails
    model_info: dict[str, Any]
    """Metadata of the file, without lists."""
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    """The Ollama release with these routes."""

    version: str


class OllamaError(msgspec.Struct):
    """Body of every error response below `/api`."""

    error: str
