"""The engine behind the HTTP API: its lifecycle, and the generations that run on it."""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

import msgspec

from weft import (
    BranchOptions,
    ContextOverflowError,
    Engine,
    EngineStoppedError,
    InvalidConfigError,
    InvalidRequestError,
    Media,
    MixedPrompt,
    PinBudgetError,
    Request,
    Stream,
    WeftError,
)
from weft._native import Biases, Model, SavedPrefix, TokenIds
from weft.chat.answer.parts import AnswerForm
from weft.chat.conversation import ChatRequest
from weft.chat.pipeline import ChatPipeline, ChatPrompt
from weft.errors import NotSupportedError
from weft.infill import infill_tokens, missing
from weft.request.branches import BRANCH_FIELDS
from weft.server.auth import current_owner
from weft.server.errors import StillLoadingError
from weft.server.media.files import MediaFile, MediaPrompt
from weft.server.media.reader import MediaReader
from weft.server.memory_budget import responses_budget
from weft.server.refusals import Refusals
from weft.server.run.auto_pinner import AutoPinner
from weft.server.run.engine_state import EngineState
from weft.server.run.executor import LONG_TEXT, Executor, Purpose
from weft.server.run.generation import Generation
from weft.server.run.keyed_lock import KeyedLock
from weft.server.run.pins import Pins
from weft.server.run.schema_parts import SchemaParts
from weft.server.run.sleep import IdleUnloader
from weft.server.run.submission import ForkSubmission, Gap, Piece, SentPrompt, Submission, size_of
from weft.server.run.system_prompt import CommonPrompt
from weft.server.run.usage_counters import UsageCounters
from weft.server.slot_files import SlotFiles
from weft.server.streaming.client_timeouts import n_body_bytes
from weft.server.streaming.recording import Recordings
from weft.server.web_policy import require_trusted_sender
from weft.serving.build import build_info
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt

__all__ = ["Service"]

logger = logging.getLogger(__name__)

Made = TypeVar("Made")

MESSAGE_SIZE = 64
"""Cost of processing a message in addition to its text, in characters."""

LIVENESS_S = 0.25
"""Liveness check interval, in seconds."""

MAX_PROMPT_LOGPROBS = 1 << 20
"""Maximum logprobs of a request's prompts (about 60 MB of JSON). All are kept in memory until the prompts have been computed."""

CLOSE_GRACE_S = 1.0
"""Time for open streams to report the error to their clients after the engine stopped, in seconds."""


MAX_REPARSED = 65_536
"""Maximum characters that the forks of one request may parse again for a chat's stream; a few milliseconds on the event loop."""


class Service:
    """An engine, its settings, and its active generations."""

    def __init__(self, engine: Engine, settings: Settings, snapshots: "Sequence[Callable[[Service], object]]" = ()) -> None:
        """Creates a service for an engine that is not running yet.

        Args:
            engine: The engine.
            settings: The server's settings and defaults of request fields.
            snapshots: Functions of the running engine, whose results [`Service.snapshot`] returns while the model is unloaded.
        """
        self.engine = engine
        self.settings = settings
        self.started_s = int(time.time())
        """Start of the server as a Unix timestamp in seconds, by which readers of its counters detect a restart."""
        self.usage_counters = UsageCounters()
        self.chat = ChatPipeline(engine, settings, self.usage_counters.count_malformed_call)
        self.pins = Pins(engine)
        self.common_prompt = CommonPrompt(engine, lambda text: self.prompt_tokens([text]))
        self.refusals = Refusals()
        self.executor = Executor()
        self.media = MediaReader(engine, self.executor, folder=settings.media_path, hosts=settings.allow_media_urls)
        self.collected = responses_budget()
        self.cache_lock = KeyedLock()
        """Serializes reads of the cache, each of which waits for a step and may return ten thousand nodes."""
        self.slot_files = SlotFiles(engine, settings.slot_save_path, self.executor)
        self.exposes_texts = os.environ.get("LLAMA_SERVER_SLOTS_DEBUG", "") not in ("", "0")
        """True if `/slots` includes prompts and generated text, set by llama-server's environment variable."""
        self.loading: Mapping[str, Any] = {}
        """Progress of loading the model, reported with the error 503."""
        self.n_vectors = 0
        """Embedding requests that are queued or running."""
        self.sleep = IdleUnloader(settings.sleep_idle_s, unload=self._unload, reload=self._reload)
        self.auto_pinner = AutoPinner(engine, self.pins, self.sleep, self.cache_lock)
        self.recordings = Recordings(self.sleep.request)
        """Resumable streams."""
        self._snapshot_functions = snapshots
        self._snapshots: dict[Callable[[Service], Any], Any] = {}
        self._cache_exports: list[SavedPrefix] = []
        """Cache contents outside the device, while the model is unloaded."""
        self._is_started = False
        self._is_ready = False
        self._is_stopping = False
        self._failure: Exception | None = None
        # Weak references: an unreferenced generation is cancelled.
        self._generations: WeakSet[Generation] = WeakSet()

    async def start(self, loading: Awaitable[None] | None = None) -> None:
        """Loads the model. Until it returns, requests are refused with [`StillLoadingError`].

        Args:
            loading: The awaitable that `engine.start()` returned, if it was called already.

        Raises:
            ModelLoadError: The file is not a supported model.
            InvalidConfigError: A setting does not fit the model.
            RuntimeError: The engine was started before.
        """
        self._is_started = True
        try:
            await (loading or self.engine.start())
            self.chat.check_settings()
            await self._check_defaults()
            if self.settings.restore_prompt is not None:
                await self.engine.load_prefix(self.settings.restore_prompt)
            if (given := self.settings.system_prompt) is not None:
                await self._compute_system_prompt(given)
        except Exception as error:
            self._failure = error
            if not isinstance(error, WeftError):
                logger.exception("the engine cannot be started")
            raise
        self._is_ready = True
        self.sleep.start()
        self.executor.start(Purpose.PROMPT, self._compile)
        self.executor.start(Purpose.PROMPT, build_info)

    @property
    def build(self) -> str:
        """Version and commit of the build, see [`build_info`]. Its first call takes milliseconds and is made during the start."""
        return build_info()

    def _compile(self) -> None:
        """Compiles the chat template.

        Runs on a worker thread. Only chat requests and queries of chat capabilities wait for it.
        """
        try:
            self.chat.compile()
        except EngineStoppedError:
            pass  # The template is no longer needed.
        except Exception:
            logger.exception("the chat template cannot be compiled")

    async def compiled_chat(self) -> ChatPipeline:
        """Returns the chat format with its template compiled, which would block the event loop if done there.

        Raises:
            TextsWaitingError: Too much work is queued.
        """
        if not self.chat.is_compiled:
            # Waits in the queue behind the compilation that `start` began.
            await self.executor.run_in_thread(Purpose.PROMPT, 0, self.chat.compile)
        return self.chat

    async def _check_defaults(self) -> None:
        """Validates default constraints and biases at startup.

        The first request would otherwise report the error, although its client is not at fault.
        """
        grammar, json_schema, logit_bias = self.settings.grammar, self.settings.json_schema, self.settings.sampling.logit_bias
        if self._makes_only_vectors or not (grammar or json_schema or logit_bias):
            return
        # A prompt of this length is refused after the request's other fields were validated.
        too_long = [0] * self.engine.limits.n_ctx_slot
        request = Request(prompt=too_long, grammar=grammar, json_schema=json_schema, logit_bias=logit_bias)
        try:
            await self.executor.run_in_thread(Purpose.PROMPT, 0, self.engine.stream, request)
        except ContextOverflowError:
            pass
        except InvalidRequestError as error:
            raise InvalidConfigError(error.param, error.message) from None

    async def _compute_system_prompt(self, system_prompt: SystemPrompt) -> None:
        """Computes the system prompt of the settings."""
        try:
            async with self.common_prompt.changed(system_prompt):
                pass
        except (ContextOverflowError, PinBudgetError) as error:
            raise InvalidConfigError("system_prompt", str(error)) from None

    async def _unload(self, is_needed: Callable[[], bool]) -> bool:
        """Unloads the model. Returns False if a request arrived before unloading began."""
        await self.pins.save_pinned()
        cache_exports = await self.engine.export_cache(should_continue=lambda: not is_needed())
        if is_needed():
            return False
        self._snapshots = {make: make(self) for make in self._snapshot_functions}
        logger.info("no request for %g s: unloading the model, which the next one loads again", self.sleep.timeout_s)
        await self.engine.sleep()
        # Not earlier: if the model stays loaded, its cache stays valid.
        self._cache_exports = cache_exports
        # Tracebacks form reference cycles that may hold the model. No request is waiting at this time.
        gc.collect()
        return True

    async def _reload(self) -> None:
        """Reloads the model and restores the state around it. On failure the model stays unloaded."""
        began = time.monotonic()
        try:
            await self._restore_state()
        except EngineStoppedError:
            raise
        except Exception as error:
            logger.error("the model cannot be loaded again: %s", error)
            if self.engine.is_running:
                await self.engine.sleep()
            raise
        logger.info("the model is loaded again after %.1f s", time.monotonic() - began)

    async def _restore_state(self) -> None:
        if not self.engine.is_running:
            await self.engine.wake()
        # The file may have been replaced.
        self.chat = ChatPipeline(self.engine, self.settings, self.usage_counters.count_malformed_call)
        self.chat.check_settings()
        self.chat.compile()
        await self.engine.import_cache(self._cache_exports)
        try:
            if self.settings.restore_prompt is not None:
                await self.engine.load_prefix(self.settings.restore_prompt)
        except EngineStoppedError:
            raise
        except (WeftError, OSError) as error:
            logger.warning("the saved prompt could not be restored: %s", error)
        common = self.common_prompt.prefix
        pinned = await self.pins.pin_again()
        self.common_prompt.set_prefix(None if common is None else pinned.get(common.id))
        # Not earlier: a retry after a failure needs them.
        self._cache_exports = []

    def snapshot(self, make: "Callable[[Service], Made]") -> Made:
        """Returns `make(self)`, or the result stored when the model was unloaded. `make` must be one of `snapshots`."""
        return make(self) if self.engine.is_running else cast("Made", self._snapshots[make])

    def previous_snapshot(self, make: "Callable[[Service], Made]") -> Made | None:
        """Returns the result of `make` from the last unloading, or None if the model was never unloaded."""
        return self._snapshots.get(make)

    async def wait_until_dead(self) -> None:
        """Returns once the started engine has stopped without a call of `stop_engine`."""
        while self._is_stopping or self._is_alive:  # noqa: ASYNC110 (a dying thread cannot set an event)
            await asyncio.sleep(LIVENESS_S)

    @property
    def _is_alive(self) -> bool:
        """True if the engine is running, or can be woken by a request."""
        if self.engine.is_running:
            return True
        return not self.sleep.is_awake and (self.sleep.is_changing or self.engine.is_asleep)

    @property
    def is_idle(self) -> bool:
        """True if no completions or embeddings are in progress."""
        return not self._generations and not self.n_vectors

    async def stop_engine(self) -> None:
        """Stops the engine. Every open stream ends with an error."""
        self._is_stopping = True
        self.auto_pinner.close()
        self.sleep.stop()
        await self.engine.close()

    async def stop(self) -> None:
        """Stops the engine, and waits briefly for open streams to report that to their clients."""
        await self.stop_engine()
        if ends := [asyncio.create_task(generation.closed.wait()) for generation in self._generations]:
            await asyncio.wait(ends, timeout=CLOSE_GRACE_S)
        await self.recordings.close()
        self.executor.close()

    def refusal(self) -> Exception | None:
        """Returns the error for every request while the engine is not available, else None.

        The engine may be loading, may have failed to load, or may have stopped.
        """
        if self._failure is not None:
            return self._failure
        if not self._is_ready:
            return StillLoadingError(self.loading)
        return None if self._is_alive and not self._is_stopping else EngineStoppedError()

    @property
    def state(self) -> EngineState:
        """Lifecycle state of the engine."""
        if self._failure is not None or (self._is_ready and not self._is_alive):
            return EngineState.DEAD
        if not self._is_ready:
            return EngineState.LOADING if self._is_started and self.engine.has_files else EngineState.INIT
        if not self.engine.is_running:
            return EngineState.READY
        is_busy = self.n_vectors > 0 or any(slot.is_processing for slot in self.engine.stats().slots)
        return EngineState.RUNNING if is_busy else EngineState.READY

    @property
    def model_name(self) -> str:
        """Name of the model in responses, also available before it is loaded."""
        return self.settings.model_name or Path(self.engine.path).name

    @property
    def pooling(self) -> str:
        """How embeddings of tokens are combined to one of their text."""
        return self.engine.embedding_stats().pooling

    @property
    def capabilities(self) -> list[str]:
        """Capabilities of the model in llama-server's terms. Every model computes embeddings or scores."""
        vectors = "reranking" if self.pooling == "rank" else "embedding"
        modalities = self.engine.model.modalities
        media = ["multimodal"] if modalities.vision or modalities.audio else []
        return [vectors] if self._makes_only_vectors else ["completion", *media, vectors]

    @property
    def _makes_only_vectors(self) -> bool:
        return self.engine.model.is_encoder or self.settings.embeddings or self.settings.reranking

    async def submit(self, submission: Submission, form: AnswerForm | None = None) -> Generation:
        """Submits one request for each prompt: either all of them or none.

        Args:
            submission: The requests.
            form: Format of the answers, if this is a chat.

        Raises:
            ContextOverflowError: A prompt does not fit.
            InvalidRequestError: A field is out of range.
            QueueFullError: Too many requests are queued.
            TextsWaitingError: Too many texts are queued.
            ClientDisconnectedError: The client has disconnected.
            EngineStoppedError: The engine was stopped.
            NotSupportedError: The server computes embeddings only.
            NotSupportedError: The model computes embeddings only.
            CrossOriginError: A page of an untrusted origin requests `explain_cache`, which reveals texts of other clients.
        """
        if submission.template.explain_cache:
            require_trusted_sender("the field explain_cache")
        submission = await self.with_media_read(submission)
        # Reading the vocabulary takes up to a third of a second for 150,000 entries.
        size = LONG_TEXT + 1 if submission.scans_vocabulary else submission.size
        schema_parts = SchemaParts(submission.response_fields)
        started = await self.executor.run(Purpose.PROMPT, size, self._start_generation, submission, current_owner(), schema_parts)
        generation = Generation(
            submission, *started, self.usage_counters, owner=current_owner(), schema_parts=schema_parts, form=form
        )
        self._generations.add(generation)
        return generation

    async def fork(
        self, generation: Generation, prompt: int, branch_index: int, submission: ForkSubmission
    ) -> list[int] | Generation:
        """Forks a branch.

        Returns:
            The forks' branch indices in the source's stream, or a generation if they have their own stream.

        Raises:
            InvalidRequestError: A field is out of range, or the source's response cannot include forks.
            WeftError: As [`Stream.fork`][weft.Stream.fork].
        """
        if not submission.own_stream and not generation.accepts_forks:
            message = "the answer to this request has no room for forks; set stream to true, which gives them one of their own"
            raise InvalidRequestError("stream", message)
        size = LONG_TEXT + 1 if submission.scans_vocabulary else submission.size
        arguments = (generation.submission.prompts[prompt], submission, generation.schema_parts)
        options, append = await self.executor.run(Purpose.PROMPT, size, self._fork_options, *arguments)
        making = asyncio.create_task(
            self._make_forks(generation, prompt, branch_index, submission, options=options, append=append)
        )
        try:
            # Completes even if the client disconnects: unregistered forks could not be cancelled.
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_unread)
            raise

    async def _make_forks(
        self,
        generation: Generation,
        prompt: int,
        branch_index: int,
        submission: ForkSubmission,
        *,
        options: dict[str, Any],
        append: list[int],
    ) -> list[int] | Generation:
        source = generation.branch(prompt, branch_index)
        try:
            appended = self.engine.detokenize(append) if append else ""
        except InvalidRequestError as error:
            raise InvalidRequestError("append", error.message) from None
        if generation.is_chat and not submission.own_stream:
            n_before = (
                len(generation.text_before(prompt, branch_index)) + len(generation.text(prompt, branch_index)) + len(appended)
            )
            if submission.n * n_before > MAX_REPARSED:
                message = (
                    f"each of the {submission.n} forks would read {n_before} characters again for this chat's stream,"
                    f" {MAX_REPARSED} together at most; set stream to true, which gives them one of their own, or ask for fewer"
                )
                raise InvalidRequestError("n", message)
        with generation.pending_forks.register():
            made = await generation.streams[prompt].fork(
                branch_index,
                n=submission.n,
                at=submission.at,
                unit=submission.unit,
                append=append or None,
                own_stream=submission.own_stream,
                **options,
            )
            if isinstance(made, list):
                seed = options.get("seed")
                first = (source.seed or 0) - branch_index + made[0] if seed is None else seed
                request = _fork_request(source, len(made), {**options, "seed": first % 2**32})
                inherits = "logprobs" not in options
                requests_top_logprobs = (
                    generation.requests_top_logprobs(prompt, branch_index) if inherits else options["logprobs"] is not None
                )
                generation.add_forks(prompt, made, request, appended, requests_top_logprobs=requests_top_logprobs)
                return made
        alone = msgspec.structs.replace(generation.submission, stream=True, branches=())
        requests = [_fork_request(source, submission.n, {**options, "seed": made.seed})]
        own = Generation(alone, requests, [made], self.usage_counters, owner=generation.owner)
        self._generations.add(own)
        return own

    def _fork_options(
        self, sent: SentPrompt, submission: ForkSubmission, schema_parts: SchemaParts
    ) -> tuple[dict[str, Any], list[int]]:
        """Returns the forks' options, and the tokens to append to the text before them."""
        options = {**submission.options}
        if submission.logit_bias is not None:
            options["logit_bias"] = self._biases(submission.logit_bias)
        if submission.penalty_prompt is not None:
            options["penalty_prompt"] = self._penalty_prompt(submission.penalty_prompt)
        if isinstance(schema := options.get("json_schema"), str):
            schema_parts.of(schema)
        return options, self._tokens_on(submission.append, parse_special=_reads_special(sent))

    def check_generates(self) -> None:
        """Refuses completions and scoring if the server computes embeddings only.

        Raises:
            NotSupportedError: The server was started with `--embeddings` or `--reranking`.
        """
        if self.settings.embeddings or self.settings.reranking:
            flag = "--embeddings" if self.settings.embeddings else "--reranking"
            raise NotSupportedError(f"This server does not support completions. Start it without `{flag}`")

    async def with_media_read(self, submission: Submission) -> Submission:
        """Returns the submission with its images and audio decoded.

        Raises:
            InvalidRequestError: An option of the request does not support images or audio.
            NotSupportedError: The server computes embeddings only.
            WeftError: As `MediaReader.read`.
        """
        self.check_generates()
        if not any(isinstance(prompt, MediaPrompt) for prompt in submission.prompts):
            return submission
        if submission.gap is not None:
            raise InvalidRequestError(
                "prompt", "a prompt with pictures or sounds cannot stand before a gap; leave out what follows it"
            )
        if submission.template.prompt_logprobs is not None:
            message = "prompt_logprobs cannot be told of a prompt with pictures or sounds; leave it out"
            raise submission.rename_parameter(InvalidRequestError("prompt_logprobs", message))
        return msgspec.structs.replace(submission, prompts=await self.with_media(submission.prompts))

    async def with_media(self, prompts: Sequence[SentPrompt]) -> Sequence[SentPrompt]:
        """Returns the prompts with their images and audio decoded. Raises as `MediaReader.read`."""
        files = [file for prompt in prompts if isinstance(prompt, MediaPrompt) for file in prompt.files()]
        if not files:
            return prompts
        media = iter(await self.media.read(files))
        return [prompt.read(media) if isinstance(prompt, MediaPrompt) else prompt for prompt in prompts]

    def adapters(self, requested: Sequence[tuple[int, float]] | None) -> Sequence[tuple[int, float]] | None:
        """Returns every loaded adapter with its scale, with the requested scales applied, or None if none are loaded.

        The result fixes the scales for all prompts of a request, even if the server's scales change meanwhile, and is part of the
        response.
        """
        loaded = self.engine.adapters
        if requested is None:
            return [(adapter.id, adapter.scale) for adapter in loaded] or None
        scales = dict(requested)
        # The engine refuses unknown adapters.
        return [*((adapter.id, scales.pop(adapter.id, 0.0)) for adapter in loaded), *scales.items()]

    def generations_of(self, owner: str | None) -> list[Generation]:
        """Returns the open generations of an owner."""
        return [one for one in list(self._generations) if one.owner == owner and not one.closed.is_set()]

    def find_generation(self, name: str, owner: str | None) -> Generation | None:
        """Returns an owner's open generation by its id, optionally with a prefix and a dash as in OpenAI's ids, or None."""
        _, _, own = name.rpartition("-")
        return next((one for one in self.generations_of(owner) if one.id == own), None)

    def generation_of(self, request_id: int) -> tuple[Generation, int] | None:
        """Returns the open generation of an engine request and the index of its prompt, or None."""
        for generation in list(self._generations):
            for prompt, stream in enumerate(generation.streams):
                if stream.request_id == request_id:
                    return generation, prompt
        return None

    def _start_generation(
        self, submission: Submission, owner: str | None, schema_parts: SchemaParts
    ) -> tuple[list[Request], list[Stream]]:
        """Tokenizes every prompt, submits its request, and parses the schemas for the response's fields."""
        requests = self._requests(submission, owner)
        streams: list[Stream] = []
        try:
            for request in requests:
                streams.append(self.engine.stream(request))  # noqa: PERF401 (those before a failure must be closed)
            for schema in _schemas(requests):
                schema_parts.of(schema)
        except Exception as error:
            for stream in streams:
                stream.close()
            if isinstance(error, InvalidRequestError):
                raise submission.rename_parameter(error) from None
            raise
        return requests, streams

    def _requests(self, submission: Submission, owner: str | None) -> list[Request]:
        limit = self.engine.limits.max_queue
        if len(submission.prompts) > limit:
            raise InvalidRequestError("prompt", f"there are {len(submission.prompts)} prompts; at most {limit} may wait")
        slot = None if submission.slot is None else submission.slot % self.engine.limits.n_slots
        template = msgspec.structs.replace(
            submission.template,
            logit_bias=self._biases(submission.logit_bias),
            penalty_prompt=self._penalty_prompt(submission.penalty_prompt),
            adapters=self.adapters(submission.template.adapters),
            slot=slot,
            owner=owner,
            # The log shows it even if the body does not request it.
            explain_cache=submission.template.explain_cache or logger.isEnabledFor(logging.DEBUG),
        )
        if submission.gap is None:
            for prompt in submission.prompts:
                self.check_length(prompt)
            prompts: Iterable[Sequence[int] | MixedPrompt] = (
                self._prompt(prompt, submission.after) for prompt in submission.prompts
            )
        else:
            prefixes = [prompt for prompt in submission.prompts if not isinstance(prompt, MediaPrompt | MixedPrompt)]
            prompts = self._around_gap(prefixes, submission.gap, template.max_tokens)
        requests = [
            self._with_branches(msgspec.structs.replace(template, prompt=prompt), submission, sent)
            for prompt, sent in zip(prompts, submission.prompts, strict=True)
        ]
        if template.prompt_logprobs is not None:
            n_tokens = sum(len(request.prompt) for request in requests)
            if (error := _too_many_logprobs(template.prompt_logprobs, n_tokens)) is not None:
                raise submission.rename_parameter(error)
        return requests

    def _with_branches(self, request: Request, submission: Submission, sent: SentPrompt) -> Request:
        """Adds the suffix prompt and, if they differ, the branches."""
        # If a prompt was given as tokens, text after it is not parsed for special tokens either.
        parse_special = _reads_special(sent)

        def suffix(pieces: Sequence[Piece]) -> Sequence[int] | None:
            return self._tokens_on(pieces, parse_special=parse_special) or None

        if submission.suffix:
            request = msgspec.structs.replace(request, suffix_prompt=suffix(submission.suffix))
        if not submission.branches:
            return request
        branches = [
            msgspec.structs.replace(
                branch.template,
                logit_bias=request.logit_bias if branch.logit_bias is submission.logit_bias else self._biases(branch.logit_bias),
                penalty_prompt=request.penalty_prompt
                if branch.penalty_prompt is submission.penalty_prompt
                else self._penalty_prompt(branch.penalty_prompt),
                adapters=self.adapters(branch.template.adapters),
                suffix_prompt=suffix(branch.suffix),
                seed=branch.template.seed if branch.has_seed else None,
            )
            for branch in submission.branches
        ]
        seed = int.from_bytes(os.urandom(4)) if request.seed is None else request.seed
        own = tuple(cast("BranchOptions", {name: getattr(one, name) for name in BRANCH_FIELDS}) for one in branches)
        return msgspec.structs.replace(request, seed=seed, branches=own)

    def _tokens_on(self, pieces: Sequence[Piece], *, parse_special: bool) -> list[int]:
        """Returns the tokens of text that follows a prompt."""
        tokens: list[int] = []
        for piece in pieces:
            tokens += [piece] if isinstance(piece, int) else self.engine.model.tokenize_on(piece, parse_special=parse_special)
        return tokens

    def _prompt(self, pieces: SentPrompt, after: Sequence[int]) -> Sequence[int] | MixedPrompt:
        if isinstance(pieces, MixedPrompt):
            return pieces
        if isinstance(pieces, MediaPrompt):
            parts = cast("Sequence[str | Media]", pieces.pieces)
            return self.engine.model.tokenize_parts([list(after), *parts], add_special=not after)
        return [*after, *self._tokens(pieces, add_special=False)] if after else self._tokens(pieces)

    def _around_gap(self, prefixes: Sequence[Sequence[Piece]], gap: Gap, n_predict: int | None) -> Iterator[Sequence[int]]:
        """Yields infill prompts for the prefixes, truncated where they are too long."""
        model = self.engine.model
        if lacks := missing(model):
            message = "".join(f"{name} token is missing. " for name in lacks)
            raise NotSupportedError(f"Infill is not supported by this model: {message}")
        plain = partial(self._tokens, add_special=False, parse_special=False)
        suffix, middle = plain(gap.suffix), self._tokens(gap.middle, add_special=False)
        for prefix in prefixes:
            yield infill_tokens(
                model,
                plain(prefix),
                suffix,
                middle=middle,
                snippets=gap.snippets,
                n_batch=self.engine.config.n_batch,
                n_ctx=self.engine.limits.n_ctx_slot,
                n_predict=n_predict,
                suffix_first=gap.suffix_first,
            )

    def check_length(self, pieces: SentPrompt) -> None:
        """Refuses a prompt that cannot fit even if its tokens were as long as possible, before tokenizing it.

        Raises:
            ContextOverflowError: The prompt cannot fit.
        """
        n_ctx = self.engine.limits.n_ctx_slot
        n_least = _n_least(pieces, self.engine.model)
        if n_least >= n_ctx:
            is_counted = isinstance(pieces, TokenIds | MixedPrompt) or not any(
                isinstance(piece, str) for piece in _pieces(pieces)
            )
            raise ContextOverflowError(n_least, n_ctx, is_least=not is_counted)

    def _biases(self, biases: Sequence[tuple[Piece, float]]) -> Sequence[tuple[int, float]]:
        n_vocab = self.engine.model.n_vocab
        if len(biases) > n_vocab:
            raise InvalidRequestError("logit_bias", f"there are {len(biases)} biases; the vocabulary has {n_vocab} tokens")
        if isinstance(biases, Biases):
            # Encodes here on the worker thread; the result is cached for the event loop.
            biases.json()
            return biases
        result = [
            (token, bias) for piece, bias in biases for token in self._tokens([piece], add_special=False, parse_special=False)
        ]
        if len(result) > n_vocab:
            raise InvalidRequestError(
                "logit_bias", f"there are biases of {len(result)} tokens; the vocabulary has {n_vocab} tokens"
            )
        return self._biases(Biases(result)) if len(result) > LONG_TEXT else result

    def _penalty_prompt(self, pieces: Sequence[Piece] | None) -> Sequence[int] | None:
        if pieces is None:
            return None
        tokens = self._tokens(pieces, add_special=False, parse_special=False)
        if len(tokens) > LONG_TEXT:
            tokens = tokens if isinstance(tokens, TokenIds) else TokenIds(tokens)
            # As in `_biases`.
            tokens.json()
        return tokens

    async def tokenize(self, pieces: Sequence[Piece], *, add_special: bool, parse_special: bool) -> Sequence[int]:
        """Returns the tokens of texts and tokens. Opening tokens are added only if the first piece is text."""
        more = {"add_special": add_special, "parse_special": parse_special}
        return await self.executor.run(Purpose.TEXT, size_of(pieces), self._tokens, pieces, **more)

    async def prompt_tokens(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Returns the tokens of a prompt for the engine.

        Raises:
            ContextOverflowError: The prompt cannot fit.
        """
        return await self.executor.run(Purpose.PROMPT, size_of(pieces), self.prompt_now, pieces)

    def prompt_now(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Returns the tokens of a prompt, computed on the calling thread.

        Raises:
            ContextOverflowError: The prompt cannot fit.
        """
        self.check_length(pieces)
        return self._tokens(pieces)

    def text_or_tokens(self, pieces: Sequence[Piece]) -> str | Sequence[int]:
        """Returns a single text unchanged, or the tokens of several pieces."""
        return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], str) else self._tokens(pieces)

    async def chat_prompt(
        self, data: ChatRequest, files: Sequence[MediaFile] = (), *, n_more: int = 0, with_system_end: bool = False
    ) -> ChatPrompt:
        """Renders a chat and returns its tokens.

        Args:
            data: The chat.
            files: Its images and audio.
            n_more: Bytes of messages that were not part of the request's body, such as stored ones.
            with_system_end: Whether to determine where the system message ends.

        Raises:
            ContextOverflowError: The prompt cannot fit.
            InvalidRequestError: The messages are invalid, or the template refuses them.
            WeftError: As `MediaReader.read`.
        """
        media = await self.media.read(files)
        size, options = _size_of_chat(data, files) + n_more, {"with_system_end": with_system_end}
        chat = await self.compiled_chat()
        return await self.executor.run(Purpose.PROMPT, size, chat.prompt, data, media, **options)

    def after_context(self, prompt: ChatPrompt, context: Sequence[int]) -> ChatPrompt:
        """Returns the prompt after the tokens of an earlier prompt and its answer.

        Raises:
            ContextOverflowError: The tokens do not fit.
            InvalidRequestError: A token is not in the vocabulary.
        """
        model = self.engine.model
        try:
            known = context if isinstance(context, TokenIds) else TokenIds(context)
        except OverflowError:
            raise InvalidRequestError("context", "context has a token whose id is not below 2³¹") from None
        self.check_length(known)
        if (unknown := known.outside(model.n_vocab)) is not None:
            raise InvalidRequestError("context", f"context has the token {unknown}, which the model has not")
        tokens = prompt.tokens
        assert isinstance(tokens, list), "a prompt with images has no context"
        n_opening = 1 if model.adds_bos and tokens[:1] == [model.bos_token] else 0
        return msgspec.structs.replace(prompt, tokens=[*context, *tokens[n_opening:]], turn_ends=[], system_end=None)

    async def chat_text(self, data: ChatRequest, files: Sequence[MediaFile] = ()) -> str:
        """Renders a chat and returns the text. Raises as `chat_prompt`, but does not read the files."""
        self.media.check(files)
        chat = await self.compiled_chat()
        return await self.executor.run(Purpose.TEXT, _size_of_chat(data, files), chat.text, data)

    def _tokens(self, pieces: Sequence[Piece], *, add_special: bool = True, parse_special: bool = True) -> Sequence[int]:
        if isinstance(pieces, TokenIds):
            return pieces
        if len(pieces) == 1 and isinstance(text := pieces[0], str) and len(text) > LONG_TEXT:
            return self.engine.model.token_ids(text, add_special=add_special, parse_special=parse_special)
        tokens: list[int] = []
        for position, piece in enumerate(pieces):
            if isinstance(piece, int):
                tokens.append(piece)
            else:
                opens = add_special and position == 0
                tokens += self.engine.tokenize(piece, add_special=opens, parse_special=parse_special)
        return tokens


def _close_unread(making: "asyncio.Task[list[int] | Generation]") -> None:
    """Closes a stream of forks whose client has disconnected."""
    if not making.cancelled() and making.exception() is None and isinstance(made := making.result(), Generation):
        made.close()


def _reads_special(sent: SentPrompt) -> bool:
    """Returns whether text after a prompt is parsed for special tokens, as it is if the prompt has text itself."""
    return isinstance(sent, MediaPrompt) or (
        not isinstance(sent, TokenIds | MixedPrompt) and any(isinstance(piece, str) for piece in sent)
    )


def _schemas(requests: Sequence[Request]) -> set[str]:
    """Returns the JSON schemas that constrain branches. All prompts have the same ones."""
    schemas = [of.get("json_schema") for request in requests[:1] for of in ({"json_schema": request.schema}, *request.branches)]
    return {schema for schema in schemas if isinstance(schema, str)}


def _fork_request(source: Request, n: int, options: Mapping[str, Any]) -> Request:
    """Returns the request of forks of a branch, as reported to clients."""
    return msgspec.structs.replace(source, **{**options, "n": n, "branches": ()})


def _size_of_chat(data: ChatRequest, files: Sequence[MediaFile]) -> int:
    """Estimates the cost of rendering a chat. A template receives only data from the body, without the files' contents."""
    n_bytes = n_body_bytes() - sum(len(file.source) for file in files)
    return max(n_bytes, 0) + MESSAGE_SIZE * len(data.messages or ())


def _too_many_logprobs(n_likely: int, n_tokens: int) -> InvalidRequestError | None:
    n = n_tokens * (1 + max(n_likely, 0))
    if n <= MAX_PROMPT_LOGPROBS:
        return None
    message = f"prompt_logprobs asks for {n} log-probabilities of {n_tokens} tokens; at most {MAX_PROMPT_LOGPROBS} are told"
    return InvalidRequestError("prompt_logprobs", message)


def _pieces(prompt: Sequence[Piece] | MediaPrompt) -> Sequence[object]:
    return prompt.pieces if isinstance(prompt, MediaPrompt) else prompt


def _n_least(pieces: SentPrompt, model: Model) -> int:
    """Returns a lower bound for the number of tokens. If the longest token is known, characters are counted in place of bytes."""
    if isinstance(pieces, TokenIds | MixedPrompt):
        return len(pieces)
    longest = model.longest_piece

    def least(text: str) -> int:
        return model.least_tokens(text) if longest is None else -(-len(text) // longest)

    return sum(
        least(piece) if isinstance(piece, str) else piece.n_tokens if isinstance(piece, Media) else 1 for piece in _pieces(pieces)
    )
