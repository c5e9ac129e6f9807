"""The fields of llama-server's own routes, by its names."""

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.server.request_fields import CompletionFields, Snippet, SystemPrompt
from weft.server.response_fields import (
    CompletionProbability,
    GenerationSettings,
    PromptProgress,
    Timings,
)

__all__ = [
    "ApplyTemplateResult",
    "CompletionBody",
    "CompletionEvent",
    "DefaultSettings",
    "DetokenizeBody",
    "DetokenizeResult",
    "FullSlot",
    "Health",
    "InfillBody",
    "KeptStream",
    "Modalities",
    "NextToken",
    "Properties",
    "PropertiesSet",
    "RestoreTimings",
    "SaveTimings",
    "Slot",
    "SlotActionBody",
    "SlotErased",
    "SlotRestored",
    "SlotSaved",
    "StreamsLookup",
    "TokenPiece",
    "TokenizeBody",
    "TokenizeResult",
    "TokenizerInfo",
]


class CompletionBody(CompletionFields, kw_only=True):
    """`POST /completion`.

    `system_prompt` changes what the prompts of all clients follow, until it is changed again: llama-server's object of 2024, or,
    as before that, a text with the names beside it. With it, the `prompt` may be left out.
    """

    event_format: str | None = None
    """`parallel` asks for the events of llama.cpp's first server for several users: text and nothing else."""
    system_prompt: str | SystemPrompt | None = None
    anti_prompt: str | list[str] | None = None
    """Stop strings; beside a `system_prompt` that is a text, the one for all clients."""
    assistant_name: str | None = None


class InfillBody(CompletionFields, kw_only=True):
    """`POST /infill`: what belongs between two texts. What of it is there already is the `prompt`."""

    prompt: str | None = None
    input_prefix: str | list[int | str] | None = None
    input_suffix: str | list[int | str] | None = None
    input_extra: list[Snippet] | None = None
    """Pieces of other files that help."""


class CompletionEvent(msgspec.Struct):
    """One token of a stream, or how far the prompt is before the first one. The first says by which `id` the request is found."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[CompletionProbability] | msgspec.UnsetType = msgspec.UNSET
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
    """A token and what it stands for: text, or bytes where they are no whole characters."""

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
    """What vLLM's clients ask about a tokenizer. A token that the vocabulary lacks is null."""

    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    chat_template: str
    model_max_length: int


class NextToken(msgspec.Struct, kw_only=True):
    """How far a slot is. The last four are what llama-server told in 2024: a slot is free as soon as its branch has stopped."""

    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: int
    stopped_eos: bool = False
    stopped_limit: bool = False
    stopped_word: bool = False
    stopping_word: str = ""


class Slot(msgspec.Struct, kw_only=True):
    """One of the places where branches run, while it computes a prefix that nobody continues."""

    id: int
    n_ctx: int
    model: str
    speculative: bool = False
    is_processing: bool
    state: int
    """1 while it is busy, else 0: how llama-server said so in 2024."""
    id_task: int
    task_id: int
    """The same as `id_task`, by its name of 2024."""
    n_prompt_tokens: int
    n_prompt_tokens_processed: int
    n_prompt_tokens_cache: int
    next_token: list[NextToken]


class FullSlot(GenerationSettings, kw_only=True):
    """A slot where a branch runs, or none: settings under `params`, and beside the other fields, where they stood in 2024.

    Those of an idle one are what a request gets that says nothing, and its task is -1.
    `prompt` and `generated` are there only if `LLAMA_SERVER_SLOTS_DEBUG` is set in the server's environment: they are a
    client's own.
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
    """The model is loaded. `slots` are there where they are asked for, as `/slots` lists them."""

    status: str
    slots_idle: int
    slots_processing: int
    slots: list[Any] | msgspec.UnsetType = msgspec.UNSET


class SlotActionBody(msgspec.Struct):
    """`POST /slots/{id_slot}`: the name of a file in the folder for slots."""

    filename: str | None = None


class SaveTimings(msgspec.Struct):
    """How long it took to save."""

    save_ms: float


class SlotSaved(msgspec.Struct):
    """What a slot held was saved: `n_saved` tokens in `n_written` bytes."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SaveTimings


class RestoreTimings(msgspec.Struct):
    """How long it took to restore."""

    restore_ms: float


class SlotRestored(msgspec.Struct):
    """A slot holds what was saved: `n_restored` tokens of `n_read` bytes."""

    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: RestoreTimings


class SlotErased(msgspec.Struct):
    """A slot holds nothing any more; it held `n_erased` tokens."""

    id_slot: int
    n_erased: int


class DefaultSettings(GenerationSettings, kw_only=True):
    """What a request that says nothing gets: under `params`, and beside it, where it stood in 2024."""

    params: GenerationSettings


class Modalities(msgspec.Struct):
    """What a prompt may hold besides text."""

    vision: bool
    video: bool
    audio: bool


class Properties(msgspec.Struct):
    """The server and its model. The two names are those of a chat that llama-server's page asked for in 2024."""

    default_generation_settings: DefaultSettings
    total_slots: int
    n_ctx: int
    model_alias: str
    model_path: str
    model_ftype: str
    modalities: Modalities
    media_marker: str
    """What stands for a picture or a sound in a `prompt_string`."""
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
    """What every prompt of `/completion` follows; empty where there is none."""
    user_name: str
    assistant_name: str
    compute: str
    """How steps are computed, and why so."""
    repeatable: bool
    """Whether a seeded request gives the same text whoever else is served."""
    repeatable_embeddings: bool
    """Whether a text has the same embedding, bit by bit, whatever is computed concurrently."""
    pooling: str
    """What becomes of the vectors of a text's tokens: none, mean, cls, last or rank."""
    chat_template_tool_use: str | msgspec.UnsetType = msgspec.UNSET
    """Template for chats with tools, if the model's file has a separate one."""


class PropertiesSet(msgspec.Struct):
    """`POST /props` was heard: no property can be changed while the server runs."""

    success: bool


class LoraScale(msgspec.Struct, forbid_unknown_fields=False):
    """How strongly an adapter counts in requests that name none."""

    id: int
    scale: float


class LoraAdapter(msgspec.Struct):
    """An adapter that is loaded."""

    id: int
    path: str
    scale: float
    """Its scale in requests that name no adapters."""
    task_name: str
    prompt_prefix: str
    alora_invocation_string: str | msgspec.UnsetType = msgspec.UNSET
    alora_invocation_tokens: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Of an activated adapter: it counts from the last place of these tokens in a prompt on."""


class LoraScalesSet(msgspec.Struct):
    """`POST /lora-adapters` was heard."""

    success: bool


class ApplyTemplateResult(msgspec.Struct):
    """`POST /apply-template`: the prompt that messages become, without the token that begins every text."""

    prompt: str


class StreamsLookup(msgspec.Struct):
    """`POST /v1/streams/lookup`: the conversations whose streams are looked for. Nobody is told of those that he cannot name."""

    conversation_ids: list[str] | None = None


class KeptStream(msgspec.Struct):
    """A stream that can be read again. `completed_at` is 0 as long as it is written; both times are in seconds since 1970."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int
