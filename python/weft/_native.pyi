"""The compiled engine.

The manual of the classes that `weft` exports and of what stands behind `weft.Engine`. All of them are immutable, and every method
may be called from any thread. Whatever waits, waits without the GIL.

In a forked child every call that touches a model, an engine or a stream raises `ForkedProcess`: its threads are not there.
"""

# ruff: noqa: PYI021 - The compiled module has no other source to read: this is its manual.

import os
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Self, TypeVar, Unpack, final, overload

from weft.config import EngineConfig
from weft.events import CacheExplanation, Event, Logprob
from weft.reading import Branches
from weft.request import ForkOptions, Request

__all__ = [
    "VERSION",
    "Adapter",
    "Biases",
    "BranchStats",
    "CachedNode",
    "Cancellation",
    "CompactEmbeddings",
    "CompactLogprobs",
    "Compute",
    "Engine",
    "Hardware",
    "Limits",
    "Media",
    "MediaStats",
    "MixedPrompt",
    "Modalities",
    "Model",
    "Prefix",
    "RecentStep",
    "SavedPrefix",
    "Slot",
    "Stats",
    "StepTimes",
    "StoreStats",
    "Stream",
    "Timing",
    "TokenIds",
    "Tuning",
    "VectorStats",
    "answer_at_once",
    "devices",
    "lower_priority",
    "read_body",
    "schema_grammar",
    "trim_allocator",
    "trim_heap",
    "tune",
]

_T = TypeVar("_T")

VERSION: Final[str]
"""The one that was compiled. A distribution's metadata says the same, where there is any."""

@final
class Modalities:
    """What the projector of a model reads."""

    @property
    def vision(self) -> bool:
        """Pictures."""

    @property
    def audio(self) -> bool:
        """Sounds."""

@final
class MediaStats:
    """What was done with pictures and sounds, since the model was loaded."""

    @property
    def n_encoded(self) -> int:
        """Pieces of media that the projector has seen: a picture is one or, cut into tiles, several; so is a sound."""

    @property
    def n_reused(self) -> int:
        """Pieces whose vectors were kept from before."""

    @property
    def encode_s(self) -> float:
        """Seconds that the projector took."""

    @property
    def n_kept_bytes(self) -> int:
        """Bytes of vectors that are kept, at most 256 MiB."""

    @property
    def n_waiting_bytes(self) -> int:
        """Bytes of media of requests that wait for the projector or are being encoded, and of the vectors that they will be."""

    @property
    def n_projector_bytes(self) -> int:
        """Bytes of the projector's weights; 0 without one."""

@final
class Media:
    """A picture or a sound, cut as the model wants it: a part of a prompt."""

    @property
    def kind(self) -> Literal["image", "audio"]:
        """What it is."""

    @property
    def digest(self) -> str:
        """BLAKE3 of its file, in hexadecimal digits. Prompts that begin alike, media included, share what is computed."""

    @property
    def n_bytes(self) -> int:
        """Bytes of its file."""

    @property
    def n_tokens(self) -> int:
        """Places that it takes in a context, with those of the tokens that the model wants around it."""

@final
class MixedPrompt:
    """Texts, token ids and media, tokenized: what `Model.tokenize_parts` makes, and `Engine.generate` takes."""

    @property
    def n_tokens(self) -> int:
        """Places that it takes in a context."""

    @property
    def n_positions(self) -> int:
        """Positions that it counts: fewer than its places where the model counts a picture's rows and columns."""

    @property
    def media(self) -> list[Media]:
        """The media, in order."""

    @property
    def text_tokens(self) -> list[int]:
        """The token ids of its texts and of what stands around its media, one after the other."""

    def __len__(self) -> int:
        """As `n_tokens`."""

@final
class Model:
    """A loaded GGUF file: its vocabulary, its metadata, its weights."""

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        config: EngineConfig | None = None,
        *,
        on_progress: Callable[[float], object] | None = None,
    ) -> Model:
        """Loads a GGUF file. Blocks until all of it is read, without the GIL.

        Args:
            path: The file; of a split model, its first part.
            config: The settings, of which a model reads those of its file, its weights and their devices, its adapters and its
                projector; None is their defaults.
            on_progress: Called with the fraction that is loaded, 0 to 1, on this thread. The load continues if it raises; its
                first exception is raised at the end.

        Raises:
            ModelLoadError: The file is no model that can be run, or a device is not there; `reason` says what is wrong.
            InvalidConfig: A number is out of range, a name is unknown, a pattern is none, a value is not of the type that the
                file has, a file of `lora` is no adapter of this model, or that of `mmproj` no projector for it.
        """

    @staticmethod
    def load_vocabulary(
        path: str | os.PathLike[str], *, kv_overrides: Sequence[tuple[str, bool | int | float | str]] | None = None
    ) -> Model:
        """Loads the metadata and the vocabulary of a GGUF file alone, in milliseconds: it cuts texts into tokens.

        It continues none, and what is about weights is 0: `n_params`, `size_bytes`, `n_ctx_train`, `n_embd`.

        Args:
            path: The file; of a split model, its first part.
            kv_overrides: As in `EngineConfig`, as pairs.

        Raises:
            ModelLoadError: The file is no model that can be run; `reason` says what is wrong.
            InvalidConfig: A value of `kv_overrides` is not of the type that the file has.
        """

    @property
    def path(self) -> str:
        """The file, as it was named."""

    @property
    def name(self) -> str | None:
        """`general.name` of the metadata."""

    @property
    def description(self) -> str:
        """Architecture, size and quantization in llama.cpp's words: "llama 0.5B Q8_0"."""

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that the model was trained on."""

    @property
    def n_vocab(self) -> int:
        """Size of the vocabulary; token ids are below it."""

    @property
    def n_embd(self) -> int:
        """Width of the model."""

    @property
    def n_params(self) -> int:
        """Parameters."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""

    @property
    def is_repacked(self) -> bool:
        """Whether llama.cpp was let rearrange weights as its own products want them."""

    @property
    def is_layout_open(self) -> bool:
        """Whether the weights could lie the other way too: nobody has said how, both ways work, and there is memory for a copy.

        Which is faster, `python -m weft tune` measures.
        """

    @property
    def is_encoder(self) -> bool:
        """Whether the model only reads texts: it makes vectors of them, and continues none."""

    @property
    def vocab_type(self) -> int:
        """llama.cpp's number of the kind of tokenizer: 1 is SentencePiece BPE, 2 byte-level BPE."""

    @property
    def bos_token(self) -> int | None:
        """The token that begins a text."""

    @property
    def eos_token(self) -> int | None:
        """The token that ends a text."""

    @property
    def adds_bos(self) -> bool:
        """Whether a text begins with `bos_token`."""

    @property
    def infill_tokens(self) -> dict[str, int]:
        """The control tokens of a text with a gap, by what follows each; those that the vocabulary lacks are left out.

        "prefix" and "suffix" stand before what is before and after the gap, "middle" before what belongs into it, "repository"
        and "file" before the name of one. Models that were not trained to fill gaps have none.
        """

    @property
    def chat_template(self) -> str | None:
        """The chat template, in Jinja."""

    @property
    def longest_piece(self) -> int | None:
        """Most bytes of a text that become one token: a text of n bytes is at least n / `longest_piece` tokens.

        None where there is no such bound: some vocabularies leave out white space, or make one token of a word however long.
        """

    def least_tokens(self, text: str | bytes) -> int:
        """A number of tokens that a text has at least, without tokenizing it, at 1 ns per byte.

        It follows from `longest_piece` where that is known, else from what stands beside the white space, or from the words of a
        WordPiece vocabulary. 0 where nothing is known: with Unigram, and where not every byte has a token.

        Raises:
            InvalidRequest: `text` has a lone surrogate, or is no text at all.
        """

    def metadata(self) -> dict[str, str]:
        """Every key of the file's metadata with its value as text, arrays left out."""

    def control_tokens(self) -> list[int]:
        """Every token that has a spelling but is no part of a text, in order: what `parse_special` reads as tokens."""

    def end_tokens(self) -> list[int]:
        """Every token that ends a text, in order: none of them is drawn where `ignore_eos` says so."""

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text. Works without the GIL, on this thread, in time that grows linearly: 0.2 to 5 µs per byte.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds the tokens that begin and end a text, where the vocabulary asks for them.
            parse_special: Reads the spelling of a control token as that token.

        Raises:
            InvalidRequest: `text` has a lone surrogate, or is no text at all; or, where the vocabulary's words are found by
                regular expressions, it has more than 262,144 characters of one kind in a row.
            NotSupported: There is no memory for the stack that a long run of such characters needs.
            WorkCancelledError: It runs in `Cancellation.run`, and was cancelled.
        """

    def tokenize_on(self, text: str | bytes, *, parse_special: bool = True) -> list[int]:
        """The token ids of a text that goes on after others, as `Request.suffix_prompt` is read.

        Without the tokens that begin and end a text, and without the space that some vocabularies put before one. What stands on
        both sides of the seam stays two tokens, also where a text of both would have one.

        Raises:
            InvalidRequest: `text` has a lone surrogate, or is no text at all.
        """

    def token_ids(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> TokenIds:
        """As `tokenize`, but with one object for all of them: those of a long text take milliseconds to make one by one.

        Raises:
            InvalidRequest: `text` has a lone surrogate, or is no text at all.
        """

    def pieces_json(self, tokens: Sequence[int]) -> bytes:
        """`{"id", "piece"}` of each token as JSON, with commas between them; a piece that is no UTF-8 is a list of bytes.

        Raises:
            InvalidRequest: `tokens` are no token ids.
        """

    @property
    def modalities(self) -> Modalities:
        """What the projector reads; nothing without one."""

    def media_stats(self) -> MediaStats:
        """What was done with pictures and sounds so far."""

    def read_media(self, data: bytes) -> Media:
        """A picture (PNG, JPEG, GIF, BMP, WebP) or a sound (WAV, MP3, FLAC, Ogg Vorbis), from the bytes of its file.

        It is decoded and cut here, on this thread and without the GIL, which takes some milliseconds per megapixel. The
        projector sees it on a thread of its own, when a request wants it first.

        Raises:
            NotSupported: The model was loaded without a projector.
            InvalidRequest: It is none of these, damaged, too large, or nothing that this projector reads; the message says which.
            QueueFull: 1 GiB of media is loaded and not let go.
        """

    def tokenize_parts(
        self, parts: Sequence[str | int | Media | Sequence[int]], *, add_special: bool = True, parse_special: bool = True
    ) -> MixedPrompt:
        """Texts, token ids and media as one prompt. Each text is tokenized by itself, as llama.cpp's `mtmd` does.

        Args:
            parts: The prompt's parts, in order.
            add_special: Adds the token that begins a text, where the vocabulary asks for it.
            parse_special: Reads the spelling of a control token as that token.

        Raises:
            InvalidRequest: A part is none of these.
        """

    def detokenize(self, tokens: Sequence[int] | MixedPrompt) -> str:
        """The text that token ids stand for: control tokens as they are spelt, U+FFFD for bytes that are no UTF-8.

        A picture or a sound, whose places have ids below 0, is `<__media__>`.

        Raises:
            InvalidRequest: A token is outside of the vocabulary.
        """

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for, perhaps no whole character; of a control token, its spelling.

        Raises:
            InvalidRequest: The token is outside of the vocabulary.
        """

@final
class Cancellation:
    """A flag that stops long work from another thread: so far, the tokenizing of a long text."""

    def __new__(cls) -> Cancellation:
        """A flag that is not set."""

    def cancel(self) -> None:
        """Stops the work that `run` calls: it raises `WorkCancelledError`, or returns if it is almost done. Never reset."""

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""

    def run(self, work: Callable[[], _T]) -> _T:
        """Calls `work` on this thread and returns its result.

        Raises:
            WorkCancelledError: `cancel` was called, and a long text was being tokenized. It is checked between chunks: of 64 KiB
                with SentencePiece vocabularies, of at least 256 KiB, which end with a line, with BPE, and of the whole text with
                others.
        """

@final
class Engine:
    """The worker thread over one model. `weft.Engine` is the same for async Python."""

    def __new__(
        cls,
        model: Model,
        config: EngineConfig,
        *,
        tuned: tuple[bool | None, int, int] | None = None,
    ) -> Self:
        """Creates the KV cache and starts the worker. Blocks until that is done, without the GIL.

        Dropping the last reference stops the worker as `stop` does.

        Args:
            model: The model.
            config: The settings. Those of `Model.load` and `tuned` are not read, except `kernels`.
            tuned: The fastest settings that `tune` found: flash attention (None if Weft's attention computed), the number of
                threads, and their number for prompts. They are the defaults of settings that `config` leaves open.

        Raises:
            InvalidConfig: A setting is out of range, two contradict each other, or the KV cache does not fit into memory.
            ModelLoadError: The model cannot generate text.
            DecodeError: The model cannot compute.
        """

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def limits(self) -> Limits:
        """The numbers that were settled at the start."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a seeded request gives the same text whoever else is served."""

    @property
    def embeddings_are_repeatable(self) -> bool:
        """Whether a text has the same embedding, bit by bit, whatever is computed concurrently."""

    @property
    def compute(self) -> Compute:
        """How steps are computed, and why so."""

    def submit(self, request: Request, branches: Sequence[Request] | None = None) -> Stream:
        """Queues a request and returns its stream at once.

        With `branches`, its prompt is continued as each of them says, whose own prompts are not looked at; their completions are
        counted through, in order. `weft.request.branches.branch_requests` makes them of `Request.branches`, which is not looked
        at here.

        A prompt that is a string is tokenized here, without the GIL but on this thread, with the special tokens that the
        vocabulary asks for and with control tokens read from their spelling, as llama-server reads a raw prompt.

        Raises:
            InvalidRequest: A field has the wrong type or is out of range.
            ContextOverflow: The prompt alone fills the context of a slot.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was stopped.
        """

    def adapters(self) -> list[Adapter]:
        """The adapters that are loaded, each with its scale in requests that name none."""

    def set_adapters(self, adapters: Sequence[tuple[int, float]]) -> None:
        """Requests that name no adapters get these from now on; what is not named is off.

        Raises:
            InvalidRequest: There is no such adapter, or a scale is no finite number; then nothing changes.
        """

    def embed(
        self,
        texts: Sequence[str | bytes | Sequence[int] | Sequence[str | int | Media | Sequence[int]] | MixedPrompt],
        *,
        normalize: int = 2,
        dimensions: int | None = None,
    ) -> Coroutine[Any, Any, CompactEmbeddings]:
        """Queues texts for their vectors, and returns what to await; dropping that cancels it.

        Texts are tokenized on this thread.

        Args:
            texts: The texts, each as a prompt may be given; a string is tokenized as a prompt is.
            normalize: -1 is none, 0 makes 32,760 of a vector's largest number, 1 and more make its p-norm 1.
            dimensions: How many numbers of each vector are kept, before it is normalized.

        Raises:
            InvalidRequest: A text is empty or too long, there is none, or `normalize` or `dimensions` are out of range.
            NotSupported: The model's pooling is rank, or it is an encoder and a text has media.
            QueueFull: 2²⁰ tokens wait already.
            EngineStopped: The engine was stopped.
        """

    def rerank(self, query: str | bytes, texts: Sequence[str | bytes]) -> Coroutine[Any, Any, CompactEmbeddings]:
        """Queues a query with each of the texts, and returns what to await: a row of one number for each.

        Raises:
            InvalidRequest: A pair is too long, or there is no text.
            NotSupported: The model's pooling is not rank.
            QueueFull: 2²⁰ tokens wait already.
            EngineStopped: The engine was stopped.
        """

    def vector_stats(self) -> VectorStats:
        """What was computed of vectors, and what they are made with."""

    def pin(self, prompt: str | Sequence[int], *, adapters: Sequence[tuple[int, float]] | None = None) -> Stream:
        """Queues the pinning of a prompt: it is computed, as far as it is not cached, and stays so until it is unpinned.

        The stream yields one event, a `Finished` whose `made` is a `Prefix`, and raises `PinsFull` where pinned prefixes would
        take more than half of the cache.

        Raises:
            InvalidRequest: The prompt holds no tokens, or is none.
            ContextOverflow: The prompt alone fills the context of a slot.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was stopped.
        """

    def unpin(self, prefix_id: int) -> bool:
        """Lets a pinned prefix be evicted again; False where no prefix has that id. Waits for the step that is running.

        Raises:
            EngineStopped: The engine was stopped.
        """

    def pinned(self) -> list[Prefix]:
        """Every pinned prefix, in the order of their pinning. Waits for the step that is running.

        Raises:
            EngineStopped: The engine was stopped.
        """

    def save(
        self,
        prompt: str | Sequence[int],
        *,
        compute: bool = True,
        adapters: Sequence[tuple[int, float]] | None = None,
        invoked_at: int | None = None,
    ) -> Stream:
        """Queues the copying of a prompt's computed state out of the cache.

        The stream yields one event, a `Finished` whose `made` is a `SavedPrefix`.

        Args:
            prompt: The prompt; what is not cached of it is computed first.
            compute: False copies only as much as is cached.
            adapters: Which adapters it is computed with, as in `Request`.
            invoked_at: From which token on its activated adapter (aLoRA) counts; None is the last place of its invocation.

        Raises:
            InvalidRequest: The prompt holds no tokens, or is none.
            ContextOverflow: The prompt alone fills the context of a slot.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was stopped.
            OverflowError: `invoked_at` is below 0, or 2³² or more.
        """

    def load(self, prefix: SavedPrefix, *, slot: int | None = None) -> Stream:
        """Queues the copying of a saved prefix into the cache. The stream yields one event, a `Finished`.

        Args:
            prefix: Saved by an engine with the same model and the same kind of cache.
            slot: Waits for this slot and lets it hold the prefix; None takes any.

        Raises:
            InvalidRequest: There is no such slot.
            ContextOverflow: The prefix alone fills the context of a slot.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was stopped.
        """

    def write_prefix(self, prefix: SavedPrefix, path: str | os.PathLike[str]) -> int:
        """Writes a saved prefix to a file, without the GIL; returns the file's size in bytes.

        Raises:
            OSError: The file cannot be written.
        """

    def read_prefix(self, path: str | os.PathLike[str]) -> tuple[SavedPrefix, int]:
        """Reads what `write_prefix` wrote, without the GIL; returns the prefix and the file's size in bytes.

        Raises:
            PrefixFileError: The file is of another model or another kind of cache, or it is damaged; `reason` says which.
            OSError: The file cannot be read.
        """

    def cached(self) -> list[CachedNode]:
        """What is cached: the prefix tree, parents before their children. Waits for the step that is running.

        Raises:
            EngineStopped: The engine was stopped.
        """

    def recently_used(self, limit: int) -> tuple[list[CachedNode], int]:
        """At most `limit` nodes of the prefix tree, and how many nodes there are in all. Waits for the step that is running.

        The most recently used come first. A node counts as used when something below it was: parents come before their
        children, and no node without its parent. All but the making of their objects happens without the GIL.

        Raises:
            EngineStopped: The engine was stopped.
            OverflowError: `limit` is below 0.
        """

    def prefix_digest(self, key: bytes, n_max: int) -> tuple[bytes, bytes]:
        """Which prefixes are in the pool and which only in the store, as hashes of blocks: see `Engine.prefix_digest`.

        Waits for some steps: what must be hashed is spread over them.

        Raises:
            InvalidRequest: The key has more than 64 bytes.
            EngineStopped: The engine was stopped.
            OverflowError: `n_max` is below 0.
        """

    def held_by_slot(self, slot: int) -> tuple[list[int], list[tuple[int, float]], int | None]:
        """The tokens that a slot holds, the adapters that they were computed with, and where an activated one of them begins.

        The tokens are those that its sequence has computed, or the last one's that ran there.

        A prompt that is pinned, saved, or loaded into no slot in particular runs in a free slot and leaves what that holds.

        Waits for the step that is running.

        Raises:
            InvalidRequest: There is no such slot.
            EngineStopped: The engine was stopped.
        """

    def erase_slot(self, slot: int) -> int | None:
        """Forgets the tokens that a slot holds, as far as nothing else that is cached holds them; returns how many they were.

        None while a sequence runs there: then nothing is forgotten. Waits for the step that is running.

        Raises:
            InvalidRequest: There is no such slot.
            EngineStopped: The engine was stopped.
        """

    @property
    def is_running(self) -> bool:
        """Whether the worker thread lives: it was not stopped and has not died."""

    def stats(self) -> Stats:
        """What the engine is doing, as of its last step."""

    def recent_steps(self) -> list[RecentStep]:
        """The last steps that computed or moved something, oldest first; at most 64."""

    def stop(self) -> None:
        """Ends the worker and waits, without the GIL, for the decode that is running. Idempotent.

        Every open stream ends with `EngineStopped`, and later requests are refused with it.
        """

@final
class Limits:
    """The numbers that were settled when the engine started."""

    @property
    def n_slots(self) -> int:
        """Slots: sequences that run at once."""

    @property
    def n_ctx(self) -> int:
        """Cells of the pool, in tokens; a multiple of 256."""

    @property
    def n_ctx_slot(self) -> int:
        """Most tokens of one sequence, prompt and prediction together; at most `n_ctx`."""

    @property
    def n_ubatch(self) -> int:
        """Most tokens of one decode."""

    @property
    def n_seq_max(self) -> int:
        """Sequence ids, at most 256: those of the slots and of cached branches."""

    @property
    def max_host_cache_bytes(self) -> int | None:
        """Most bytes of saved pieces in host memory; None is no limit, 0 keeps none."""

    @property
    def max_queue(self) -> int:
        """Requests that may wait for a slot."""

    @property
    def forks_anywhere(self) -> bool:
        """Whether a prompt may go on from any place of another that is cached: attention without a window.

        Where not, `Request.snapshots_at` is worth giving: a state goes on only from where it was kept. A sliding window goes on
        from where it still holds what it sees; at the prompt's end that is kept where `snapshots_at` names any place, and for the
        next one where two prompts have parted.
        """

@final
class Compute:
    """How the steps of an engine are computed."""

    @property
    def flash_attention(self) -> Literal["auto", "on", "off"]:
        """Whether attention runs as one fused kernel, ours or llama.cpp's; "auto" where llama.cpp decides."""

    @property
    def attention(self) -> Literal["weft", "llama.cpp"]:
        """Whose kernel computes attention on the CPU."""

    @property
    def products(self) -> Literal["weft", "llama.cpp"]:
        """Whose kernels compute products of weights on the CPU; llama.cpp's those of weights that it has rearranged."""

    @property
    def n_ubatch(self) -> int:
        """Most tokens of one decode."""

    @property
    def n_threads(self) -> int:
        """Threads of a decode without rows of prompts."""

    @property
    def n_threads_batch(self) -> int:
        """Threads of a decode with rows of prompts."""

    @property
    def summary(self) -> str:
        """All of it in one line, with the reasons."""

@final
class Hardware:
    """What decides how fast a model computes on this machine."""

    @staticmethod
    def read() -> Hardware:
        """Looks at this machine."""

    @property
    def cpu(self) -> str:
        """The processor's name, as Linux gives it."""

    @property
    def n_cores(self) -> int:
        """Physical cores that this process may use."""

    @property
    def n_threads(self) -> int:
        """Threads that this process may run at once."""

    @property
    def instructions(self) -> str:
        """The instruction sets and options that llama.cpp was compiled for."""

    @property
    def gpus(self) -> list[str]:
        """The devices that layers of a model can go to."""

@final
class Timing:
    """How long one way of computing takes."""

    @property
    def flash_attention(self) -> bool | None:
        """Whether llama.cpp's attention ran as one fused kernel; None where ours computed."""

    @property
    def work(self) -> Literal["prompt", "branches"]:
        """A prompt of 1,000 tokens, or 8 branches of it with 128 tokens each."""

    @property
    def n_threads(self) -> int:
        """With how many threads."""

    @property
    def seconds(self) -> float | None:
        """The time that the whole of it would take; None where there was no time to measure it."""

@final
class Tuning:
    """What `tune` measured."""

    @property
    def timings(self) -> list[Timing]:
        """Every candidate."""

    @property
    def best(self) -> tuple[bool | None, int, int]:
        """The fastest: flash attention, threads of a decode without rows of prompts, and of one with them.

        Flash attention is None where ours computed.
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
    """Times how a model is computed fastest on this machine, in contexts of its own. Blocks, without the GIL.

    Args:
        model: The model.
        type_k: Number format of K in the cache.
        type_v: The same of V; a quantised one leaves only flash attention.
        kernels: Whose kernels compute on the CPU. Where our attention does, there are only threads to time, else llama.cpp's
            attention with flash and without.
        budget_s: About how long it may take, in seconds. Each attention is measured once in any case.
        on_progress: Called with the fraction that is done, 0 to 1, on this thread. What it raises ends the measurement, as Ctrl-C
            does.

    Raises:
        InvalidConfig: The model cannot have a cache of these formats, it does not fit into memory, or `budget_s` is no time.
        DecodeError: The model could not compute.
    """

@final
class CompactLogprobs:
    """Log-probabilities of one token that write themselves out as JSON; its length is the number of the most likely ones."""

    def __new__(cls, model: Model, pairs: Sequence[tuple[int, float]]) -> Self:
        """Of what `pairs` has told in another process; `model` spells the tokens.

        Raises:
            ValueError: There is no pair.
        """

    def pairs(self) -> list[tuple[int, float]]:
        """The token that was drawn, then the most likely ones, each with its log-probability."""

    @property
    def chosen(self) -> Logprob:
        """Of the token that was drawn, or that the prompt has there."""

    def __len__(self) -> int:
        """How many there are."""

    def token_json(self, with_top: bool, is_prob: bool) -> bytes:
        """`{"id", "token", "bytes", "logprob", "top_logprobs": […]}`, with `is_prob` `prob` and `top_probs`.

        Without `with_top` the list is empty.
        """

    def completion_json(self, is_prob: bool) -> bytes:
        """The same, with `content` and `probs: [{"prob", "tok_str"}, …]`, llama-server's words of 2024."""

    def top_json(self) -> bytes:
        """`{text: log-probability, …}` of the most likely tokens; of those that are spelt alike, the likeliest."""

@final
class Stream:
    """The stream of one request: the events of all its branches as they come.

    Cancels the request, and so frees its slots before the next decode: `close()`, `aclose()`, and dropping the last reference,
    whether by `break` out of an `async for` that holds it, by the end of a cancelled task, or by the garbage collector.

    Several tasks may read one stream, on any threads and event loops of asyncio (or uvloop) that can watch a file descriptor;
    each event goes to one of them. A task that is cancelled while it waits takes nothing out of the stream.
    """

    @property
    def seed(self) -> int:
        """The seed of branch 0, given or random; branch `i` draws with `seed + i` (modulo 2³²), unless it has its own."""

    @property
    def n_prompt(self) -> int:
        """The prompt's length in tokens, without any branch's suffix."""

    @property
    def request_id(self) -> int:
        """Counts requests in order of submission, from 0; `Slot.request_id` names the same request."""

    @property
    def explanation(self) -> CacheExplanation | None:
        """Why what is computed of the prompt has to be, where `Request.explain_cache` asks for it.

        It is known once the first branch has begun in a slot, before any token, and is kept. Until the first token of that branch
        it may still change, where something that was saved cannot be brought back; then it is what `Finished.explanation` tells.
        None where it was not asked for, and as long as no branch has begun.
        """

    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[Any, Any, Event]:
        """The next event of any branch, or of the prompt where the request asks for it. Nothing waits where one is ready.

        Raises:
            StopAsyncIteration: Every branch has finished, or the stream was closed.
            DecodeError: The model could not compute a step. This and the next two are raised once, then the stream has ended.
            SlowReader: 10,000 events of each branch waited, or 32 MiB of them, and nothing was read for 30 s.
            EngineStopped: The engine was stopped.
            RuntimeError: No asyncio event loop runs on this thread.
        """

    def next_batch(self, *, compact: bool = False) -> Coroutine[Any, Any, list[Event]]:
        """Events that are ready, in order, one at least, some 256 KiB at most; an empty list at the end. Cheaper than one by one.

        So much is some 2,000 tokens, or five with a thousand log-probabilities each: it holds the event loop for a millisecond.
        With `compact`, the log-probabilities of a token are a `CompactLogprobs`, which writes itself out and costs little.

        Raises:
            DecodeError: The model could not compute a step. This and the next two are raised once, then the stream has ended.
            SlowReader: 10,000 events of each branch waited, or 32 MiB of them, and nothing was read for 30 s.
            EngineStopped: The engine was stopped.
            RuntimeError: No asyncio event loop runs on this thread.
        """

    def readable(self) -> Coroutine[Any, Any, None]:
        """Waits until `next_batch` would not wait: for events, the end or an error, all of which stay in the stream.

        Raises:
            RuntimeError: No asyncio event loop runs on this thread.
        """

    def cancel(self, index: int) -> None:
        """Cancels one branch: its slot is free before the next decode, it ends with the reason "cancelled", and the others go on.

        The beams of a search are those of all of its branches: with one of them, all end. Nothing happens where there is no
        such branch, or where it has ended by then.

        Raises:
            InvalidRequest: `index` is no number of a branch.
        """

    @overload
    def fork(
        self,
        index: int,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | Sequence[int] | None = None,
        own_stream: Literal[False] = False,
        **options: Unpack[ForkOptions],
    ) -> Coroutine[Any, Any, list[int]]: ...
    @overload
    def fork(
        self,
        index: int,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | Sequence[int] | None = None,
        own_stream: Literal[True],
        **options: Unpack[ForkOptions],
    ) -> Coroutine[Any, Any, Stream]: ...
    @overload
    def fork(
        self,
        index: int,
        *,
        n: int = 1,
        at: int | None = None,
        unit: Literal["token", "byte"] = "token",
        append: str | Sequence[int] | None = None,
        own_stream: bool,
        **options: Unpack[ForkOptions],
    ) -> Coroutine[Any, Any, list[int] | Stream]:
        """Forks a branch: `n` others continue its prompt, its text up to a place, and what is appended.

        They come into this stream, behind the branches that it has had, or into one of their own; a branch that has ended can be
        forked too, as long as this stream is held. At the end of a branch that runs, its forks draw from the very row of logits
        that its next token is drawn from, and nothing is computed for them; further back, one token is.

        Without options of their own, they go on as the branch would: with its parameters, and with what its penalties, its
        grammar and its stop strings have seen. With any, all begin anew, and what stands before is their prompt. A fork that
        becomes branch `i` of this stream draws with `seed + i`, and the `k`th of all that got streams of their own with
        `seed + 256 + k` (modulo 2³²); with the option `seed`, fork `k` draws with that `+ k`.

        Asked for at once, also if it is not awaited; forks that come into this stream stay if the wait is cancelled.

        Args:
            index: Which branch.
            n: How many forks, 1 to 256 with the branches of this stream.
            at: Where they part from it, in tokens that it has drawn or in bytes of its text; None is its end when the worker sees
                this. A token that ends texts is no part of that.
            unit: What `at` counts: `"token"` or `"byte"`.
            append: What stands between there and what they write, as `Request.suffix_prompt`. A grammar that goes on reads it.
            own_stream: Whether they get a stream of their own.
            **options: What they are asked for; what is left unsaid is the branch's.

        Returns:
            The numbers of the forks in this stream, or their own stream.

        Raises:
            InvalidRequest: There is no such branch or place, the grammar does not allow what is appended, or an option is wrong;
                or this stream has ended, and forks are to come into it.
            ContextOverflow: What they are to continue fills the context.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was closed.
        """

    def forked_seam(self, index: int) -> tuple[str, int]:
        """How the text of a fork goes on from that of its branch.

        Returns:
            A text between the two that neither shows, and how many characters at the end of what the branch showed the fork shows
            again: "" and 0 but where text was held back there, as it may have been the start of a stop string. `fork` must have
            answered. Where there is no such branch: "" and 0 too.

        Raises:
            InvalidRequest: `index` is no integer from 0 to 2³² − 1.
        """

    def forked_at(self, index: int) -> tuple[int, int] | None:
        """The branch of this stream that one was forked from, and after how many of its tokens.

        None for one that was no fork, and for one that there is not. It is known when `fork` has answered.

        Raises:
            InvalidRequest: `index` is no integer from 0 to 2³² − 1.
        """

    def branches(self) -> Branches:
        """Each branch on its own, those too that forks add: `async for branch in stream.branches()`. To be called once."""

    def close(self) -> None:
        """Cancels the request now: its events are dropped, and whoever waits for one sees the end of the stream. Idempotent."""

    def aclose(self) -> Coroutine[Any, Any, None]:
        """The same as `close`, at once, also if it is not awaited: for `contextlib.aclosing`."""

@final
class TokenIds(Sequence[int]):
    """Many token ids, as one object. Wherever a sequence of them is taken, it goes to the engine without being looked through."""

    def __new__(cls, tokens: Sequence[int]) -> Self:
        """Token ids of 32 bits.

        Raises:
            TypeError: They are no integers.
            OverflowError: One is too large.
        """

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int, /) -> int:  # type: ignore[override]  # No part of it is a sequence.
        """Returns the token id at an index, from 0."""

    def part(self, start: int, end: int) -> list[int]:
        """Returns the token ids in `[start, end)`; fewer at the end of the list."""

    def outside(self, n_vocab: int) -> int | None:
        """The first that is none of a vocabulary of so many pieces; None where all are."""

    def json(self) -> bytes:
        """All of them as a JSON list."""

@final
class Biases(Sequence[tuple[int, float]]):
    """Many biases, as one object: pairs of a token id and what is added to its logit; minus infinity bans it."""

    def __new__(cls, pairs: Sequence[tuple[int, float]]) -> Self:
        """Pairs of a token id of 32 bits and a number.

        Raises:
            TypeError: They are no such pairs.
            OverflowError: A token id is too large.
        """

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int, /) -> tuple[int, float]:  # type: ignore[override]  # As above.
        """Returns the pair at an index, from 0."""

    def json(self) -> bytes:
        """All of them as a JSON list of objects with `token` and `bias`, which is false where the token is banned."""

def devices() -> list[tuple[str, str, int, int]]:
    """Every device beside the CPU: ggml's name of it (`CUDA0`), its maker's, the bytes of its memory and those that are free."""

def schema_grammar(schema: str) -> str:
    """The grammar in GBNF, which begins with the rule `root`, of the JSON that fits a JSON schema, given as text.

    Raises:
        InvalidRequest: What is wrong with the schema, in which line and column.
    """

def trim_allocator() -> None:
    """From now on, the allocator gives back what is freed instead of keeping it, where it is glibc's."""

def trim_heap() -> None:
    """Gives the system the memory that is free in the middle of the heap too, where the allocator is glibc's.

    A gigabyte takes some 80 ms. Other threads run meanwhile; those that allocate wait for a part of it.
    """

def answer_at_once() -> None:
    """From now on, this thread and those that it starts have the shortest turns on a processor that Linux knows (6.12 and newer).

    They get no more of it for that, but do not wait for the end of another's turn. Elsewhere nothing changes.
    """

def lower_priority(niceness: int) -> None:
    """From now on, long work that the engine does for this thread is done by one that steps back by so much, 0 to 19, on Linux.

    That is how much nicer it is than the threads that compute tokens. The thread itself stays as it is: nobody waits for the
    interpreter because a thread that holds it finds no processor.
    """

def read_body(
    body: bytes, *, fields: Sequence[str], tokens: Sequence[str], biases: Sequence[str]
) -> tuple[bytes, dict[str, TokenIds | list[TokenIds] | Biases], list[tuple[tuple[str | int, ...], str]]]:
    """Reads a large JSON object without the GIL: Python makes objects of what is left, and of few values only.

    Args:
        body: The object, as UTF-8.
        fields: Names that matter; what else the object holds is only checked to be JSON.
        tokens: Of these, those that may hold token ids, or lists of them.
        biases: And those that may hold biases: pairs of a token and a number, or an object; `false` bans.

    Returns:
        The object as JSON, without what does not matter and what is returned beside it: long lists, by their field, and strings
        of more than 64 KiB, each with the names and indices that lead to it. There `…` stands for it.

    Raises:
        ValueError: It is no JSON object in UTF-8, nested more than 900 levels deep, or has more than 65,536 values besides.
    """

@final
class Prefix:
    """A prefix that stays computed until it is unpinned."""

    @property
    def id(self) -> int:
        """Names it when it is unpinned; counts up."""

    @property
    def tokens(self) -> list[int]:
        """Its tokens."""

    @property
    def n_tokens(self) -> int:
        """How many they are."""

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Its first `n` tokens and its last `n`; all of them and none where there are at most `2 * n`."""

    @property
    def n_bytes(self) -> int:
        """What its computed state takes, in the KV cache or in host memory, shared with others or not."""

    @property
    def adapters(self) -> list[tuple[int, float]]:
        """The adapters that it was computed with, each with its scale."""

    @property
    def invoked_at(self) -> int | None:
        """From which token on its activated adapter (aLoRA) counts; None where it has none."""

@final
class Adapter:
    """A LoRA that is loaded beside the model: a small change of its weights, which a request turns on with a scale of its own."""

    @property
    def id(self) -> int:
        """Its number in `Request.adapters`, from 0."""

    @property
    def path(self) -> str:
        """The file, as it was named."""

    @property
    def scale(self) -> float:
        """Its scale in requests that name no adapters; 0 is off."""

    @property
    def task_name(self) -> str:
        """`adapter.lora.task_name` of its metadata."""

    @property
    def prompt_prefix(self) -> str:
        """`adapter.lora.prompt_prefix` of its metadata."""

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers."""

    @property
    def invocation(self) -> list[int]:
        """Of an activated adapter (aLoRA) the tokens from whose last place in a prompt on it counts; empty for every other."""

@final
class SavedPrefix:
    """The computed state of a prompt, copied out of the cache."""

    @property
    def tokens(self) -> list[int]:
        """The prompt, as far as it was copied."""

    @property
    def n_tokens(self) -> int:
        """How many tokens that is."""

    @property
    def adapters(self) -> list[tuple[int, float]]:
        """The adapters that it was computed with, each with its scale."""

    @property
    def invoked_at(self) -> int | None:
        """From which token on its activated adapter (aLoRA) counts; None where it has none."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the copy, which this object keeps in memory."""

@final
class CachedNode:
    """A part of the prefix tree: a stretch of tokens after those of its parent."""

    @property
    def parent(self) -> int | None:
        """The place of its parent in the listing; None for a first stretch."""

    @property
    def tokens(self) -> list[int]:
        """Its tokens, as a new list."""

    @property
    def n_tokens(self) -> int:
        """How many they are."""

    def excerpt(self, n: int) -> tuple[list[int], list[int]]:
        """Its first `n` tokens and its last `n`; all of them and none where there are at most `2 * n`."""

    @property
    def start(self) -> int:
        """Tokens before it."""

    @property
    def adapters(self) -> list[tuple[int, float]]:
        """The adapters that it is computed with, each with its scale."""

    @property
    def tier(self) -> Literal["pool", "both", "store", "computing", "nowhere"]:
        """Where its computed state is.

        "pool": in cells. "both": in cells, with a copy in the store. "store": in the store, in host memory. "computing": in
        cells, as far as a running sequence has computed it. "nowhere": only what follows it is stored.
        """

    @property
    def slots(self) -> list[int]:
        """Slots whose sequences run on it."""

    @property
    def owner(self) -> str | None:
        """Whose request computed or used it last: its `Request.owner`."""

    @property
    def is_pinned(self) -> bool:
        """Whether a pinned prefix contains it."""

    @property
    def n_hits(self) -> int:
        """Requests that found it computed, or a beginning of it where nothing parts from it."""

    @property
    def last_used(self) -> int:
        """When it was last used: counts up, in no unit of time."""

    @property
    def n_stored_bytes(self) -> int:
        """Bytes that it takes in the store; a piece that several stretches are restored from is counted in the first of them."""

@final
class Stats:
    """What the engine is doing, as of its last step, and counters since its start."""

    @property
    def slots(self) -> list[Slot]:
        """One entry per slot, in order."""

    @property
    def n_waiting(self) -> int:
        """Requests that wait for their first slot."""

    @property
    def n_computed(self) -> int:
        """Tokens computed that nobody drew in that step: prompts, and what preempted sequences computed again."""

    @property
    def n_cached(self) -> int:
        """Prompt tokens found computed: in the pool, in the store, or because another request computed them meanwhile."""

    @property
    def n_restored(self) -> int:
        """Of these, tokens that came back from the store."""

    @property
    def n_awaited(self) -> int:
        """Of these, tokens that another request was still computing when they were asked for."""

    @property
    def n_predicted(self) -> int:
        """Tokens drawn."""

    @property
    def n_decodes(self) -> int:
        """Decodes."""

    @property
    def n_busy(self) -> int:
        """Sequences that were in slots, summed over all decodes."""

    @property
    def n_preempted(self) -> int:
        """Sequences that gave up their slot for an older one."""

    @property
    def branches(self) -> BranchStats:
        """What became of the branches of streams."""

    @property
    def n_adapter_changes(self) -> int:
        """Decodes with other adapters than the one before."""

    @property
    def n_cells_used(self) -> int:
        """Cells of the pool that hold something."""

    @property
    def n_cells(self) -> int:
        """Cells of the pool."""

    @property
    def n_cells_reached(self) -> int:
        """The highest used cell, plus one: what each decode looks through."""

    @property
    def n_cells_idle(self) -> int:
        """Cells that only idle prefixes hold."""

    @property
    def n_ids_used(self) -> int:
        """Sequence ids that hold something."""

    @property
    def n_ids(self) -> int:
        """Sequence ids."""

    @property
    def n_pinned(self) -> int:
        """Prefixes that are pinned."""

    @property
    def n_pinned_bytes(self) -> int:
        """Bytes that they take: of each as if it were alone, which is what is held against the limit."""

    @property
    def n_kernel_attentions(self) -> int:
        """Attentions that our own kernel computed, one for each layer of a decode, since the process started."""

    @property
    def n_kernel_products(self) -> int:
        """Products of weights that our own kernels computed since the process started."""

    @property
    def store(self) -> StoreStats:
        """The second tier of the cache."""

    @property
    def times(self) -> StepTimes:
        """Where the worker's time went since its start."""

@final
class BranchStats:
    """The branches of all streams, since the engine's start; prompts that are only computed are none."""

    @property
    def n_started(self) -> int:
        """Those that were in a slot."""

    @property
    def n_forked(self) -> int:
        """Those that were forked from others."""

    @property
    def n_cancelled(self) -> int:
        """Those that were cancelled on their own, while their streams went on."""

    @property
    def n_computed(self) -> int:
        """Prompt tokens computed for branches that are not the first of their stream, and for forks; counted at their ends."""

    @property
    def n_shared(self) -> int:
        """Tokens of their prompts that these found computed."""

@final
class StoreStats:
    """The store: pieces of the cache in host memory. What is counted in tokens counts since the engine's start."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all pieces."""

    @property
    def max_bytes(self) -> int | None:
        """Most bytes; None is no limit."""

    @property
    def n_pieces(self) -> int:
        """Pieces."""

    @property
    def n_saved(self) -> int:
        """Tokens copied into it."""

    @property
    def n_restored(self) -> int:
        """Tokens copied back into the pool."""

    @property
    def n_forgotten(self) -> int:
        """Tokens that were forgotten for want of room in either tier, or since a GPU computes them sooner than it copies them."""

    @property
    def n_relocated(self) -> int:
        """Cells that were moved to lower ones."""

@final
class StepTimes:
    """Time that the worker spent, by part of a step."""

    @property
    def receive(self) -> timedelta:
        """Taking commands and dropping cancelled requests; waiting for work is not counted."""

    @property
    def place(self) -> timedelta:
        """Finding prefixes, admitting sequences and forking."""

    @property
    def plan(self) -> timedelta:
        """Deciding which tokens are computed next, and making room for them."""

    @property
    def decode(self) -> timedelta:
        """Computing."""

    @property
    def sample(self) -> timedelta:
        """Choosing tokens."""

    @property
    def text(self) -> timedelta:
        """Turning tokens into text."""

    @property
    def emit(self) -> timedelta:
        """Handing events to their readers."""

    @property
    def spill(self) -> timedelta:
        """Copying cells out of the pool, or to lower cells."""

    @property
    def restore(self) -> timedelta:
        """Copying cells back into the pool."""

@final
class RecentStep:
    """What one of the last steps took."""

    @property
    def started(self) -> float:
        """When it began, in seconds on the clock of `time.monotonic`."""

    @property
    def took(self) -> timedelta:
        """From its beginning to its end."""

    @property
    def n_rows(self) -> int:
        """Rows that it computed."""

    @property
    def times(self) -> StepTimes:
        """What it spent on each part. Sequences are placed before the decode and after it."""

@final
class Slot:
    """One of the places where a sequence runs. The counts are 0 where it is idle."""

    @property
    def id(self) -> int:
        """Its place among the slots, from 0."""

    @property
    def is_processing(self) -> bool:
        """Whether a sequence runs in it."""

    @property
    def request_id(self) -> int | None:
        """Counts requests in order of submission, from 0; None where the slot is idle."""

    @property
    def index(self) -> int | None:
        """Which branch of the request, or which beam of a search; None where the slot is idle."""

    @property
    def n_prompt(self) -> int:
        """The prompt's length in tokens."""

    @property
    def n_computed(self) -> int:
        """Prompt tokens that this branch has computed so far."""

    @property
    def n_cached(self) -> int:
        """Prompt tokens that it found computed."""

    @property
    def n_predicted(self) -> int:
        """Tokens drawn."""

    @property
    def n_remaining(self) -> int | None:
        """Tokens that it may still draw; None is no limit, in a context that is shifted."""

@final
class CompactEmbeddings:
    """Embeddings of several texts in one object: rows of `width` numbers, one per text, or per token without pooling.

    It can be pickled.
    """

    def __new__(cls, width: int, starts: Sequence[int], n_tokens: Sequence[int], data: bytes) -> Self:
        """Creates it from the properties and the `data` of another one.

        Raises:
            ValueError: They do not agree.
        """

    @property
    def width(self) -> int:
        """Numbers of a row."""

    @property
    def starts(self) -> list[int]:
        """The rows of text `i` are `[starts[i], starts[i + 1])`."""

    @property
    def n_tokens(self) -> list[int]:
        """Tokens of each text."""

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
        """Returns the JSON of the text at this index: a list of its rows, each a list. It is written without the GIL.

        Raises:
            IndexError: The index is out of range.
        """

@final
class VectorStats:
    """What was computed of vectors since the start, and what they are made with."""

    @property
    def pooling(self) -> Literal["none", "mean", "cls", "last", "rank"]:
        """What becomes of the vectors of a text's tokens."""

    @property
    def width(self) -> int:
        """Numbers of a vector."""

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest text."""

    @property
    def n_texts(self) -> int:
        """Texts whose vectors were computed."""

    @property
    def n_tokens(self) -> int:
        """Their tokens."""

    @property
    def n_computed(self) -> int:
        """Tokens that were computed for them; fewer, where texts begin alike and the model is causal."""

    @property
    def n_batches(self) -> int:
        """Batches that they were computed in."""

    @property
    def n_waiting(self) -> int:
        """Tokens that wait."""

    @property
    def n_bytes(self) -> int:
        """Bytes that the context for them takes beside the weights; 0 until it is made."""
