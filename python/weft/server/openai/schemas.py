"""The fields of OpenAI's completions and models, by its names (https://platform.openai.com/docs/api-reference/completions)."""

import msgspec

from weft import CacheExplanation
from weft.server.request_fields import CompletionFields
from weft.server.response_fields import CompletionResult, PromptProgress, Timings, TokenProbability
from weft.server.response_fields.explanation import Explained

__all__ = [
    "Architecture",
    "Choice",
    "CompletionChunk",
    "CompletionObject",
    "CreateCompletion",
    "Logprobs",
    "ModelCard",
    "ModelList",
    "ModelMeta",
    "ModelName",
    "PromptTokensDetails",
    "StreamOptions",
    "Usage",
]


class StreamOptions(msgspec.Struct):
    """What a stream carries besides the text."""

    include_usage: bool | None = None


class CreateCompletion(CompletionFields, kw_only=True):
    """`POST /v1/completions`. Any `model` is accepted: there is one.

    `event_format` asks for a stream of other events: `srb` for those of single-request batching.
    """

    model: str | None = None
    event_format: str | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    """Whether the text begins with the prompt; with `logprobs`, its tokens come with their log-probabilities."""

    suffix: str | None = None
    """What the text that is written stands before; the prompt stands behind it. The model must have been trained for that."""
    best_of: int | None = None
    """How many are written, of which the `n` are told whose tokens have the highest mean log-probability; not in a stream."""


class Logprobs(msgspec.Struct):
    """OpenAI's lists, one entry for each token, and llama-server's `content` beside them, of the drawn ones alone.

    `text_offset` counts characters of the choice's text. The first token of a prompt comes after nothing, so nothing is known
    of it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    content: list[TokenProbability]


class Choice(msgspec.Struct):
    """One branch, or a stretch of it. `index` counts the branches of all prompts, prompt by prompt."""

    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: str | None
    score: float | msgspec.UnsetType = msgspec.UNSET
    """With `best_of` and with `beam_width`, at a branch's end: what ranks it, the greater the better."""


class PromptTokensDetails(msgspec.Struct):
    """`cached_tokens` of the prompt were found computed."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of each prompt once, and of all branches, end tokens included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionObject(msgspec.Struct):
    """The whole answer."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    timings: Timings
    cache_explanation: Explained = msgspec.UNSET
    verbose: CompletionResult | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="__verbose")
    """llama-server's own answer, of the first branch."""


class CompletionChunk(msgspec.Struct):
    """One event of a stream.

    `usage` is there where `include_usage` asks for it: null until the last chunk, which has no choices. `timings` come with
    the end of a branch, in that last chunk with the sums over all, and with each token where `timings_per_token` asks for it.
    """

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    cache_explanation: CacheExplanation | msgspec.UnsetType = msgspec.UNSET
    verbose: CompletionResult | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="__verbose")
    """llama-server's own last event of a branch, with its end."""


class ModelMeta(msgspec.Struct):
    """The model's numbers; `size` in bytes."""

    vocab_type: int
    n_vocab: int
    n_ctx: int
    """Tokens that one text may have here."""
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: str
    """How the weights are stored, in llama.cpp's words."""


class Architecture(msgspec.Struct):
    """What a prompt may hold, and what is written."""

    input_modalities: list[str]
    output_modalities: list[str]


class ModelCard(msgspec.Struct):
    """OpenAI's description of a model."""

    id: str
    aliases: list[str]
    """Every name that it was given."""
    tags: list[str]
    """What the operator says of it."""
    object: str
    created: int
    owned_by: str
    meta: ModelMeta
    architecture: Architecture
    engine_state: str | msgspec.UnsetType = msgspec.UNSET
    """INIT, LOADING, READY, RUNNING or DEAD, where the server is started with `--compat srb`."""
    type: str = "model"
    """With the next two, what Anthropic says of a model, whose clients ask the same route."""
    display_name: str = ""
    created_at: str = ""
    """`created`, as RFC 3339 writes it."""


class ModelDetails(msgspec.Struct):
    """What llama-server's description of a model has in the shape of Ollama's; what it leaves empty there is empty here."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: list[str] = msgspec.field(default_factory=lambda: [""])
    parameter_size: str = ""
    quantization_level: str = ""


class ModelName(msgspec.Struct):
    """llama-server's description of a model; what it leaves empty there is empty here."""

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
    """The one model that is served."""

    object: str
    data: list[ModelCard]
    models: list[ModelName]
    first_id: str
    """With the next two, where a page of Anthropic's list begins and ends."""
    last_id: str
    has_more: bool = False
