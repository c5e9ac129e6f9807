"""The compiled engine.

Reference of the classes that `weft` exports and of those behind `weft.Engine`. All of them are immutable, and every method may be
called from any thread. Methods that block release the GIL.

In a forked child process, every call that uses a model, an engine or a stream raises `ForkedProcessError`, because their threads
do not exist there.
"""

# ruff: noqa: PYI021 - The compiled module has no Python source, so this stub holds its documentation.

import os
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeVar, Unpack, final

from weft.branch_stream import Branches
from weft.config import EngineConfig
from weft.events import CacheExplanation, Event, Logprob
from weft.request import Request
from weft.request.sampling_options import SamplingOptions

__all__ = [
    "VERSION",
    "Adapter",
    "Biases",
    "BranchStats",
    "BufferUse",
    "CachedNode",
    "Cancellation",
    "CompactEmbeddings",
    "CompactLogprobs",
    "Compute",
    "DraftStats",
    "EmbeddingStats",
    "Engine",
    "Hardware",
    "Histogram",
    "HostCacheStats",
    "Limits",
    "Media",
    "MediaStats",
    "MemoryPlan",
    "MixedPrompt",
    "Modalities",
    "Model",
    "Prefix",
    "RecentStep",
    "RequestHistograms",
    "SavedPrefix",
    "Slot",
    "SpeculationStats",
    "Stats",
    "StepTimes",
    "Stream",
    "Timing",
    "TokenIds",
    "Tuning",
    "devices",
    "lower_priority",
    "plan_memory",
    "read_body",
    "schema_grammar",
    "trim_allocator",
    "trim_heap",
    "tune",
    "use_short_time_slices",
]

_T = TypeVar("_T")

VERSION: Final[str]
"""Version of the compiled module; equal to that of the distribution's metadata, if there is any."""

@final
class Modalities:
    """Media types that a model's projector supports."""

    @property
    def vision(self) -> bool:
        """True for images."""

    @property
    def audio(self) -> bool:
        """True for audio."""

@final
class MediaStats:
    """Media metrics since the model was loaded."""

    @property
    def n_encoded(self) -> int:
        """Chunks that the projector has encoded: an image is one, or several tiles; audio likewise."""

    @property
    def n_reused(self) -> int:
        """Chunks whose embeddings were reused."""

    @property
    def encode_s(self) -> float:
        """Seconds spent in the projector."""

    @property
    def n_kept_bytes(self) -> int:
        """Bytes of cached embeddings, at most 256 MiB."""

    @property
    def n_waiting_bytes(self) -> int:
        """Bytes of media that wait for the projector or are being encoded, and of the resulting embeddings."""

    @property
    def n_projector_bytes(self) -> int:
        """Bytes of the projector's weights; 0 without a projector."""

@final
class Media:
    """An image or audio item, preprocessed for a model, as a part of prompts."""

    @property
    def kind(self) -> Literal["image", "audio"]:
        """Media type."""

    @property
    def digest(self) -> str:
        """BLAKE3 hash of its file, in hexadecimal. Prompts with equal prefixes, including media, share computed tokens."""

    @property
    def n_bytes(self) -> int:
        """Size of its file in bytes."""

    @property
    def n_tokens(self) -> int:
        """Number of context cells that it occupies, including the tokens that the model requires around it."""

@final
class MixedPrompt:
    """A tokenized prompt of texts, token ids and media: created by `Model.tokenize_parts`, accepted by `Engine.stream`."""

    @property
    def n_tokens(self) -> int:
        """Number of context cells that it occupies."""

    @property
    def n_positions(self) -> int:
        """Number of positions; less than `n_tokens` if the model numbers the rows and columns of an image."""

    @property
    def media(self) -> list[Media]:
        """Its media, in order."""

    @property
    def text_tokens(self) -> list[int]:
        """Token ids of its texts and of the tokens around its media, concatenated."""

    def __len__(self) -> int:
        """Returns `n_tokens`."""

@final
class Model:
    """A loaded GGUF file: vocabulary, metadata and weights."""

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        config: EngineConfig | None = None,
        *,
        on_progress: Callable[[float], object] | None = None,
    ) -> Model:
        """Loads a GGUF file. Blocks until it is loaded; releases the GIL.

        Args:
            path: Path of the file, or of the first part of a split model.
            config: Settings. A model uses the settings for its file, weights, devices, adapters and projector; None
                is the defaults.
            on_progress: Called with the loaded fraction, 0 to 1, on this thread. The load continues if it raises; its first
                exception is raised at the end.

        Raises:
            ModelLoadError: The file is not a model that Weft can run, or a device is missing; `reason` has the details.
            InvalidConfigError: A number is out of range, a name is unknown, a pattern is invalid, a metadata override has another
                type than in the file, a file of `lora` is not an adapter of this model, or that of `mmproj` not a projector for
                it.
        """

    @staticmethod
    def load_vocabulary(
        path: str | os.PathLike[str], *, kv_overrides: Sequence[tuple[str, bool | int | float | str]] | None = None
    ) -> Model:
        """Loads only metadata and vocabulary of a GGUF file, in milliseconds, for tokenization.

        The model cannot generate, and properties of weights are 0: `n_params`, `size_bytes`, `n_ctx_train`, `n_embd`.

        Args:
            path: Path of the file, or of the first part of a split model.
            kv_overrides: Metadata overrides as in `EngineConfig`, as pairs.

        Raises:
            ModelLoadError: The file is not a model that Weft can run; `reason` has the details.
            InvalidConfigError: A value of `kv_overrides` has another type than in the file.
        """

    @staticmethod
    def load_sizes(path: str | os.PathLike[str], config: EngineConfig | None = None) -> Model:
        """Reads a GGUF file without its weights, in milliseconds, for `plan_memory`. The model cannot generate.

        Args:
            path: Path of the file, or of the first part of a split model.
            config: Settings, as in `load`. Adapters and a projector are loaded.

        Raises:
            ModelLoadError: The file is not a model that Weft can run, or a device is missing; `reason` has the details.
            InvalidConfigError: As in `load`.
        """

    @property
    def path(self) -> str:
        """Path of the file, as given."""

    @property
    def name(self) -> str | None:
        """Metadata value `general.name`."""

    @property
    def description(self) -> str:
        """Architecture, size and quantization as described by llama.cpp: "llama 0.5B Q8_0"."""

    @property
    def n_ctx_train(self) -> int:
        """Context size in tokens that the model was trained with."""

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary; token ids are less than this."""

    @property
    def n_embd(self) -> int:
        """Embedding width of the model."""

    @property
    def n_params(self) -> int:
        """Number of parameters."""

    @property
    def size_bytes(self) -> int:
        """Size of all tensors in bytes."""

    @property
    def is_repacked(self) -> bool:
        """True if llama.cpp was allowed to repack weights for its own matrix products."""

    @property
    def is_layout_open(self) -> bool:
        """True if `repack` is not set, both layouts of the weights work, and there is memory for a repacked copy.

        `python -m weft tune` measures which layout is faster.
        """

    @property
    def is_encoder(self) -> bool:
        """True for an encoder-only model, which computes embeddings and cannot generate."""

    @property
    def vocab_type(self) -> int:
        """llama.cpp's vocabulary type: 1 is SentencePiece BPE, 2 is byte-level BPE."""

    @property
    def bos_token(self) -> int | None:
        """Beginning-of-sequence token."""

    @property
    def eos_token(self) -> int | None:
        """End-of-sequence token."""

    @property
    def adds_bos(self) -> bool:
        """True if texts begin with `bos_token`."""

    @property
    def infill_tokens(self) -> dict[str, int]:
        """Infilling control tokens by the part of the prompt that follows each; empty for models without infilling.

        Keys are "prefix" and "suffix" for the text before and after the gap, "middle" for the gap's text, and "repository" and
        "file" for their names. Tokens that are not in the vocabulary are left out.
        """

    @property
    def chat_template(self) -> str | None:
        """Chat template, in Jinja."""

    @property
    def longest_piece(self) -> int | None:
        """Maximum bytes of text per token, so that a text of n bytes has at least n / `longest_piece` tokens.

        None if there is no such bound: some vocabularies skip white space, or map a word of any length to one token.
        """

    def least_tokens(self, text: str | bytes) -> int:
        """Returns a lower bound for the number of tokens of a text, without tokenizing it, at 1 ns per byte.

        Derived from `longest_piece` if that is known, else from the number of non-space bytes, or the words of a WordPiece
        vocabulary. 0 if no bound is known: with Unigram, and if not every byte has a token.

        Raises:
            InvalidRequestError: `text` has a lone surrogate, or is not a text.
        """

    def metadata(self) -> dict[str, str]:
        """Returns every metadata key with its value as text, without arrays."""

    def control_tokens(self) -> list[int]:
        """Returns every control token with a spelling, in order: the tokens that `parse_special` recognizes."""

    def end_tokens(self) -> list[int]:
        """Returns every token that ends a text, in order: the tokens that `ignore_eos` bans."""

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Returns the token ids of a text. Releases the GIL; takes linear time on this thread, 0.2 to 5 µs per byte.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds BOS and EOS tokens as the vocabulary requires.
            parse_special: Parses the spelling of a control token as that token.

        Raises:
            InvalidRequestError: `text` has a lone surrogate, or is not a text; or, if the vocabulary splits words with regular
                expressions, it has more than 262,144 consecutive characters of one kind.
            NotSupportedError: There is no memory for the stack that a long run of such characters requires.
            WorkCancelledError: The call runs in `Cancellation.run`, and was cancelled.
        """

    def tokenize_on(self, text: str | bytes, *, parse_special: bool = True) -> list[int]:
        """Returns the token ids of a text that continues another one, as for `Request.suffix_prompt`.

        Adds neither BOS and EOS tokens nor the leading space of some vocabularies. Tokens are not merged across the boundary,
        even if the concatenated text would have a single token there.

        Raises:
            InvalidRequestError: `text` has a lone surrogate, or is not a text.
        """

    def token_ids(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> TokenIds:
        """Returns the result of `tokenize` as one object; for a long text, creating a list of integers takes milliseconds.

        Raises:
            InvalidRequestError: `text` has a lone surrogate, or is not a text.
        """

    def pieces_json(self, tokens: Sequence[int]) -> bytes:
        """Returns `{"id", "piece"}` of each token as JSON, comma-separated; a piece that is not UTF-8 is a list of bytes.

        Raises:
            InvalidRequestError: `tokens` are not token ids.
        """

    @property
    def modalities(self) -> Modalities:
        """Media types that the projector supports; none without a projector."""

    def media_stats(self) -> MediaStats:
        """Returns the media metrics."""

    def read_media(self, data: bytes) -> Media:
        """Decodes an image (PNG, JPEG, GIF, BMP, WebP) or audio (WAV, MP3, FLAC, Ogg Vorbis) file.

        Decodes and splits it on this thread, without the GIL, in a few milliseconds per megapixel. The projector encodes it on
        its own thread, when a request first needs it.

        Raises:
            NotSupportedError: The model was loaded without a projector.
            InvalidRequestError: The data has another format, is damaged, too large, or not supported by this projector.
            QueueFullError: 1 GiB of media is loaded and in use.
        """

    def tokenize_parts(
        self, parts: Sequence[str | int | Media | Sequence[int]], *, add_special: bool = True, parse_special: bool = True
    ) -> MixedPrompt:
        """Combines texts, token ids and media to one prompt. Each text is tokenized separately, as by llama.cpp's `mtmd`.

        Args:
            parts: Parts of the prompt, in order.
            add_special: Adds a BOS token as the vocabulary requires.
            parse_special: Parses the spelling of a control token as that token.

        Raises:
            InvalidRequestError: A part has another type.
        """

    def detokenize(self, tokens: Sequence[int] | MixedPrompt) -> str:
        """Returns the text of token ids: control tokens by their spelling, U+FFFD for bytes that are not valid UTF-8.

        An image or audio item, whose positions have negative ids, becomes `<__media__>`.

        Raises:
            InvalidRequestError: A token is not in the vocabulary.
        """

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of one token, possibly not a complete character; for a control token, its spelling.

        Raises:
            InvalidRequestError: The token is not in the vocabulary.
        """

@final
class Cancellation:
    """A flag that stops long work from another thread; currently, tokenization of a long text."""

    def __new__(cls) -> Cancellation:
        """Creates a flag that is not set."""

    def cancel(self) -> None:
        """Stops the work that `run` calls: it raises `WorkCancelledError`, or returns if it is almost done. Cannot be undone."""

    @property
    def is_cancelled(self) -> bool:
        """True after `cancel`."""

    def run(self, work: Callable[[], _T]) -> _T:
        """Calls `work` on this thread and returns its result.

        Raises:
            WorkCancelledError: `cancel` was called while a long text was being tokenized. The flag is checked between chunks: of
                64 KiB with SentencePiece vocabularies, of at least 256 KiB, up to a line end, with BPE, and of the whole text
                with others.
        """

@final
class Engine:
    """The worker thread of one model, with a blocking interface. `weft.Engine` is the interface for async Python."""

    def __new__(
        cls,
        model: Model,
        config: EngineConfig,
        *,
        tuned: tuple[bool | None, int, int] | None = None,
    ) -> Self:
        """Creates the KV cache and starts the worker. Blocks until that is done; releases the GIL.

        Dropping the last reference stops the worker as `stop` does.

        Args:
            model: The model.
            config: Settings. Those of `Model.load` and `tuned` are ignored, except `kernels`.
            tuned: Fastest settings found by `tune`: flash attention (None if Weft's attention was used), number of threads, and
                number of threads for prompts. They are the defaults of settings that `config` leaves open.

        Raises:
            InvalidConfigError: A setting is out of range, two contradict each other, or the KV cache does not fit in memory.
            ModelLoadError: The model cannot generate text.
            DecodeError: The model could not compute a test decode.
        """

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def limits(self) -> Limits:
        """Effective sizes and limits, determined at the start."""

    @property
    def is_repeatable(self) -> bool:
        """True if a seeded request generates the same text regardless of concurrent requests."""

    @property
    def no_speculation_reason(self) -> str | None:
        """None if tokens are drafted (speculative decoding), else why not."""

    @property
    def draft_type(self) -> str | None:
        """Type of the draft model that drafts, such as `draft-simple`; None if no draft model does."""

    @property
    def embeddings_are_repeatable(self) -> bool:
        """True if a text has the same embedding, bit for bit, regardless of concurrent requests."""

    @property
    def compute(self) -> Compute:
        """Kernels and devices that compute steps, with the reasons for the choice."""

    def submit(self, request: Request, branches: Sequence[Request] | None = None) -> Stream:
        """Queues a request and returns its stream immediately.

        With `branches`, the request's prompt is continued according to each of them; their own prompts are ignored, and their
        completions are numbered consecutively. `weft.request.branches.branch_requests` creates them from `Request.branches`,
        which is ignored here.

        A string prompt is tokenized on this thread, without the GIL, with the special tokens that the vocabulary requires, and
        with control tokens parsed, as llama-server does for a raw prompt.

        Raises:
            InvalidRequestError: A field has the wrong type or is out of range.
            ContextOverflowError: The prompt alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was stopped.
        """

    def adapters(self) -> list[Adapter]:
        """Returns the loaded adapters, each with its scale in requests that do not set `adapters`."""

    def set_adapters(self, adapters: Sequence[tuple[int, float]]) -> None:
        """Sets the default of `Request.adapters`; adapters that are not listed are off.

        Raises:
            InvalidRequestError: There is no such adapter, or a scale is not finite; nothing is changed.
        """

    def embed(
        self,
        texts: Sequence[str | bytes | Sequence[int] | Sequence[str | int | Media | Sequence[int]] | MixedPrompt],
        *,
        normalize: int = 2,
        dimensions: int | None = None,
    ) -> Coroutine[Any, Any, CompactEmbeddings]:
        """Queues texts for embedding and returns an awaitable for the result; dropping it cancels the computation.

        Texts are tokenized on this thread.

        Args:
            texts: Texts in any form of a prompt; strings are tokenized as prompts are.
            normalize: -1 is none, 0 scales the largest absolute value to 32,760, `p` >= 1 normalizes the p-norm to 1.
            dimensions: Number of leading dimensions to keep, before normalization.

        Raises:
            InvalidRequestError: A text is empty or too long, there are no texts, or `normalize` or `dimensions` is out of range.
            NotSupportedError: The model's pooling is rank, or it is an encoder and a text has media.
            QueueFullError: 2²⁰ tokens are already waiting.
            EngineStoppedError: The engine was stopped.
        """

    def rerank(self, query: str | bytes, texts: Sequence[str | bytes]) -> Coroutine[Any, Any, CompactEmbeddings]:
        """Queues a query with each of the texts and returns an awaitable for the result: a row of one number per text.

        Raises:
            InvalidRequestError: A pair is too long, or there are no texts.
            NotSupportedError: The model's pooling is not rank.
            QueueFullError: 2²⁰ tokens are already waiting.
            EngineStoppedError: The engine was stopped.
        """

    def embedding_stats(self) -> EmbeddingStats:
        """Returns metrics and settings of embeddings."""

    def pin(self, prompt: str | Sequence[int], *, adapters: Sequence[tuple[int, float]] | None = None) -> Stream:
        """Queues a request to pin a prompt: the part that is not cached is computed, and all of it stays cached until unpinned.

        The stream yields one event, a `Finished` whose `result` is a `Prefix`. It raises `PinBudgetError` if pinned prefixes
        would take more than half of the cache.

        Raises:
            InvalidRequestError: The prompt has no tokens or the wrong type.
            ContextOverflowError: The prompt alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was stopped.
        """

    def unpin(self, prefix_id: int) -> bool:
        """Unpins a prefix, so that it may be evicted; returns False if no prefix has that id. Waits for the running step.

        Raises:
            EngineStoppedError: The engine was stopped.
        """

    def pinned(self) -> list[Prefix]:
        """Returns every pinned prefix, in pinning order. Waits for the running step.

        Raises:
            EngineStoppedError: The engine was stopped.
        """

    def save(
        self,
        prompt: str | Sequence[int],
        *,
        compute: bool = True,
        adapters: Sequence[tuple[int, float]] | None = None,
        invoked_at: int | None = None,
    ) -> Stream:
        """Queues a request to copy a prompt's computed state out of the cache.

        The stream yields one event, a `Finished` whose `result` is a `SavedPrefix`.

        Args:
            prompt: The prompt. The part that is not cached is computed first.
            compute: False copies only the cached part.
            adapters: Adapters for the computation, as in `Request`.
            invoked_at: Position from which an activated adapter (aLoRA) applies; None is its last invocation in the prompt.

        Raises:
            InvalidRequestError: The prompt has no tokens or the wrong type.
            ContextOverflowError: The prompt alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was stopped.
            OverflowError: `invoked_at` is below 0, or 2³² or more.
        """

    def load(self, prefix: SavedPrefix, *, slot: int | None = None) -> Stream:
        """Queues a request to copy a saved prefix into the cache. The stream yields one event, a `Finished`.

        Args:
            prefix: A prefix saved by an engine with the same model and cache type.
            slot: Slot to load the prefix into, once it is free; None is any.

        Raises:
            InvalidRequestError: There is no such slot.
            ContextOverflowError: The prefix alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was stopped.
        """

    def write_prefix(self, prefix: SavedPrefix, path: str | os.PathLike[str]) -> int:
        """Writes a saved prefix to a file, without the GIL; returns the size of the file in bytes.

        Raises:
            OSError: The file cannot be written.
        """

    def read_prefix(self, path: str | os.PathLike[str]) -> tuple[SavedPrefix, int]:
        """Reads a file of `write_prefix`, without the GIL; returns the prefix and the size of the file in bytes.

        Raises:
            PrefixFileError: The file is damaged, or is of another model or cache type; `reason` has the details.
            OSError: The file cannot be read.
        """

    def cached(self) -> list[CachedNode]:
        """Returns all nodes of the prefix tree, parents before their children. Waits for the running step.

        Raises:
            EngineStoppedError: The engine was stopped.
        """

    def recently_used(self, limit: int) -> tuple[list[CachedNode], int]:
        """Returns at most `limit` nodes of the prefix tree, and the total number of nodes. Waits for the running step.

        The most recently used come first. A node counts as used when one of its descendants is, so parents come before their
        children, and no node is returned without its parent. Only the construction of Python objects holds the GIL.

        Raises:
            EngineStoppedError: The engine was stopped.
            OverflowError: `limit` is below 0.
        """

    def prefix_digest(self, key: bytes, n_max: int) -> tuple[bytes, bytes]:
        """Returns hashes of cached prefixes, of the device cache and of the host cache only: see `weft.Engine.prefix_digest`.

        Waits for several steps, over which the hashing is spread.

        Raises:
            InvalidRequestError: The key has more than 64 bytes.
            EngineStoppedError: The engine was stopped.
            OverflowError: `n_max` is below 0.
        """

    def slot_state(self, slot: int) -> tuple[list[int], list[tuple[int, float]], int | None]:
        """Returns the tokens in a slot, the adapters that they were computed with, and the position where an aLoRA begins.

        The tokens are those that the slot's running sequence, or else the last one, has computed. Prompts that are pinned, saved,
        or loaded without a slot run in a free slot and do not change its tokens.

        Waits for the running step.

        Raises:
            InvalidRequestError: There is no such slot.
            EngineStoppedError: The engine was stopped.
        """

    def erase_slot(self, slot: int) -> int | None:
        """Evicts the tokens in a slot, except those that other cached prefixes share; returns the number of tokens in the slot.

        Returns None while a sequence runs there, without evicting anything. Waits for the running step.

        Raises:
            InvalidRequestError: There is no such slot.
            EngineStoppedError: The engine was stopped.
        """

    @property
    def is_running(self) -> bool:
        """True while the worker thread is running: it has neither been stopped nor died."""

    def stats(self) -> Stats:
        """Returns gauges as of the last step, and counters."""

    def recent_steps(self) -> list[RecentStep]:
        """Returns the last steps that computed or moved something, oldest first; at most 64."""

    def stop(self) -> None:
        """Stops the worker; waits, without the GIL, for the decode that is running. Idempotent.

        Ends every open stream with `EngineStoppedError`; later requests raise it.
        """

@final
class Limits:
    """Effective sizes and limits of an engine, determined when it started."""

    @property
    def n_slots(self) -> int:
        """Number of slots: sequences that run concurrently."""

    @property
    def n_ctx(self) -> int:
        """Cells of the device cache, one per token; a multiple of 256."""

    @property
    def n_ctx_slot(self) -> int:
        """Maximum tokens of one sequence, prompt and generated text together; at most `n_ctx`."""

    @property
    def n_ubatch(self) -> int:
        """Maximum tokens of one decode."""

    @property
    def n_seq_max(self) -> int:
        """Number of sequence ids for slots and cached branches, at most 256."""

    @property
    def max_host_cache_bytes(self) -> int | None:
        """Maximum bytes of the host cache; None is no limit, 0 disables it."""

    @property
    def max_queue(self) -> int:
        """Maximum requests that wait for a slot."""

    @property
    def forks_anywhere(self) -> bool:
        """True if a prompt can continue from any position of a cached prompt: all layers have full attention.

        Otherwise `Request.checkpoints_at` is useful, because a recurrent state can only be continued at a checkpoint. With a
        sliding window, a prompt can continue wherever its window is still cached: at the end of a prompt with `checkpoints_at`,
        and where two prompts have diverged before.
        """

@final
class Compute:
    """Kernels and devices that compute the steps of an engine."""

    @property
    def flash_attention(self) -> Literal["auto", "on", "off"]:
        """Use of a fused attention kernel, Weft's or llama.cpp's; "auto" if llama.cpp decides."""

    @property
    def attention(self) -> Literal["weft", "llama.cpp"]:
        """Implementation of attention on the CPU."""

    @property
    def products(self) -> Literal["weft", "llama.cpp"]:
        """Implementation of matrix products on the CPU; llama.cpp computes products with weights that it has repacked."""

    @property
    def n_ubatch(self) -> int:
        """Maximum tokens of one decode."""

    @property
    def n_threads(self) -> int:
        """Number of threads of a decode without prompt tokens."""

    @property
    def n_threads_batch(self) -> int:
        """Number of threads of a decode with prompt tokens."""

    @property
    def summary(self) -> str:
        """One-line summary with the reasons."""

@final
class BufferUse:
    """Planned memory of one buffer type, in bytes."""

    @property
    def name(self) -> str:
        """llama.cpp's name of the buffer type, such as `CPU` or `CUDA0`."""

    @property
    def is_host(self) -> bool:
        """True if the buffers are in host memory, in their plain layout."""

    @property
    def weights(self) -> int:
        """Bytes of the weights."""

    @property
    def cache(self) -> int:
        """Bytes of the KV cache and of recurrent states."""

    @property
    def compute(self) -> int:
        """Bytes of the compute buffers."""

@final
class MemoryPlan:
    """Memory that an engine would use, and the sizes that it would have."""

    @property
    def n_slots(self) -> int:
        """As in `Limits`."""

    @property
    def n_ctx(self) -> int:
        """As in `Limits`."""

    @property
    def n_ctx_slot(self) -> int:
        """As in `Limits`."""

    @property
    def n_ubatch(self) -> int:
        """As in `Limits`."""

    @property
    def max_host_cache_bytes(self) -> int | None:
        """As in `Limits`."""

    @property
    def buffers(self) -> list[BufferUse]:
        """Memory of each buffer type, in order of name."""

    @property
    def key_bytes(self) -> int:
        """Estimated bytes of the keys in the device cache; 0 for a model without cells."""

    @property
    def value_bytes(self) -> int:
        """Estimated bytes of the values in the device cache."""

    @property
    def output_bytes(self) -> int:
        """Maximum bytes of the logits that one decode returns."""

    @property
    def draft_bytes(self) -> int:
        """Maximum bytes of the candidates and logits of a draft model, in host memory; 0 without one."""

    @property
    def free_bytes(self) -> int:
        """Free bytes where the device cache would be allocated, after the weights are loaded."""

    @property
    def is_mapped(self) -> bool:
        """True if the weights in host memory are mapped from the file."""

    @property
    def summary(self) -> str:
        """As `Compute.summary`."""

def plan_memory(model: Model, config: EngineConfig, *, tuned: tuple[bool | None, int, int] | None = None) -> MemoryPlan:
    """Plans the memory of an engine, by simulating its allocations. Takes milliseconds; releases the GIL.

    Args:
        model: The result of `Model.load_sizes`.
        config: Settings of the engine.
        tuned: Flash attention and numbers of threads that were measured, as in `Engine`.

    Raises:
        InvalidConfigError: As when an engine starts: settings contradict each other, or do not fit the model or the memory.
        NotSupportedError: The model is an encoder.
        ModelLoadError: The model was not loaded by `Model.load_sizes`.
    """

@final
class Hardware:
    """Properties of this machine that determine the speed of inference."""

    @staticmethod
    def read() -> Hardware:
        """Detects the hardware of this machine."""

    @property
    def cpu(self) -> str:
        """Name of the processor, as reported by Linux."""

    @property
    def n_cores(self) -> int:
        """Number of physical cores that this process may use."""

    @property
    def n_threads(self) -> int:
        """Number of logical processors that this process may use."""

    @property
    def instructions(self) -> str:
        """Instruction sets and options that llama.cpp was compiled for."""

    @property
    def gpus(self) -> list[str]:
        """Devices that model layers can be offloaded to."""

@final
class Timing:
    """Measured time of one configuration."""

    @property
    def flash_attention(self) -> bool | None:
        """Use of llama.cpp's fused attention kernel; None if Weft's attention was used."""

    @property
    def work(self) -> Literal["prompt", "branches"]:
        """Workload: a prompt of 1,000 tokens, or 8 branches of it with 128 tokens each."""

    @property
    def n_threads(self) -> int:
        """Number of threads."""

    @property
    def seconds(self) -> float | None:
        """Time of the whole workload in seconds; None if the time budget did not allow a measurement."""

@final
class Tuning:
    """Result of `tune`."""

    @property
    def timings(self) -> list[Timing]:
        """Measurements of all candidates."""

    @property
    def best(self) -> tuple[bool | None, int, int]:
        """Fastest configuration: flash attention, threads of a decode without prompt tokens, and of one with them.

        Flash attention is None if Weft's attention was used.
        """

def tune(
    model: Model,
    *,
    type_k: str = "f16",
    type_v: str = "f16",
    kernels: Literal["auto", "weft", "llama.cpp"] = "auto",
    budget_s: float = 55.0,
    on_progress: Callable[[float], object] | None = None,
) -> Tuning:
    """Measures which configuration computes a model fastest on this machine, in separate contexts. Blocks; releases the GIL.

    Args:
        model: The model.
        type_k: Number format of cached keys.
        type_v: Number format of cached values; quantized formats require flash attention.
        kernels: CPU kernels. With Weft's attention only the number of threads is measured, otherwise also llama.cpp's attention
            with and without flash attention.
        budget_s: Approximate time limit in seconds. Each kind of attention is measured at least once.
        on_progress: Called with the completed fraction, 0 to 1, on this thread. An exception that it raises, or Ctrl-C, ends the
            measurement.

    Raises:
        InvalidConfigError: The model does not support these cache formats, does not fit in memory, or `budget_s` is invalid.
        DecodeError: The model could not compute a step.
    """

@final
class CompactLogprobs:
    """Log-probabilities of one token that can serialize themselves to JSON; the length is the number of top logprobs."""

    def __new__(cls, model: Model, pairs: Sequence[tuple[int, float]]) -> Self:
        """Creates it from the result of `pairs` in another process; `model` provides the spelling of the tokens.

        Raises:
            ValueError: `pairs` is empty.
        """

    def pairs(self) -> list[tuple[int, float]]:
        """Returns the sampled token, then the top tokens, each with its log-probability."""

    @property
    def chosen(self) -> Logprob:
        """Log-probability of the sampled token, or of the prompt's token at this position."""

    def __len__(self) -> int:
        """Returns the number of top logprobs."""

    def token_json(self, with_top: bool, is_prob: bool) -> bytes:
        """Returns `{"id", "token", "bytes", "logprob", "top_logprobs": […]}`, or with `is_prob` `prob` and `top_probs`.

        Without `with_top`, the list is empty.
        """

    def completion_json(self, is_prob: bool) -> bytes:
        """Returns `content` and `probs: [{"prob", "tok_str"}, …]`, the format of llama-server in 2024."""

    def top_json(self) -> bytes:
        """Returns `{text: log-probability, …}` of the top tokens; if several have the same text, the most likely counts."""

@final
class Stream:
    """Stream of the events of all branches of one request.

    The request is cancelled, and its slots are freed before the next decode, by `close()`, by `aclose()`, and by dropping the
    last reference: by `break` out of an `async for` that holds it, at the end of a cancelled task, or by the garbage collector.

    Several tasks may read one stream, on any threads and asyncio (or uvloop) event loops that can watch a file descriptor; each
    event goes to one of them. Cancelling a task that waits for an event loses no event.
    """

    @property
    def seed(self) -> int:
        """Seed of branch 0, given or random; branch `i` uses `seed + i` (modulo 2³²), unless it has its own."""

    @property
    def n_prompt(self) -> int:
        """Prompt length in tokens, without the suffixes of branches."""

    @property
    def request_id(self) -> int:
        """Number of the request in order of submission, from 0; equal to `Slot.request_id`."""

    @property
    def explanation(self) -> CacheExplanation | None:
        """Causes of cache misses of the prompt, if `Request.explain_cache` is set.

        Available once the first branch has started in a slot, before any token. It may change until that branch's first token, if
        a prefix cannot be reloaded; the final value is `Finished.explanation`. None if not requested, or if no branch has
        started.
        """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Event]:
        """Returns the next event of any branch, or of the prompt if requested. Does not suspend if an event is ready.

        Raises:
            StopAsyncIteration: Every branch has finished, or the stream was closed.
            DecodeError: The model could not compute a step. This error and the next two are raised once; then the stream has
                ended.
            SlowConsumerError: 10,000 events per branch, or 32 MiB of events, were unread, and nothing was read for 30 s.
            EngineStoppedError: The engine was stopped.
            RuntimeError: No asyncio event loop is running on this thread.
        """

    def next_batch(self, *, compact: bool = False) -> Coroutine[Any, Any, list[Event]]:
        """Returns the next events in order: at least one and about 256 KiB at most, or an empty list at the end.

        This is faster than single events. The limit is about 2,000 tokens, or five with a thousand top logprobs each, which
        occupies the event loop for a millisecond. With `compact`, the log-probabilities of a token are a `CompactLogprobs`, which
        is cheap and serializes itself.

        Raises:
            DecodeError: The model could not compute a step. This error and the next two are raised once; then the stream has
                ended.
            SlowConsumerError: 10,000 events per branch, or 32 MiB of events, were unread, and nothing was read for 30 s.
            EngineStoppedError: The engine was stopped.
            RuntimeError: No asyncio event loop is running on this thread.
        """

    def readable(self) -> Coroutine[Any, Any, None]:
        """Waits until `next_batch` would return immediately, with events, the end or an error. Consumes nothing.

        Raises:
            RuntimeError: No asyncio event loop is running on this thread.
        """

    def cancel(self, index: int) -> None:
        """Cancels one branch: frees its slot before the next decode and ends it with the reason "cancelled". Others continue.

        In a beam search, cancelling one branch ends all of them. Has no effect if there is no such branch, or if it has ended.

        Raises:
            InvalidRequestError: `index` is not a branch number.
        """

    def fork(
        self,
        index: int,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | Sequence[int] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Coroutine[Any, Any, list[int]]:
        """Forks a branch: adds `n` branches that continue its prompt, its text up to a position, and an appended text.

        Forks are added to this stream, after its other branches; `fork_stream` returns them as a separate stream. A branch
        that has ended can also be forked, while this stream exists. Forks at the end of a running branch sample from the same
        logits as its next token, so nothing is computed for them; forks at an earlier position compute one token.

        Without options, forks continue with the branch's parameters and with the state of its penalties, grammar and stop
        strings. With any option, that state is reset, and all text before the fork is its prompt. A fork that becomes branch `i`
        uses `seed + i` (modulo 2³²); with the option `seed`, fork `k` uses that `+ k`.

        The request is sent immediately, even if the result is not awaited. The forks remain if the wait is cancelled.

        Args:
            index: Index of the branch.
            n: Number of forks; at most 256 including the branches of this stream.
            at: Position of the fork, in tokens or in bytes of the branch's text; None is its end when the worker handles the
                request. An end token is not part of it.
            unit: Unit of `at`: `"token"` or `"byte"`.
            append: Text or tokens between the fork position and the generated text, as `Request.suffix_prompt`. A grammar that
                continues consumes it.
            **options: Options of the forks; the defaults are those of the branch.

        Returns:
            Indices of the forks in this stream.

        Raises:
            InvalidRequestError: There is no such branch or position, the grammar does not allow the appended text, an option is
                invalid, or this stream has ended.
            ContextOverflowError: The text before the fork fills the context.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was closed.
        """
    def fork_stream(
        self,
        index: int,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | Sequence[int] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Coroutine[Any, Any, Stream]:
        """Forks a branch as `fork` does, and returns the forks as a stream of their own.

        The stream that is forked may have ended. The `k`th of all forks with their own streams uses `seed + 256 + k` (modulo
        2³²); with the option `seed`, fork `k` uses that `+ k`.

        Args:
            index: Index of the branch.
            n: Number of forks, at most 256.
            at: Position of the fork, as in `fork`.
            unit: Unit of `at`.
            append: Text or tokens between the fork position and the generated text, as in `fork`.
            **options: Options of the forks; the defaults are those of the branch.

        Returns:
            The stream of the forks, whose branches count from 0.

        Raises:
            WeftError: Any error of `fork`.
        """

    def fork_boundary(self, index: int) -> tuple[str, int]:
        """Returns how the text of a fork continues the text of its branch.

        Returns:
            A text between the two that neither emits, and the number of characters at the end of the branch's emitted text that
            the fork emits again. They are "" and 0 unless text was held back at the fork as the possible start of a stop string,
            and for an unknown branch. Available when `fork` has returned.

        Raises:
            InvalidRequestError: `index` is not an integer from 0 to 2³² − 1.
        """

    def forked_at(self, index: int) -> tuple[int, int] | None:
        """Returns the parent branch of a fork in this stream, and the number of the parent's tokens before the fork.

        None if the branch is not a fork or does not exist. Available when `fork` has returned.

        Raises:
            InvalidRequestError: `index` is not an integer from 0 to 2³² − 1.
        """

    def branches(self) -> Branches:
        """Iterates over the branches, including forks: `async for branch in stream.branches()`. Call it once."""

    def close(self) -> None:
        """Cancels the request: drops its events and ends the stream for waiting readers. Idempotent."""

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Does the same as `close`, immediately, even if it is not awaited; for `contextlib.aclosing`."""

@final
class TokenIds(Sequence[int]):
    """A compact sequence of token ids. Wherever token ids are accepted, it is passed to the engine without iteration."""

    def __new__(cls, tokens: Sequence[int]) -> Self:
        """Creates it from 32-bit token ids.

        Raises:
            TypeError: An element is not an integer.
            OverflowError: An element is too large.
        """

    def __len__(self) -> int:
        """Returns the number of token ids."""

    def __getitem__(self, index: int, /) -> int:  # type: ignore[override]  # No part of it is a sequence.
        """Returns the token id at an index, from 0."""

    def part(self, start: int, end: int) -> list[int]:
        """Returns the token ids in `[start, end)`; fewer at the end of the list."""

    def outside(self, n_vocab: int) -> int | None:
        """Returns the first token id that is not in `[0, n_vocab)`, or None."""

    def json(self) -> bytes:
        """Returns the token ids as a JSON list."""

@final
class Biases(Sequence[tuple[int, float]]):
    """A compact sequence of logit biases: pairs of a token id and the value added to its logit; minus infinity bans it."""

    def __new__(cls, pairs: Sequence[tuple[int, float]]) -> Self:
        """Creates it from pairs of a 32-bit token id and a number.

        Raises:
            TypeError: An element is not such a pair.
            OverflowError: A token id is too large.
        """

    def __len__(self) -> int:
        """Returns the number of biases."""

    def __getitem__(self, index: int, /) -> tuple[int, float]:  # type: ignore[override]  # As above.
        """Returns the pair at an index, from 0."""

    def json(self) -> bytes:
        """Returns the biases as a JSON list of objects with `token` and `bias`, which is false for a banned token."""

def devices() -> list[tuple[str, str, int, int]]:
    """Returns every device except the CPU: ggml's name (`CUDA0`), its description, and its total and free memory in bytes."""

def schema_grammar(schema: str) -> str:
    """Returns the GBNF grammar, with the root rule `root`, of the JSON that matches a JSON schema, given as text.

    Raises:
        InvalidRequestError: The schema is invalid; the message has the reason, line and column.
    """

def trim_allocator() -> None:
    """Configures glibc's allocator to return freed memory to the system instead of keeping it. No effect elsewhere."""

def trim_heap() -> None:
    """Returns free memory in the middle of the heap to the system, with glibc's allocator.

    Takes about 80 ms per gigabyte. Other threads continue; those that allocate wait for a part of that time.
    """

def use_short_time_slices() -> None:
    """Sets the shortest scheduler time slices that Linux supports (6.12 and newer), for this thread and threads that it starts.

    This reduces their wake-up latency but not their share of the processor's time. No effect elsewhere.
    """

def lower_priority(niceness: int) -> None:
    """Runs long engine work of this thread on a helper thread whose niceness is higher than that of compute threads, on Linux.

    `niceness` is the difference, 0 to 19. The priority of this thread is unchanged, so no other thread waits for a GIL whose
    holder is not scheduled.
    """

def read_body(
    body: bytes, *, fields: Sequence[str], tokens: Sequence[str], biases: Sequence[str]
) -> tuple[bytes, dict[str, TokenIds | list[TokenIds] | Biases], list[tuple[tuple[str | int, ...], str]]]:
    """Parses a large JSON object without the GIL, so that Python creates objects for few values only.

    Args:
        body: The object, as UTF-8.
        fields: Names of relevant fields; other fields are only checked to be valid JSON.
        tokens: Names of relevant fields that may hold token ids, or lists of them.
        biases: Names of relevant fields that may hold biases: pairs of a token and a number, or an object; `false` bans a token.

    Returns:
        The object as JSON, without irrelevant fields and extracted values; the extracted lists of token ids and biases, by field;
        and the extracted strings of more than 64 KiB, each with its path of names and indices. `…` takes their place in the JSON.

    Raises:
        ValueError: The body is not a JSON object in UTF-8, is nested more than 900 levels deep, or has more than 65,536 other
            values.
    """

@final
class Prefix:
    """A pinned prefix: it stays cached until it is unpinned."""

    @property
    def id(self) -> int:
        """Id for `unpin`; increases with each pin."""

    @property
    def tokens(self) -> list[int]:
        """Token ids of the prefix."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first `n` and the last `n` tokens; all tokens and an empty list if there are at most `2 * n`."""

    @property
    def n_bytes(self) -> int:
        """Bytes of its computed state, in the device cache or the host cache, including shared parts."""

    @property
    def adapters(self) -> list[tuple[int, float]]:
        """Adapters that it was computed with, each with its scale."""

    @property
    def invoked_at(self) -> int | None:
        """Position from which its activated adapter (aLoRA) applies; None if it has none."""

@final
class Adapter:
    """A loaded LoRA adapter, which requests enable with a scale."""

    @property
    def id(self) -> int:
        """Index of the adapter in `Request.adapters`, from 0."""

    @property
    def path(self) -> str:
        """Path of the file, as given."""

    @property
    def scale(self) -> float:
        """Scale in requests that do not set `adapters`; 0 is off."""

    @property
    def task_name(self) -> str:
        """Metadata value `adapter.lora.task_name`."""

    @property
    def prompt_prefix(self) -> str:
        """Metadata value `adapter.lora.prompt_prefix`."""

    @property
    def n_bytes(self) -> int:
        """Size of its tensors in bytes."""

    @property
    def invocation(self) -> list[int]:
        """Invocation tokens of an activated adapter (aLoRA), which applies from their last occurrence; empty for others."""

@final
class SavedPrefix:
    """Computed state of a prompt, copied out of the cache."""

    @property
    def tokens(self) -> list[int]:
        """Token ids of the copied prompt."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""

    @property
    def adapters(self) -> list[tuple[int, float]]:
        """Adapters that it was computed with, each with its scale."""

    @property
    def invoked_at(self) -> int | None:
        """Position from which its activated adapter (aLoRA) applies; None if it has none."""

    @property
    def n_bytes(self) -> int:
        """Size of the copy in bytes, held in host memory by this object."""

@final
class CachedNode:
    """A node of the prefix tree: a range of tokens that follows its parent's."""

    @property
    def parent(self) -> int | None:
        """Index of its parent in the list of nodes; None for a root."""

    @property
    def tokens(self) -> list[int]:
        """Token ids of the node, as a new list."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Returns the first `n` and the last `n` tokens; all tokens and an empty list if there are at most `2 * n`."""

    @property
    def start(self) -> int:
        """Number of tokens before the node."""

    @property
    def adapters(self) -> list[tuple[int, float]]:
        """Adapters that it is computed with, each with its scale."""

    @property
    def tier(self) -> Literal["device", "both", "host", "computing", "none"]:
        """Tier of the node's computed state.

        "device": device cache. "both": device cache, with a copy in the host cache. "host": host cache. "computing": device
        cache, as far as a running sequence has computed it. "none": not cached; only its descendants are in the host cache.
        """

    @property
    def slots(self) -> list[int]:
        """Slots whose sequences use it."""

    @property
    def owner(self) -> str | None:
        """`Request.owner` of the request that computed or used it last."""

    @property
    def is_pinned(self) -> bool:
        """True if a pinned prefix contains it."""

    @property
    def n_hits(self) -> int:
        """Number of requests that reused it, or a part of it if nothing diverges there."""

    @property
    def last_used(self) -> int:
        """Logical time of its last use; increases, without a unit."""

    @property
    def n_host_bytes(self) -> int:
        """Bytes in the host cache; an entry that restores several nodes counts for the first of them."""

@final
class Stats:
    """Gauges of the engine as of its last step, and counters since its start."""

    @property
    def slots(self) -> list[Slot]:
        """One entry per slot, in order."""

    @property
    def n_waiting(self) -> int:
        """Requests that wait for their first slot."""

    @property
    def n_computed(self) -> int:
        """Computed tokens that were not sampled in that step: prompts, and tokens of preempted sequences computed again."""

    @property
    def n_cached(self) -> int:
        """Prompt tokens that were reused: from the device cache, the host cache, or computed by another request meanwhile."""

    @property
    def n_reloaded(self) -> int:
        """Reused tokens that were reloaded from the host cache."""

    @property
    def n_awaited(self) -> int:
        """Reused tokens that another request was still computing when they were requested."""

    @property
    def n_predicted(self) -> int:
        """Generated tokens."""

    @property
    def n_decodes(self) -> int:
        """Number of decodes."""

    @property
    def n_busy(self) -> int:
        """Sequences in slots, summed over all decodes."""

    @property
    def n_preempted(self) -> int:
        """Preemptions: sequences that lost their slot to a higher priority, or because cells ran short, and continue later."""

    @property
    def branches(self) -> BranchStats:
        """Metrics of the branches of streams."""

    @property
    def speculation(self) -> SpeculationStats:
        """Metrics of speculative decoding."""

    @property
    def histograms(self) -> RequestHistograms:
        """Latencies and lengths of branches."""

    @property
    def n_adapter_changes(self) -> int:
        """Decodes with another adapter set than the one before."""

    @property
    def n_cells_used(self) -> int:
        """Used cells of the device cache."""

    @property
    def n_cells(self) -> int:
        """Cells of the device cache."""

    @property
    def n_cells_reached(self) -> int:
        """Highest used cell, plus one: the range that each decode attends over."""

    @property
    def n_cells_idle(self) -> int:
        """Cells that only idle prefixes use."""

    @property
    def n_ids_used(self) -> int:
        """Used sequence ids."""

    @property
    def n_ids(self) -> int:
        """Number of sequence ids."""

    @property
    def n_pinned(self) -> int:
        """Number of pinned prefixes."""

    @property
    def n_pinned_bytes(self) -> int:
        """Bytes of pinned prefixes, each counted without sharing, as for the limit."""

    @property
    def n_kernel_attentions(self) -> int:
        """Attentions computed by Weft's kernel, one per layer and decode, since the process started."""

    @property
    def n_kernel_products(self) -> int:
        """Matrix products computed by Weft's kernels since the process started."""

    @property
    def host_cache(self) -> HostCacheStats:
        """Metrics of the host cache."""

    @property
    def times(self) -> StepTimes:
        """Time spent by the worker since its start."""

@final
class SpeculationStats:
    """Metrics of speculative decoding since the engine started."""

    @property
    def sources(self) -> dict[str, DraftStats]:
        """Drafts by source: `text` (of the same owner), `constraint` (a grammar or a schema) and `model` (a draft model)."""

    @property
    def n_accepted_at(self) -> list[int]:
        """Accepted tokens by their position in the draft, from 0; the last entry counts all further positions."""

@final
class DraftStats:
    """Metrics of the drafts of one source."""

    @property
    def n_drafts(self) -> int:
        """Drafts that were verified."""

    @property
    def n_drafted(self) -> int:
        """Drafted tokens."""

    @property
    def n_accepted(self) -> int:
        """Drafted tokens that were generated."""

    @property
    def time(self) -> timedelta:
        """Time to draft, also drafts that were not verified; of `text` with the index of texts."""

@final
class BranchStats:
    """Metrics of the branches of all streams since the engine started, without prompts that are only computed."""

    @property
    def n_started(self) -> int:
        """Branches that have been in a slot."""

    @property
    def n_forked(self) -> int:
        """Branches that were forked from others."""

    @property
    def n_cancelled(self) -> int:
        """Branches that were cancelled individually, while their streams continued."""

    @property
    def n_computed(self) -> int:
        """Prompt tokens computed for forks and for all but the first branch of a stream; counted when the branches end."""

    @property
    def n_shared(self) -> int:
        """Prompt tokens that these branches reused."""

@final
class RequestHistograms:
    """Histograms of the branches of all streams since the engine started, without prompts that are only computed.

    Buckets are those of vLLM's metrics, with smaller ones for the time between tokens.
    """

    @property
    def time_to_first_token(self) -> Histogram:
        """Seconds from the submission of the request to the first token of a branch."""

    @property
    def inter_token_latency(self) -> Histogram:
        """Seconds between two consecutive tokens of a branch."""

    @property
    def queue_time(self) -> Histogram:
        """Seconds from the submission of the request until a branch gets a slot."""

    @property
    def end_to_end_latency(self) -> Histogram:
        """Seconds from the submission of the request to the end of a branch that was not cancelled."""

    @property
    def prompt_tokens(self) -> Histogram:
        """Prompt tokens of a branch that was not cancelled."""

    @property
    def generation_tokens(self) -> Histogram:
        """Tokens generated by a branch that was not cancelled."""

@final
class Histogram:
    """Counts of values by range."""

    @property
    def buckets(self) -> list[tuple[float, int]]:
        """Inclusive upper bound and number of values of each bucket, in ascending order; larger values are in none."""

    @property
    def n(self) -> int:
        """Number of all values."""

    @property
    def sum(self) -> float:
        """Sum of all values."""

@final
class HostCacheStats:
    """Metrics of the host cache. Token counts are since the engine started."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all entries."""

    @property
    def max_bytes(self) -> int | None:
        """Maximum bytes; None is no limit."""

    @property
    def n_entries(self) -> int:
        """Number of entries."""

    @property
    def n_offloaded(self) -> int:
        """Tokens offloaded from the device cache."""

    @property
    def n_reloaded(self) -> int:
        """Tokens reloaded into the device cache."""

    @property
    def n_evicted(self) -> int:
        """Tokens evicted for lack of space in either tier, or because a GPU computes them faster than it copies them."""

    @property
    def n_relocated(self) -> int:
        """Cells that were moved to lower positions."""

@final
class StepTimes:
    """Time that the worker spent, by phase of a step."""

    @property
    def receive(self) -> timedelta:
        """Receiving commands and dropping cancelled requests; excludes waiting for work."""

    @property
    def admit(self) -> timedelta:
        """Matching prefixes, admitting sequences and forking."""

    @property
    def plan(self) -> timedelta:
        """Selecting the tokens of the next batch, and freeing cells for them."""

    @property
    def decode(self) -> timedelta:
        """Decoding."""

    @property
    def sample(self) -> timedelta:
        """Sampling."""

    @property
    def detokenize(self) -> timedelta:
        """Detokenization."""

    @property
    def publish(self) -> timedelta:
        """Sending events to streams."""

    @property
    def offload(self) -> timedelta:
        """Offloading cells to the host cache, and moving them to lower positions."""

    @property
    def reload(self) -> timedelta:
        """Reloading cells from the host cache."""

@final
class RecentStep:
    """Timing of one recent step."""

    @property
    def started(self) -> float:
        """Start of the step, in seconds of `time.monotonic`."""

    @property
    def took(self) -> timedelta:
        """Duration of the step."""

    @property
    def n_rows(self) -> int:
        """Number of batch rows that it computed."""

    @property
    def times(self) -> StepTimes:
        """Time spent by phase. Sequences are admitted both before and after the decode."""

@final
class Slot:
    """State of one slot. Counts are 0 if it is idle."""

    @property
    def id(self) -> int:
        """Index of the slot, from 0."""

    @property
    def is_processing(self) -> bool:
        """True if a sequence runs in it."""

    @property
    def request_id(self) -> int | None:
        """Number of the request in order of submission, from 0; None if the slot is idle."""

    @property
    def index(self) -> int | None:
        """Index of the request's branch, or of the beam of a search; None if the slot is idle."""

    @property
    def n_prompt(self) -> int:
        """Prompt length in tokens."""

    @property
    def n_computed(self) -> int:
        """Prompt tokens that this branch has computed so far."""

    @property
    def n_cached(self) -> int:
        """Prompt tokens that this branch reused."""

    @property
    def n_predicted(self) -> int:
        """Generated tokens."""

    @property
    def n_remaining(self) -> int | None:
        """Tokens that it may still generate; None is no limit, with context shift."""

@final
class CompactEmbeddings:
    """Embeddings of several texts in one object: rows of `width` numbers, one per text, or per token without pooling.

    It can be pickled.
    """

    def __new__(cls, width: int, starts: Sequence[int], n_tokens: Sequence[int], data: bytes) -> Self:
        """Creates it from the properties and the `data` of another one.

        Raises:
            ValueError: The arguments are inconsistent.
        """

    @property
    def width(self) -> int:
        """Numbers per row."""

    @property
    def starts(self) -> list[int]:
        """Row offsets: the rows of text `i` are `[starts[i], starts[i + 1])`."""

    @property
    def n_tokens(self) -> list[int]:
        """Number of tokens of each text."""

    def __len__(self) -> int:
        """Returns the number of texts."""

    def data(self) -> bytes:
        """Returns all numbers of all rows, as 32-bit floats in native byte order."""

    def little_endian(self, index: int) -> bytes:
        """Returns the numbers of the text at this index, as 32-bit floats in little-endian byte order.

        Raises:
            IndexError: The index is out of range.
        """

    def json(self, index: int) -> bytes:
        """Returns the JSON of the text at this index: a list of its rows, each a list. Serialized without the GIL.

        Raises:
            IndexError: The index is out of range.
        """

@final
class EmbeddingStats:
    """Metrics of embeddings since the start, and their settings."""

    @property
    def pooling(self) -> Literal["none", "mean", "cls", "last", "rank"]:
        """Pooling of token embeddings."""

    @property
    def width(self) -> int:
        """Numbers per embedding."""

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a text."""

    @property
    def n_texts(self) -> int:
        """Texts that were embedded."""

    @property
    def n_tokens(self) -> int:
        """Tokens of these texts."""

    @property
    def n_computed(self) -> int:
        """Tokens that were computed; fewer than `n_tokens` if texts share prefixes and the model is causal."""

    @property
    def n_batches(self) -> int:
        """Number of batches that they were computed in."""

    @property
    def n_waiting(self) -> int:
        """Tokens that are waiting."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the embedding context, without weights; 0 until it is created."""
