"""Fields of llama-server's own routes; those for reranking include Jina's and TEI's names."""

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.infill import Snippet
from weft.server.request_fields.fields import CompletionFields, Prompt
from weft.server.response_fields.probabilities import CompletionProbability
from weft.server.response_fields.progress import PromptProgress
from weft.server.response_fields.settings import GenerationSettings
from weft.server.response_fields.texts_usage import TextsUsage
from weft.server.response_fields.timings import Timings
from weft.settings.system_prompt import SystemPrompt


class CompletionBody(CompletionFields, kw_only=True):
    """`POST /completion`.

    `system_prompt` sets a text before the prompts of all clients: llama-server's object of 2024, or its earlier form, a text with
    separate names. With it, `prompt` is optional.
    """

    event_format: str | None = None
    """`parallel` selects the events of llama.cpp's first multi-user server: text only."""
    system_prompt: str | SystemPrompt | None = None
    anti_prompt: str | list[str] | None = None
    """Stop strings; if `system_prompt` is a text, the stop string for all clients."""
    assistant_name: str | None = None
    image_data: Any = None


class InfillBody(CompletionFields, kw_only=True):
    """`POST /infill`: fills the gap between two texts. `prompt` is the existing beginning of the gap's text."""

    prompt: str | None = None
    input_prefix: str | list[int | str] | None = None
    input_suffix: str | list[int | str] | None = None
    input_extra: list[Snippet] | None = None
    """Excerpts of other files, as context."""


class CompletionEvent(msgspec.Struct, kw_only=True):
    """A token of a stream, or the prompt's progress before the first one. The first event has the request's `id`."""

    index: int
    content: str = ""
    tokens: Sequence[int] = ()
    stop: bool = False
    id_slot: int
    tokens_predicted: int = 0
    tokens_evaluated: int
    completion_probabilities: Sequence[CompletionProbability] | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    prompt_progress: PromptProgress | msgspec.UnsetType = msgspec.UNSET
    id: str | msgspec.UnsetType = msgspec.UNSET


class TokenizeBody(msgspec.Struct):
    """`POST /tokenize`. `prompt` and `add_special_tokens` are vLLM's names, which lm-evaluation-harness uses."""

    content: str | list[int | str] | None = None
    prompt: str | None = None
    add_special: bool | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenPiece(msgspec.Struct):
    """A token with its text, or with its bytes if they are not whole characters."""

    id: int
    piece: str | list[int]


class TokenizeResult(msgspec.Struct):
    """The tokens of a text."""

    tokens: Sequence[int | TokenPiece]


class DetokenizeBody(msgspec.Struct):
    """`POST /detokenize`."""

    tokens: list[int] | None = None


class DetokenizeResult(msgspec.Struct):
    """The text of tokens; `prompt` is vLLM's name for it."""

    content: str
    prompt: str


class TokenizerInfo(msgspec.Struct):
    """Properties of the tokenizer, as in vLLM. Tokens that the vocabulary lacks are null."""

    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    chat_template: str
    model_max_length: int


class NextToken(msgspec.Struct, kw_only=True):
    """Progress of a slot.

    The last four are llama-server's fields of 2024. They never apply, as a slot is freed when its branch stops.
    """

    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int
    stopped_eos: bool = False
    stopped_limit: bool = False
    stopped_word: bool = False
    stopping_word: str = ""


class Slot(msgspec.Struct, kw_only=True):
    """A slot that computes a prefix without a completion."""

    id: int
    n_ctx: int
    model: str
    speculative: bool = False
    is_processing: bool
    state: int
    """1 while busy, else 0; llama-server's field of 2024."""
    id_task: int
    task_id: int
    """`id_task` under its name of 2024."""
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    next_token: list[NextToken]


class FullSlot(GenerationSettings, kw_only=True):
    """A slot with or without a branch, with its settings under `params` and, as in 2024, next to the other fields.

    An idle slot has the default settings and the task -1. `prompt` and `generated` are included only if
    `LLAMA_SERVER_SLOTS_DEBUG` is set in the server's environment, as they are private to clients.
    """

    id: int
    speculative: bool = False
    is_processing: bool
    state: int
    id_task: int
    task_id: int
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    params: GenerationSettings
    next_token: list[NextToken]
    prompt: str | msgspec.UnsetType = msgspec.UNSET
    generated: str | msgspec.UnsetType = msgspec.UNSET


class Health(msgspec.Struct):
    """The model is loaded. `slots` is included on request, as in `/slots`."""

    status: str
    slots_idle: int
    slots_processing: int
    slots: list[Any] | msgspec.UnsetType = msgspec.UNSET


class SlotActionBody(msgspec.Struct):
    """`POST /slots/{id_slot}`: the name of a file in the folder for slots."""

    filename: str | None = None


class SaveTimings(msgspec.Struct):
    """Duration of saving."""

    save_ms: float


class SlotSaved(msgspec.Struct):
    """Result of saving a slot: `n_saved` tokens in `n_written` bytes."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SaveTimings


class RestoreTimings(msgspec.Struct):
    """Duration of restoring."""

    restore_ms: float


class SlotRestored(msgspec.Struct):
    """Result of restoring a slot: `n_restored` tokens from `n_read` bytes."""

    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: RestoreTimings


class SlotErased(msgspec.Struct):
    """Result of erasing a slot that had `n_erased` tokens."""

    id_slot: int
    n_erased: int


class DefaultSettings(GenerationSettings, kw_only=True):
    """Default settings of a request, under `params` and, as in 2024, next to it."""

    params: GenerationSettings


class Modalities(msgspec.Struct):
    """Kinds of input other than text."""

    vision: bool
    video: bool
    audio: bool


class Properties(msgspec.Struct):
    """The server and its model. The two names are from the chat in llama-server's page of 2024."""

    default_generation_settings: DefaultSettings
    total_slots: int
    n_ctx: int
    model_alias: str
    model_path: str
    model_ftype: str
    modalities: Modalities
    media_marker: str
    """Placeholder for an image or audio in a `prompt_string`."""
    chat_template: str
    chat_template_caps: dict[str, bool]
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    ui: bool
    ui_settings: dict[str, Any]
    cors_proxy_enabled: bool
    system_prompt: str
    """Text before every prompt of `/completion`, or empty."""
    user_name: str
    assistant_name: str
    compute: str
    """Summary of the compute configuration, with reasons."""
    repeatable: bool
    """True if a seeded request gives the same text regardless of concurrent requests."""
    speculation: str
    """`on`, or why tokens are not drafted."""
    repeatable_embeddings: bool
    """True if a text has the same embedding, bit by bit, whatever is computed concurrently."""
    pooling: str
    """Pooling of token embeddings: none, mean, cls, last or rank."""
    chat_template_tool_use: str | msgspec.UnsetType = msgspec.UNSET
    """Template for chats with tools, if the model's file has a separate one."""


class PropertiesSet(msgspec.Struct):
    """Response of `POST /props`, which has no effect."""

    success: bool


class LoraScale(msgspec.Struct, forbid_unknown_fields=False):
    """Default scale of an adapter."""

    id: int
    scale: float


class LoraAdapter(msgspec.Struct):
    """A loaded adapter."""

    id: int
    path: str
    scale: float
    """Default scale."""
    task_name: str
    prompt_prefix: str
    alora_invocation_string: str | msgspec.UnsetType = msgspec.UNSET
    alora_invocation_tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Invocation tokens of an activated adapter, which applies from their last occurrence in a prompt."""


class LoraScalesSet(PropertiesSet):
    """Response of `POST /lora-adapters`."""


class ApplyTemplateResult(msgspec.Struct):
    """`POST /apply-template`: the rendered prompt, without the opening token."""

    prompt: str


class StreamsLookup(msgspec.Struct):
    """`POST /v1/streams/lookup`: names of conversations. Only streams whose names the client provides are returned."""

    conversation_ids: list[str] | None = None


class KeptStream(msgspec.Struct):
    """A stream that can be resumed. `completed_at` is 0 until its end; both times are Unix timestamps in seconds."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


class EmbeddingBody(msgspec.Struct):
    """`POST /embedding`. `content` is llama-server's name of the texts since 2023, `input` is OpenAI's."""

    content: Prompt | None = None
    input: Prompt | None = None
    embd_normalize: int | None = None
    image_data: Any = None
    """Images for `[img-12]` in a single text, as in 2024. If present, even as an empty list, the response has the format of
    2024."""
    lora: Any = None


class TextEmbedding(msgspec.Struct):
    """The embeddings of one text: a single row, or one per token."""

    index: int
    embedding: list[list[float]]


class OneEmbedding(msgspec.Struct):
    """The embedding of one text, in llama-server's format of 2024."""

    embedding: list[float]


class Document(msgspec.Struct):
    """A text, in Jina's object form."""

    text: str


class RerankBody(msgspec.Struct):
    """`POST /rerank`: Jina's fields, or TEI's with `texts`."""

    query: str | None = None
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: int | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: Any = None
    lora: Any = None


class Ranked(msgspec.Struct):
    """A result in Jina's format."""

    index: int
    relevance_score: float
    document: Document | msgspec.UnsetType = msgspec.UNSET


class RankedList(msgspec.Struct):
    """Jina's response, the best result first."""

    model: str
    object: str
    usage: TextsUsage
    """Tokens of all pairs."""
    results: list[Ranked]


class RankedByTei(msgspec.Struct):
    """A result in TEI's format, whose response is a list of these, the best first."""

    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET
