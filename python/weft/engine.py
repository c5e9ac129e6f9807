"""Asynchronous inference engine."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import msgspec

from weft import _native
from weft._native import (
    Adapter,
    Compute,
    Limits,
    Media,
    MixedPrompt,
    Model,
    RecentStep,
    Slot,
    Stats,
    Stream,
)
from weft.completion import MAX_BYTES, Completion
from weft.config import EngineConfig
from weft.demo import DEMO_MODEL
from weft.embedding import Embedding
from weft.engine_options import EngineOptions
from weft.errors import EngineStoppedError, InvalidRequestError, WeftError
from weft.request import Prompt, Request, RequestOptions
from weft.request.branches import branch_requests
from weft.request.sampling import SamplingParams
from weft.work import tuning
from weft.work.cache import CacheControl
from weft.work.threads import LONG_TEXT, ThreadPool, Threads

if TYPE_CHECKING:
    from weft.chat.completion import ChatCompletion
    from weft.chat.request import ChatOptions, Messages, TemplateOptions, Templates
    from weft.chat.stream import ChatStream
    from weft.infill import InfillOptions, Snippet
    from weft.scoring import Continuation, Score, ScoreOptions

__all__ = ["Engine"]


class Engine(Embedding, CacheControl):
    """Serves one model from one worker thread, with one KV cache that all requests share.

    The constructor loads nothing; `async with` or `await start()` loads the model:

        async with Engine("model.gguf", n_slots=8) as engine:
            completion = await engine.complete("Once upon a time,", n=8, max_tokens=64)

    A started engine may be used from any thread and any event loop, and a process may have several engines. A forked child
    process may not use it (`ForkedProcessError`).

    Args:
        model: Path of a GGUF file (the first part of a split model); None is the demo model that ships with the package.
        config: Settings of the engine; None is the default.
        on_progress: Called with the loaded fraction, 0 to 1, on the event loop that awaits `start`.
        **options: Fields of `EngineConfig`, with priority over `config`.

    Raises:
        TypeError: There is no setting of that name; the message suggests the nearest.
        InvalidConfigError: A setting has the wrong type or is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        config: EngineConfig | None = None,
        on_progress: Callable[[float], object] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._path = DEMO_MODEL if model is None else os.fspath(model)
        self._config = EngineConfig.of(config, {**options})
        self._on_progress = on_progress
        self._state: Literal["new", "starting", "running", "asleep", "closed"] = "new"
        self._native: _native.Engine | None = None
        self._threads = Threads()
        self._stop: Callable[[], object] | None = None
        """Stops the worker that was started last."""
        self._stopping = threading.Lock()
        self._templates: Templates | None = None
        self._scales: list[tuple[int, float]] = []
        """Adapter scales to restore on wake-up."""

    async def start(self) -> None:
        """Loads the model and starts the worker, on another thread; does not block the event loop.

        A start that fails or is cancelled closes the engine; a load in progress is released when it completes.

        Raises:
            ModelLoadError: The file is not a model that Weft can run.
            InvalidConfigError: Settings contradict each other, or do not fit the model or the memory.
            EngineStoppedError: The engine was closed, possibly during the call.
            RuntimeError: The engine was started before.
        """
        if self._is_closed():
            raise EngineStoppedError
        if self._state != "new":
            raise RuntimeError("the engine was already started")
        self._state = "starting"
        try:
            await self._start_worker()
        except BaseException:
            self._state = "closed"
            raise

    async def sleep(self) -> None:
        """Unloads the model, its worker and everything that is cached, and frees their memory. `wake` loads the model again.

        Ends every open stream with `EngineStoppedError` and unpins all prefixes; `export_cache` and `save_prefix` preserve
        computed prefixes. Waits, on another thread, for the decode that is running.

        Raises:
            EngineStoppedError: The engine was closed.
            RuntimeError: The engine is not running.
        """
        scales = [(adapter.id, adapter.scale) for adapter in self.adapters]
        self._scales = scales
        self._state = "asleep"
        # Templates refer to the vocabulary of this model.
        self._templates = None
        self._native = None
        await self._threads.run(ThreadPool.LIFE, self._stop_worker, self._stop)

    async def wake(self) -> None:
        """Loads the model again after `sleep`, and restores the adapter scales. Does not block the event loop.

        A load that fails or is cancelled leaves the engine asleep.

        Raises:
            ModelLoadError: The file is not a model that Weft can run.
            InvalidConfigError: The settings no longer fit the model or the memory.
            InvalidRequestError: The adapters that were active cannot be combined any more, because their files have changed.
            EngineStoppedError: The engine was closed, possibly during the call.
            RuntimeError: The engine is not asleep.
        """
        if self._is_closed():
            raise EngineStoppedError
        if not self.is_asleep:
            raise RuntimeError("the engine is not asleep")
        self._state = "starting"
        try:
            await self._start_worker(self._scales)
        except BaseException:
            if not self._is_closed():
                self._state = "asleep"
            raise

    async def _start_worker(self, scales: Sequence[tuple[int, float]] = ()) -> None:
        """Loads the model and starts the worker, with these adapter scales or else the configured ones."""
        native = await self._threads.run(ThreadPool.LIFE, self._load, self._report())
        # Also runs when the interpreter exits, since libraries must not be unloaded while the worker uses them.
        self._stop = weakref.finalize(self, _stop, native, os.getpid())
        try:
            if self._is_closed():
                raise EngineStoppedError
            if scales:
                native.set_adapters(scales)
        except WeftError:
            await self._threads.run(ThreadPool.LIFE, self._stop_worker, self._stop)
            raise
        self._native = native
        self._state = "running"

    def _load(self, on_progress: Callable[[float], object] | None) -> _native.Engine:
        loaded = Model.load(self._path, self._config, on_progress=on_progress)
        tuned = tuning.read(tuning.tune_file(loaded, tuning.Conditions.of(self._config))) if self._config.tuned else None
        return _native.Engine(loaded, self._config, tuned=None if tuned is None else tuned.choice)

    async def close(self) -> None:
        """Stops the worker and unloads the model. Idempotent; a closed engine cannot be started again.

        Ends every open stream with `EngineStoppedError`. Waits, on another thread, for the decode that is running.
        """
        self._state = "closed"
        # Templates and the engine refer to each other.
        self._templates = None
        self._native = None
        if self._stop is not None:
            await self._threads.run(ThreadPool.LIFE, self._stop_worker, self._stop)

    def _stop_worker(self, stop: Callable[[], object] | None) -> None:
        """Stops a worker; if another thread is already stopping it, waits for that."""
        with self._stopping:
            if stop is not None:
                stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stream(
        self, prompt: Prompt | Request, *, sampling: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Stream:
        """Queues a request and returns immediately with the stream of its events.

            async for event in engine.stream("Once upon a time,", n=8, max_tokens=64):
                match event:
                    case weft.Token(index, _, text): ...
                    case weft.Finished(index, finish_reason): ...

        A consumer that stops reading frees the slots: by `break` out of a loop that holds the only reference, as above, by
        `close()` or `aclose()`, by cancelling the task, or by dropping the stream.

        A string prompt is tokenized on the calling thread, as by `tokenize`; for a long text, pass the tokens that
        `async_tokenize` returns.

        Args:
            prompt: The prompt, or a whole request. A list may hold strings, token ids and media:
                `["What is this? ", await engine.read_media(data), " It is"]`.
            sampling: Sampling parameters; they override a `Request` that is passed as the prompt.
            **options: Other fields of the request; they override `sampling`.

        Raises:
            InvalidRequestError: A field has the wrong type or is out of range.
            ContextOverflowError: The prompt alone fills the context of a slot.
            QueueFullError: `max_queue` requests are already waiting.
            EngineStoppedError: The engine was closed.
        """
        return self._submit(_request(prompt, sampling, options))

    def _submit(self, request: Request) -> Stream:
        native = self._running()
        return native.submit(request, branch_requests(request)) if request.branches else native.submit(request)

    async def complete(
        self,
        prompt: Prompt | Request,
        *,
        sampling: SamplingParams | None = None,
        max_bytes: int = MAX_BYTES,
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """Generates and returns the complete result. Cancelling the call frees the slots.

            completion = await engine.complete("Once upon a time,", n=8, max_tokens=64)
            print(completion.text, completion.choices[1].finish_reason)

        Args:
            prompt: The prompt or request, as in `stream`.
            sampling: Sampling parameters, as in `stream`.
            max_bytes: Maximum size of the result in memory; see [`Completion.collect`][weft.Completion.collect].
            **options: Other fields of the request.

        Raises:
            AnswerTooLargeError: The result exceeds `max_bytes`.
            WeftError: Any error of `stream`, or `DecodeError` if the model could not compute a step.
        """
        return await Completion.collect(self.stream(prompt, sampling=sampling, **options), max_bytes=max_bytes)

    async def score(
        self,
        prompt: str | Sequence[int],
        continuations: "Sequence[Continuation]",
        *,
        top_logprobs: int = 0,
        **options: "Unpack[ScoreOptions]",
    ) -> "list[Score]":
        """Returns the log-probability of each continuation of a prompt, in order.

            rain, snow = await engine.score("The sky is dark. Soon there will be", [" rain", " snow"])
            print(rain.logprob > snow.logprob, rain.tokens)

        The prompt is computed at most once. Continuations are computed together, as many at a time as there are slots. Logprobs
        of earlier requests are reused.

        A continuation's tokens are appended to the prompt's tokens without merging. A string is tokenized without a BOS token,
        without the leading space that some vocabularies add, and without parsing control tokens. So `"A"` after `"Answer: "` and
        `" A"` after `"Answer:"` are different tokens; models expect the latter.

        Args:
            prompt: The common prefix, at least one token; a string is tokenized as by `stream`.
            continuations: Candidate continuations, each at least one token.
            top_logprobs: Number of top logprobs reported for each position, 0 to 1,000.
            **options: Fields of `Request` that apply to scoring.

        Raises:
            InvalidRequestError: A text has no token, or a field has the wrong type or is out of range.
            ContextOverflowError: The prompt with a continuation fills the context of a slot.
            QueueFullError: The queue is full with `max_queue` requests of other callers.
            DecodeError: The model could not compute a step.
            EngineStoppedError: The engine was closed.
        """
        return (await self.score_many([(prompt, continuations)], top_logprobs=top_logprobs, **options))[0]

    async def score_many(
        self,
        tasks: "Sequence[tuple[str | Sequence[int], Sequence[Continuation]]]",
        *,
        top_logprobs: int = 0,
        **options: "Unpack[ScoreOptions]",
    ) -> "list[list[Score]]":
        """Scores several pairs of a prompt and its continuations, as `score` does; common prefixes are computed once.

        Raises:
            WeftError: Any error of `score`.
        """
        from weft.scoring import continuation_tokens, scores  # noqa: PLC0415 (rarely needed)

        def read(prompt: str | Sequence[int]) -> Sequence[int]:
            return self.tokenize(prompt) if isinstance(prompt, str) else prompt

        def continuation_ids(text: "Continuation") -> Sequence[int]:
            return continuation_tokens(self.model, text) if isinstance(text, str) else text

        if any(isinstance(continuations, str) for _, continuations in tasks):
            raise InvalidRequestError(
                "continuations", "continuations must be a sequence of texts or of lists of tokens, not one text"
            )
        read_tasks = [(read(prompt), [continuation_ids(text) for text in continuations]) for prompt, continuations in tasks]
        return await scores(self, read_tasks, Request(prompt=(), **options), top_logprobs)

    async def infill(
        self,
        prefix: str | Sequence[int],
        suffix: str | Sequence[int],
        *,
        max_bytes: int = MAX_BYTES,
        **options: "Unpack[InfillOptions]",
    ) -> Completion:
        r"""Generates and returns the text of a gap (fill-in-the-middle). Cancelling the call frees the slots.

            completion = await engine.infill("def add(a, b):\n    ", "\n    return c", max_tokens=16)

        As in llama-server, the last tokens of the prefix are kept, up to three quarters of `EngineConfig.n_batch`, and
        the first tokens of the suffix, up to a quarter. Control tokens are parsed in `middle` only.

        Args:
            prefix: Text before the gap.
            suffix: Text after the gap.
            max_bytes: Maximum size of the result in memory, as in `complete`.
            **options: Options of `weft.InfillOptions`: of the prompt, as `middle` and `snippets`, and of the request.

        Raises:
            InvalidRequestError: The model was not trained for infilling, or a field has the wrong type or is out of range.
            WeftError: Any error of `complete`.
        """
        return await Completion.collect(self.stream_infill(prefix, suffix, **options), max_bytes=max_bytes)

    def stream_infill(
        self,
        prefix: str | Sequence[int],
        suffix: str | Sequence[int],
        *,
        sampling: SamplingParams | None = None,
        middle: str | Sequence[int] = "",
        snippets: "Sequence[Snippet]" = (),
        suffix_first: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Stream:
        """Queues a request to fill a gap and returns the stream of its events, as `stream` does.

        Args:
            prefix: Text before the gap.
            suffix: Text after the gap.
            middle: Beginning of the text in the gap, which the model continues; it comes after the prefix in the prompt.
            snippets: Excerpts of other files, as context.
            suffix_first: Puts the suffix before the prefix, as some models require.
            sampling: Sampling parameters, as in `stream`.
            **options: Other fields of the request.

        Raises:
            InvalidRequestError: The model was not trained for infilling, or a field has the wrong type or is out of range.
            WeftError: Any error of `stream`.
        """
        from weft.infill import infill_tokens  # noqa: PLC0415 (rarely needed)

        def read(text: str | Sequence[int], *, parse_special: bool = False) -> Sequence[int]:
            return self.tokenize(text, add_special=False, parse_special=parse_special) if isinstance(text, str) else text

        prompt = infill_tokens(
            self.model,
            read(prefix),
            read(suffix),
            middle=read(middle, parse_special=True),
            snippets=snippets,
            n_batch=self.config.n_batch,
            n_ctx=self.limits.n_ctx_slot,
            n_predict=options.get("max_tokens", None if sampling is None else sampling.max_tokens),
            suffix_first=suffix_first,
        )
        return self._submit(_request(prompt, sampling, options))

    async def chat(
        self,
        messages: "Messages",
        *,
        sampling: SamplingParams | None = None,
        max_bytes: int = MAX_BYTES,
        **options: "Unpack[ChatOptions]",
    ) -> "ChatCompletion":
        """Generates and returns the next message of a chat, using the model's own chat template.

            completion = await engine.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=64)
            print(completion.message.content)

        Message content is never parsed for control tokens. Cancelling the call frees the slots.

        Args:
            messages: The conversation, in OpenAI's format. Before the next message, append `completion.message.to_dict()`.
            sampling: Sampling parameters, as in `stream`.
            max_bytes: Maximum size of the answers in memory.
            **options: Options of `weft.ChatOptions`: of the chat, as `tools`, and of the request, as `n` and `max_tokens`.

        Raises:
            InvalidRequestError: A message or a field has the wrong type or is out of range, or the template rejects the messages.
            TypeError: There is no option of a name.
            WeftError: Any error of `complete`.
        """
        stream = await self.stream_chat(messages, sampling=sampling, **options)
        return await stream.collect(max_bytes=max_bytes)

    async def stream_chat(
        self, messages: "Messages", *, sampling: SamplingParams | None = None, **options: "Unpack[ChatOptions]"
    ) -> "ChatStream":
        """Queues a chat and returns the stream of its answers: content, reasoning and tool calls, parsed as they are generated.

            async for delta in await engine.stream_chat(messages, tools=tools, n=4):
                match delta:
                    case weft.ReasoningDelta(index, text) | weft.ContentDelta(index, text): ...
                    case weft.ToolCallStart(index, call, call_id, name): ...
                    case weft.ToolCallDelta(index, call, arguments): ...
                    case weft.ChoiceFinished(index=index, finish_reason=reason): ...

        Dropping the stream frees the slots, as in `stream`.

        Args:
            messages: The conversation, as in `chat`.
            sampling: Sampling parameters, as in `stream`.
            **options: The options, as in `chat`.

        Raises:
            WeftError: Any error of `chat` that does not depend on the answers.
        """
        from weft.chat.stream import ChatStream  # noqa: PLC0415 (imports Jinja)

        given: Any = {**({} if sampling is None else msgspec.structs.asdict(sampling)), **options}
        request, form = await self._chat_templates().request(messages, given)
        stream = self._submit(request)
        return ChatStream(stream, len(request.branches) or request.n, form, self.detokenize)

    async def apply_template(self, messages: "Messages", **options: "Unpack[TemplateOptions]") -> str:
        """Returns the formatted prompt as a text, without the BOS token. Takes the options of `weft.TemplateOptions`.

        Raises:
            InvalidRequestError: A message has the wrong type, or the template rejects the messages.
            TypeError: There is no option of a name.
        """
        return await self._chat_templates().text(messages, {**options})

    def _chat_templates(self) -> "Templates":
        if self._templates is None:
            # Jinja is imported only if chats are used.
            from weft.chat.request import Templates  # noqa: PLC0415

            self._templates = Templates(self, self._threads)
        return self._templates

    @property
    def adapters(self) -> list[Adapter]:
        """Loaded LoRA adapters, each with its scale in requests that do not set `adapters`."""
        return self._running().adapters()

    def set_adapters(self, adapters: Sequence[tuple[int, float]]) -> None:
        """Sets the default of `Request.adapters`, for requests that do not set it; adapters that are not listed are off.

        Also applies to embeddings and reranking.

        Raises:
            InvalidRequestError: There is no such adapter, or a scale is not finite; nothing is changed.
            EngineStoppedError: The engine was closed.
        """
        self._running().set_adapters(adapters)

    async def read_media(self, data: bytes) -> Media:
        """Decodes an image (PNG, JPEG, GIF, BMP, WebP) or audio (WAV, MP3, FLAC, Ogg Vorbis) file for use in prompts.

        Decoding runs on another thread. The projector encodes the media on its own thread, concurrently with decodes, when a
        request first needs it. Encodings are cached, up to 256 MiB in total, and in the prefix tree like any part of a prompt.

        Raises:
            NotSupportedError: The model was loaded without a projector (`EngineConfig.mmproj`).
            InvalidRequestError: The data has another format, is damaged, too large, or not supported by this projector.
            QueueFullError: 1 GiB of media is loaded and in use.
            EngineStoppedError: The engine was closed.
        """
        return await self._threads.run(ThreadPool.MEDIA, self.model.read_media, data)

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Returns the token ids of a text; the defaults match how `stream` tokenizes a prompt.

        Blocks the calling thread, and therefore the event loop, for 0.2 to 5 µs per byte; `async_tokenize` does not.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds BOS and EOS tokens as the vocabulary requires.
            parse_special: Parses the spelling of a control token as that token.

        Raises:
            InvalidRequestError: `text` has a lone surrogate, or a sequence that the vocabulary's regular expressions cannot
                match.
        """
        return self.model.tokenize(text, add_special=add_special, parse_special=parse_special)

    async def async_tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> Sequence[int]:
        """Returns the token ids of a text without blocking the event loop: long texts are tokenized on another thread.

        The result may be used as a prompt: `engine.stream(await engine.async_tokenize(book))`. For a long text it is a compact
        sequence object. Cancelling the call stops the work.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds BOS and EOS tokens as the vocabulary requires.
            parse_special: Parses the spelling of a control token as that token.

        Raises:
            InvalidRequestError: `text` has a lone surrogate, or a sequence that the vocabulary's regular expressions cannot
                match.
        """
        if len(text) <= LONG_TEXT:
            return self.tokenize(text, add_special=add_special, parse_special=parse_special)
        tokenize = self.model.token_ids
        return await self._threads.run(ThreadPool.TEXT, tokenize, text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int] | MixedPrompt) -> str:
        """Returns the text of token ids: control tokens by their spelling, U+FFFD for bytes that are not valid UTF-8.

        An image or audio item, whose positions have negative ids, becomes `<__media__>`.

        Raises:
            InvalidRequestError: A token is not in the vocabulary.
        """
        return self.model.detokenize(tokens)

    @property
    def path(self) -> str:
        """Path of the model file; available before the model is loaded."""
        return self._path

    @property
    def has_files(self) -> bool:
        """True if the model's files are on this machine, or assumed to be; subclasses may download them on start."""
        return True

    @property
    def is_running(self) -> bool:
        """True while the worker thread is running: it was started, and has neither been stopped nor died."""
        return self._native is not None and self._native.is_running

    @property
    def is_asleep(self) -> bool:
        """True after `sleep`, until `wake` has loaded the model again."""
        return self._state == "asleep"

    def stats(self) -> Stats:
        """Returns counters and gauges as of the last step."""
        return self._running().stats()

    def recent_steps(self) -> list[RecentStep]:
        """Returns the last steps that computed or moved something, oldest first; at most 64."""
        return self._running().recent_steps()

    @property
    def slots(self) -> list[Slot]:
        """State of each slot, as of the last step."""
        return self.stats().slots

    @property
    def config(self) -> EngineConfig:
        """Settings as requested; `limits` and `compute` report the effective values."""
        return self._config

    @property
    def model(self) -> Model:
        """The loaded model."""
        return self._running().model

    @property
    def limits(self) -> Limits:
        """Effective sizes and limits, determined when the engine started."""
        return self._running().limits

    @property
    def is_repeatable(self) -> bool:
        """True if a seeded request generates the same text regardless of concurrent requests and of what is cached.

        Requires that Weft's own kernels compute the whole model, on the CPU, and that every layer attends to the whole text.
        """
        return self._running().is_repeatable

    @property
    def no_speculation_reason(self) -> str | None:
        """None if speculative decoding drafts tokens, else the reason why not."""
        return self._running().no_speculation_reason

    @property
    def draft_type(self) -> str | None:
        """Type of the draft model that drafts, such as `draft-simple`; None if no draft model does."""
        return self._running().draft_type

    @property
    def embeddings_are_repeatable(self) -> bool:
        """True if a text has the same embedding, bit for bit, regardless of concurrent requests.

        Requires a causal model, without recurrent layers, that Weft's own kernels compute completely, on the CPU. Otherwise the
        cosine similarity of two embeddings of one text is at least 0.999999.
        """
        return self._running().embeddings_are_repeatable

    @property
    def compute(self) -> Compute:
        """Kernels and devices that compute steps, with the reasons for the choice."""
        return self._running().compute

    def _report(self) -> Callable[[float], object] | None:
        on_progress = self._on_progress
        if on_progress is None:
            return None
        loop = asyncio.get_running_loop()
        return lambda fraction: loop.call_soon_threadsafe(on_progress, fraction)

    def _is_closed(self) -> bool:
        return self._state == "closed"

    def _running(self) -> _native.Engine:
        if self._native is not None:
            return self._native
        if self._is_closed():
            raise EngineStoppedError
        if self.is_asleep:
            raise RuntimeError("the engine is asleep; `await engine.wake()` loads the model again")
        raise RuntimeError("the engine is not started; use `async with` or `await engine.start()`")


def _stop(native: _native.Engine, process_id: int) -> None:
    # A forked child also runs this on exit, and has no worker to stop.
    if os.getpid() == process_id:
        native.stop()


def _request(prompt: Prompt | Request, sampling: SamplingParams | None, options: Mapping[str, Any]) -> Request:
    """Returns the request of a call: `options` override `sampling`, which overrides a request that is passed as the prompt."""
    fields: dict[str, Any] = {**({} if sampling is None else msgspec.structs.asdict(sampling)), **options}
    if isinstance(prompt, Request):
        return msgspec.structs.replace(prompt, **fields) if fields else prompt
    return Request(prompt=prompt, **fields)
