"""What the HTTP APIs call: submitting requests to the engine, finding the running ones, and tokenizing texts."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakSet

import msgspec

from weft import Engine, InvalidRequestError, Request, Stream
from weft.chat.answer.parts import AnswerForm
from weft.chat.pipeline import ChatPipeline
from weft.errors import NotSupportedError
from weft.server.auth import current_owner
from weft.server.executor import Executor, Purpose
from weft.server.inference.generation import Generation
from weft.server.inference.request_builder import RequestBuilder
from weft.server.inference.schema_parts import SchemaParts
from weft.server.inference.submission import Piece, SentPrompt, Submission, size_of
from weft.server.inference.usage_counters import UsageCounters
from weft.server.keyed_lock import KeyedLock
from weft.server.media.files import MediaPrompt
from weft.server.media.reader import MediaReader
from weft.server.memory_budget import responses_budget
from weft.server.model.auto_pinner import AutoPinner
from weft.server.model.lifecycle import EngineState, Lifecycle
from weft.server.model.pins import Pins
from weft.server.model.system_prompt import CommonPrompt
from weft.server.refusals import Refusals
from weft.server.slot_files import SlotFiles
from weft.server.streaming.recording import Recordings
from weft.server.web_policy import require_trusted_sender
from weft.serving.build import build_info
from weft.settings import Settings
from weft.work.threads import LONG_TEXT

T = TypeVar("T")

CLOSE_GRACE_S = 1.0
"""Time for open streams to report the error to their clients after the engine stopped, in seconds."""


class Service:
    """An engine with its settings, its life cycle, its active generations, and what requests share."""

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
        self.refusals = Refusals()
        self.executor = Executor()
        self.request_builder = RequestBuilder(engine)
        self.pins = Pins(engine)
        self.common_prompt = CommonPrompt(self.pins, lambda text: self.prompt_tokens([text]))
        self.lifecycle = Lifecycle(
            engine,
            settings,
            self.executor,
            self.pins,
            self.common_prompt,
            make_chat=lambda: ChatPipeline(engine, settings, self.usage_counters.count_malformed_call),
            on_unload=self._take_snapshots,
        )
        self.sleep = self.lifecycle.sleep
        self.cache_lock = KeyedLock()
        """Serializes reads of the cache, each of which waits for a step and may return ten thousand nodes."""
        self.auto_pinner = AutoPinner(engine, self.pins, self.sleep, self.cache_lock)
        self.recordings = Recordings(self.sleep.request)
        """Resumable streams."""
        self.media = MediaReader(engine, self.executor, folder=settings.media_path, hosts=settings.allow_media_urls)
        self.slot_files = SlotFiles(engine, settings.slot_save_path, self.executor)
        self.collected = responses_budget()
        self.exposes_texts = os.environ.get("LLAMA_SERVER_SLOTS_DEBUG", "") not in ("", "0")
        """True if `/slots` includes prompts and generated text, set by llama-server's environment variable."""
        self.n_embeddings = 0
        """Embedding requests that are queued or running."""
        self.at_stop: list[Callable[[], object]] = []
        """Functions that are called before the engine is stopped, to end streams that do not read it."""
        self._snapshot_functions = snapshots
        self._snapshots: dict[Callable[[Service], Any], Any] = {}
        # Weak references: an unreferenced generation is cancelled.
        self._generations: WeakSet[Generation] = WeakSet()

    async def stop_engine(self) -> None:
        """Stops the engine. Every open stream ends with an error."""
        for call in self.at_stop:
            call()
        self.auto_pinner.close()
        await self.lifecycle.stop()

    async def stop(self) -> None:
        """Stops the engine, and waits briefly for open streams to report that to their clients."""
        await self.stop_engine()
        if ends := [asyncio.create_task(generation.closed.wait()) for generation in self._generations]:
            await asyncio.wait(ends, timeout=CLOSE_GRACE_S)
        await self.recordings.close()
        self.executor.close()

    @property
    def build(self) -> str:
        """Version and commit of the build, see [`build_info`]. Its first call takes milliseconds and is made during the start."""
        return build_info()

    @property
    def chat(self) -> ChatPipeline:
        """The chat pipeline of the loaded model."""
        return self.lifecycle.chat

    async def compiled_chat(self) -> ChatPipeline:
        """Returns the chat pipeline with its template compiled, which would block the event loop if done there.

        Raises:
            TextsWaitingError: Too much work is queued.
        """
        if not self.chat.is_compiled:
            # Waits in the queue behind the compilation that the start began.
            await self.executor.run_in_thread(Purpose.PROMPT, 0, self.chat.compile)
        return self.chat

    def snapshot(self, make: "Callable[[Service], T]") -> T:
        """Returns `make(self)`, or the result stored when the model was unloaded. `make` must be one of `snapshots`."""
        return make(self) if self.engine.is_running else cast("T", self._snapshots[make])

    def previous_snapshot(self, make: "Callable[[Service], T]") -> T | None:
        """Returns the result of `make` from the last unloading, or None if the model was never unloaded."""
        return self._snapshots.get(make)

    def _take_snapshots(self) -> None:
        self._snapshots = {make: make(self) for make in self._snapshot_functions}

    @property
    def is_idle(self) -> bool:
        """True if no completions or embeddings are in progress."""
        return not self._generations and not self.n_embeddings

    @property
    def state(self) -> EngineState:
        """Lifecycle state of the engine."""
        state = self.lifecycle.state
        if state is not EngineState.READY or not self.engine.is_running:
            return state
        is_busy = self.n_embeddings > 0 or any(slot.is_processing for slot in self.engine.stats().slots)
        return EngineState.RUNNING if is_busy else state

    @property
    def model_name(self) -> str:
        """Name of the model in responses, also available before it is loaded."""
        return self.settings.model_name or Path(self.engine.path).name

    @property
    def quantization(self) -> str:
        """Types of the model's weights: llama.cpp's description without the architecture and the size."""
        return " ".join(self.engine.model.description.split(" ")[2:])

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
        return [vectors] if self.lifecycle.makes_only_embeddings else ["completion", *media, vectors]

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
            NotSupportedError: The server or the model computes embeddings only.
            CrossOriginError: A page of an untrusted origin requests `explain_cache`, which reveals texts of other clients.
        """
        if submission.template.explain_cache:
            require_trusted_sender("the field explain_cache")
        submission = await self.with_media_read(submission)
        # Reading the vocabulary takes up to a third of a second for 150,000 entries.
        size = LONG_TEXT + 1 if submission.scans_vocabulary else submission.size
        owner, schema_parts = current_owner(), SchemaParts(submission.response_fields)
        started = await self.executor.run(Purpose.PROMPT, size, self._start_generation, submission, owner, schema_parts)
        return self.track(
            Generation(submission, *started, self.usage_counters, owner=owner, schema_parts=schema_parts, form=form)
        )

    def _start_generation(
        self, submission: Submission, owner: str | None, schema_parts: SchemaParts
    ) -> tuple[list[Request], list[Stream]]:
        """Tokenizes every prompt, submits its request, and parses the schemas for the response's fields."""
        requests = self.request_builder.requests(submission, owner)
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
                "prompt", "a prompt with images or audio cannot be combined with a suffix; leave the suffix out"
            )
        if submission.template.prompt_logprobs is not None:
            message = "prompt_logprobs is not supported for a prompt with images or audio; leave it out"
            raise submission.rename_parameter(InvalidRequestError("prompt_logprobs", message))
        return msgspec.structs.replace(submission, prompts=await self.with_media(submission.prompts))

    async def with_media(self, prompts: Sequence[SentPrompt]) -> Sequence[SentPrompt]:
        """Returns the prompts with their images and audio decoded. Raises as `MediaReader.read`."""
        files = [file for prompt in prompts if isinstance(prompt, MediaPrompt) for file in prompt.files()]
        if not files:
            return prompts
        media = iter(await self.media.read(files))
        return [prompt.read(media) if isinstance(prompt, MediaPrompt) else prompt for prompt in prompts]

    def track(self, generation: Generation) -> Generation:
        """Lists a generation until it is dropped, and returns it."""
        self._generations.add(generation)
        return generation

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

    async def tokenize(self, pieces: Sequence[Piece], *, add_special: bool, parse_special: bool) -> Sequence[int]:
        """Returns the tokens of texts and tokens. Opening tokens are added only if the first piece is text."""
        more = {"add_special": add_special, "parse_special": parse_special}
        return await self.executor.run(Purpose.TEXT, size_of(pieces), self.request_builder.tokens, pieces, **more)

    async def prompt_tokens(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Returns the tokens of a prompt for the engine.

        Raises:
            ContextOverflowError: The prompt cannot fit.
        """
        return await self.executor.run(Purpose.PROMPT, size_of(pieces), self.request_builder.prompt, pieces)


def _schemas(requests: Sequence[Request]) -> set[str]:
    """Returns the JSON schemas that constrain branches. All prompts have the same ones."""
    schemas = [of.get("json_schema") for request in requests[:1] for of in ({"json_schema": request.schema}, *request.branches)]
    return {schema for schema in schemas if isinstance(schema, str)}
