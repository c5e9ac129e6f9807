"""The fields of Ollama's routes, by its names (https://docs.ollama.com/api)."""

from typing import Any

import msgspec

from weft import CacheExplanation
from weft.server.response_fields import TokenProbability

__all__ = [
    "Call",
    "CallFunction",
    "ChatAnswer",
    "ChatBody",
    "EmbedBody",
    "Embedded",
    "EmbeddingsBody",
    "GenerateAnswer",
    "GenerateBody",
    "GivenCall",
    "GivenFunction",
    "GivenMessage",
    "LoadedModel",
    "LoadedModels",
    "ModelDetails",
    "ModelShown",
    "OllamaError",
    "OneEmbedded",
    "Options",
    "Said",
    "ServedModel",
    "ServedModels",
    "Version",
    "Writing",
]


class Options(msgspec.Struct, kw_only=True):
    """How is written. What else is there is ignored, as with Ollama."""

    num_keep: int | None = None
    seed: int | None = None
    num_predict: int | None = None
    """The limit; -1 is none, and -2 until the context is full, which is the same here."""
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
    penalize_newline: bool | None = None
    stop: list[str] | None = None
    num_ctx: int | None = None
    """Refused where a completion has less context."""
    num_batch: int | None = None
    """Most tokens of the prompt that one step computes."""

    # What follows is set when the server is started: refused, unless it asks for nothing.
    draft_num_predict: int | None = None
    embedding_only: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    low_vram: bool | None = None
    main_gpu: int | None = None
    num_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    use_mlock: bool | None = None
    use_mmap: bool | None = None
    vocab_only: bool | None = None


class Writing(msgspec.Struct, kw_only=True):
    """What both ways to write have in common. Any `model` is accepted: there is one."""

    model: str | None = None
    stream: bool | None = None
    """Whether the answer is a line of JSON for each token, which is the default."""
    format: Any = None
    """`json`, or a JSON schema."""
    options: Options | None = None
    keep_alive: float | str | None = None
    """Seconds, or a text like `5m`: the model may be unloaded so long after the last request, where that is sooner than the
    server would. Below 0 is never. Where the server never unloads it, it stays."""
    think: bool | str | None = None
    """Whether the model thinks first, or how hard: `low`, `medium`, `high` or `max`."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    shift: bool | None = None
    """Whether the middle of a context that is full is dropped; the default is the server's."""

    # Weft's own.
    explain_cache: bool | None = None
    """Whether the answer tells why what was computed of the prompt had to be: `cache_explanation`."""

    # What follows is refused unless it asks for nothing.
    truncate: bool | None = None
    debug_render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")


class GenerateBody(Writing, kw_only=True):
    """`POST /api/generate`."""

    prompt: str | None = None
    """With none the model is loaded, or unloaded where `keep_alive` is 0."""
    suffix: str | None = None
    """What the text that is written stands before. The model must have been trained for that."""
    images: list[str] | None = None
    """In base64. With `raw`, `[img-0]` in the prompt stands for the first; without such marks they stand before it."""
    system: str | None = None
    context: list[int] | None = None
    """What an earlier answer told: this goes on from there."""
    raw: bool | None = None
    """Whether the prompt is no message, but all that the model sees."""

    # What follows is refused unless it asks for nothing.
    template: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None


class GivenFunction(msgspec.Struct):
    """What was called."""

    name: str
    arguments: dict[str, Any] | None = None


class GivenCall(msgspec.Struct):
    """A call of a tool in an earlier answer."""

    function: GivenFunction
    id: str | None = None


class GivenMessage(msgspec.Struct, kw_only=True):
    """What one side said: `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    """In base64."""
    tool_calls: list[GivenCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatBody(Writing, kw_only=True):
    """`POST /api/chat`."""

    messages: list[GivenMessage] | None = None
    """With none the model is loaded, or unloaded where `keep_alive` is 0."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, in OpenAI's shape."""


class EmbedBody(msgspec.Struct, kw_only=True):
    """`POST /api/embed`."""

    model: str | None = None
    input: str | list[str] | None = None
    dimensions: int | None = None
    """The first numbers of each vector, brought back to its length; 0 is all of them."""
    keep_alive: float | str | None = None
    options: Options | None = None
    truncate: bool | None = None
    """Whether a text that is too long is cut, which is the default; else it is refused."""


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """`POST /api/embeddings`."""

    model: str | None = None
    prompt: str | None = None
    keep_alive: float | str | None = None
    options: Options | None = None


class _Line(msgspec.Struct, kw_only=True):
    """A line of a stream, or a whole answer. With its end comes why it ended; durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | msgspec.UnsetType = msgspec.UNSET
    """`stop`, `length`, or, where nothing was to be written, `load` or `unload`."""
    context: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The tokens of the prompt and of what was written, for a next request."""
    total_duration: int | msgspec.UnsetType = msgspec.UNSET
    load_duration: int | msgspec.UnsetType = msgspec.UNSET
    """Of the total, what passed before the engine had the prompt."""
    prompt_eval_count: int | msgspec.UnsetType = msgspec.UNSET
    """Tokens of the prompt, those that were found computed included."""
    prompt_eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    eval_count: int | msgspec.UnsetType = msgspec.UNSET
    eval_duration: int | msgspec.UnsetType = msgspec.UNSET
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET


class GenerateAnswer(_Line, kw_only=True):
    """The answer of `/api/generate`, or a line of its stream."""

    response: str
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET


class CallFunction(msgspec.Struct):
    """What is called, and which call of the answer it is."""

    index: int
    name: str
    arguments: dict[str, Any]


class Call(msgspec.Struct):
    """A call of a tool."""

    id: str
    function: CallFunction


class Said(msgspec.Struct):
    """What the assistant says, or a stretch of it."""

    role: str
    content: str
    thinking: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class ChatAnswer(_Line, kw_only=True):
    """The answer of `/api/chat`, or a line of its stream."""

    message: Said
    logprobs: list[TokenProbability] | msgspec.UnsetType = msgspec.UNSET


class Embedded(msgspec.Struct):
    """The vectors of all texts, in their order; durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OneEmbedded(msgspec.Struct):
    """The vector of a text."""

    embedding: list[float]


class ModelDetails(msgspec.Struct, kw_only=True):
    """What kind of model it is."""

    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ServedModel(msgspec.Struct, kw_only=True):
    """The model that is served. The `digest` is of the file's name, size and time, not of what is in it."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    capabilities: list[str]


class ServedModels(msgspec.Struct):
    """The one model that is served."""

    models: list[ServedModel]


class LoadedModel(msgspec.Struct, kw_only=True):
    """The model, where it is loaded; sizes in bytes."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    """Far away: nobody knows when the last request will have been."""
    size_vram: int
    context_length: int


class LoadedModels(msgspec.Struct):
    """The one model, or none while it is unloaded."""

    models: list[LoadedModel]


class ModelShown(msgspec.Struct, kw_only=True):
    """The model that is served, and how it is."""

    license: str
    modelfile: str
    parameters: str
    """How tokens are chosen where a request does not say, a line each."""
    template: str
    """In Jinja."""
    details: ModelDetails
    model_info: dict[str, Any]
    """The file's metadata, lists left out."""
    capabilities: list[str]
    modified_at: str


class Version(msgspec.Struct):
    """The release of Ollama whose routes these are."""

    version: str


class OllamaError(msgspec.Struct):
    """The body of every answer below `/api` that is an error."""

    error: str
