"""The fields of llama-server's own routes, by its names."""

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.server.body import CompletionFields
from weft.server.report import Timings, TokenLogprobs

__all__ = [
    "CompletionBody",
    "CompletionEvent",
    "CompletionResult",
    "DefaultSettings",
    "DetokenizeBody",
    "DetokenizeResult",
    "GenerationSettings",
    "Health",
    "NextToken",
    "Properties",
    "RestoreTimings",
    "SaveTimings",
    "Slot",
    "SlotActionBody",
    "SlotErased",
    "SlotRestored",
    "SlotSaved",
    "TokenPiece",
    "TokenizeBody",
    "TokenizeResult",
]


class CompletionBody(CompletionFields, kw_only=True):
    """`POST /completion`."""

    return_tokens: bool | None = None


class CompletionEvent(msgspec.Struct):
    """One token of a stream."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[TokenLogprobs] | msgspec.UnsetType = msgspec.UNSET


class GenerationSettings(msgspec.Struct):
    """The settings that took effect."""

    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: list[str]
    max_tokens: int
    n_predict: int
    ignore_eos: bool
    stream: bool
    logit_bias: list[dict[str, Any]]
    n_probs: int
    samplers: list[str]


class CompletionResult(msgspec.Struct):
    """One finished branch: the last event of a stream, where `content` is empty, or the whole answer."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: GenerationSettings
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: list[TokenLogprobs] | msgspec.UnsetType = msgspec.UNSET


class TokenizeBody(msgspec.Struct):
    """`POST /tokenize`."""

    content: str | list[int | str] | None = None
    add_special: bool | None = None
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
    """The text of tokens."""

    content: str


class Health(msgspec.Struct):
    """The model is loaded."""

    status: str


class NextToken(msgspec.Struct):
    """How far a slot is."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(msgspec.Struct):
    """One of the places where branches run. `id_task` and what follows are there while it is busy."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: int | msgspec.UnsetType = msgspec.UNSET
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_prompt_tokens_processed: int | msgspec.UnsetType = msgspec.UNSET
    n_prompt_tokens_cache: int | msgspec.UnsetType = msgspec.UNSET
    next_token: list[NextToken] | msgspec.UnsetType = msgspec.UNSET


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


class DefaultSettings(msgspec.Struct):
    """What a request that says nothing gets."""

    params: GenerationSettings
    n_ctx: int


class Properties(msgspec.Struct):
    """The server and its model."""

    default_generation_settings: DefaultSettings
    total_slots: int
    n_ctx: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    compute: str
    """How steps are computed, and why so."""
