"""The compiled engine (first draft: the names and types are the contract, the docs are to be completed)."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, final

from weft.request import Request

@final
class Model:
    """A loaded GGUF file. Every method may be called from any thread."""
    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int | None = None,
        use_mmap: bool = True,
        use_mlock: bool = False,
        on_progress: Callable[[float], object] | None = None,
    ) -> Model: ...  # blocks, GIL released; raises ModelLoadError
    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str | None: ...            # general.name
    @property
    def description(self) -> str: ...            # "llama 0.5B Q8_0"
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_params(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def vocab_type(self) -> int: ...
    @property
    def bos_token(self) -> int | None: ...
    @property
    def eos_token(self) -> int | None: ...
    @property
    def chat_template(self) -> str | None: ...
    def metadata(self) -> dict[str, str]: ...
    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int]) -> str: ...   # special tokens as text, invalid UTF-8 as U+FFFD
    def token_bytes(self, token: int) -> bytes: ...           # special tokens as their text

@final
class Engine:
    """The worker thread over one model."""
    def __new__(
        cls,
        model: Model,
        *,
        n_slots: int | None = None,
        n_ctx: int | None = None,
        kv_unified: bool | None = None,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        flash_attention: Literal["auto", "on", "off"] = "auto",
        type_k: str = "f16",
        type_v: str = "f16",
        max_queue: int = 1024,
        max_token_gap_ms: float = 200.0,
    ) -> Self: ...  # blocks, GIL released
    @property
    def model(self) -> Model: ...
    @property
    def limits(self) -> Limits: ...
    def submit(self, request: Request) -> Completions: ...  # raises ContextOverflow, QueueFull, InvalidRequest, EngineStopped
    def stats(self) -> Stats: ...
    def stop(self) -> None: ...  # blocks until the worker has ended; every open stream raises EngineStopped

@final
class Limits:
    n_slots: int
    n_ctx: int
    n_ctx_slot: int
    n_ubatch: int
    n_seq_max: int
    max_queue: int

@final
class Completions:
    """The stream of one request. Dropping it cancels the request."""
    seed: int      # the effective seed of branch 0
    n_prompt: int
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> Token | Finished: ...
    async def next_batch(self) -> list[Token | Finished]: ...  # all that is ready, at least one; [] once every branch has finished
    def close(self) -> None: ...       # cancels now; idempotent
    async def aclose(self) -> None: ...

@final
class Token:
    index: int
    token: int
    text: str
    slot: int
    n_predicted: int
    logprobs: Logprobs | None

@final
class Logprobs:
    chosen: Logprob
    top: list[Logprob]

@final
class Logprob:
    token: int
    bytes: bytes
    text: str      # bytes with U+FFFD for what is no UTF-8
    logprob: float

@final
class Finished:
    index: int
    slot: int
    reason: Literal["end", "stop", "length", "context_full"]
    stop: str | None      # the stop string, where reason is "stop"
    usage: Usage

@final
class Usage:
    n_prompt: int         # n_computed + n_cached
    n_computed: int
    n_cached: int
    n_predicted: int
    prompt_ms: float
    predicted_ms: float

@final
class Stats:
    slots: list[Slot]     # always n_slots entries
    n_waiting: int        # requests that wait for a slot
    n_computed: int       # prompt tokens computed since the start
    n_cached: int         # prompt tokens found computed since the start
    n_predicted: int      # tokens drawn since the start
    n_decodes: int
    n_cells_used: int
    n_cells: int

@final
class Slot:
    id: int
    is_processing: bool
    request_id: int | None     # counts up from 0 in order of submission
    index: int | None          # which branch
    n_prompt: int
    n_computed: int
    n_cached: int
    n_predicted: int
    n_remaining: int | None    # tokens it may still draw; None without a limit
