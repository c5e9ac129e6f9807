"""The engine as HTTP sees it: loading or ready, and the requests that run on it."""

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
    ContextOverflow,
    Engine,
    EngineStopped,
    InvalidConfig,
    InvalidRequest,
    Media,
    MixedPrompt,
    PinsFull,
    Request,
    Stream,
    WeftError,
)
from weft._native import Biases, Model, SavedPrefix, TokenIds
from weft.chat.conversation import Chat
from weft.chat.format import ChatFormat, ChatPrompt
from weft.infill import infill_tokens, missing
from weft.request.branches import BRANCH_FIELDS
from weft.server.auth import current_owner
from weft.server.errors import NotSupportedError, StillLoadingError
from weft.server.refusals import Refusals
from weft.server.run.aside import LONG_TEXT, Aside, Purpose
from weft.server.run.collected import answers_room
from weft.server.run.engine_state import EngineState
from weft.server.run.generation import Generation
from weft.server.run.hints import Hints
from weft.server.run.media import MediaReader
from weft.server.run.media_files import MediaFile, MediaPrompt
from weft.server.run.patience import n_body_bytes
from weft.server.run.pins import Pins
from weft.server.run.recording import Recordings
from weft.server.run.schema_parts import SchemaParts
from weft.server.run.sleep import Sleep
from weft.server.run.submission import ForkAsked, Gap, Piece, SentPrompt, Submission, size_of
from weft.server.run.system_prompt import CommonPrompt
from weft.server.run.tally import Tally
from weft.server.run.turns import Turns
from weft.server.slot_files import SlotFiles
from weft.server.web_policy import require_trusted_sender
from weft.serving.build import build_info
from weft.settings import Settings
from weft.settings.system_prompt import SystemPrompt

__all__ = ["Service"]

logger = logging.getLogger(__name__)

Made = TypeVar("Made")

MESSAGE_SIZE = 64
"""What a message costs beside its text, in characters of it: it is gone through, disguised and rendered."""

LIVENESS_S = 0.25
"""How often the engine is asked whether it still runs."""

MAX_PROMPT_LOGPROBS = 1 << 20
"""Most log-probabilities that are told of the tokens of a request's prompts, some 60 MB of JSON: all of them are kept until the
prompt can be shown."""

FAREWELL_S = 1.0
"""How long open streams have, after the engine was stopped, to tell their clients."""


MAX_READ_AGAIN = 65_536
"""Characters that forks may read again, together, for the stream of a chat: some milliseconds' work on the event loop."""


class Service:
    """One engine, its settings, and the generations that run on it."""

    def __init__(self, engine: Engine, settings: Settings, remembered: "Sequence[Callable[[Service], object]]" = ()) -> None:
        """Makes a service of an engine that does not run yet.

        Args:
            engine: The engine.
            settings: What requests leave unsaid.
            remembered: What is made of the running engine and told while the model is unloaded, as [`Service.told`] does.
        """
        self.engine = engine
        self.settings = settings
        self.started_s = int(time.time())
        """When the server was started, in seconds since 1970: by it a reader of its counters knows that they began again."""
        self.tally = Tally()
        self.chat = ChatFormat(engine, settings, self.tally.count_unread_call)
        self.pins = Pins(engine)
        self.common_prompt = CommonPrompt(engine, lambda text: self.prompt_tokens([text]))
        self.refusals = Refusals()
        self.aside = Aside()
        self.media = MediaReader(engine, self.aside, folder=settings.media_path, hosts=settings.allow_media_urls)
        self.collected = answers_room()
        self.looks = Turns()
        """Looks at the cache, each of which waits for a step and may hold ten thousand nodes."""
        self.slot_files = SlotFiles(engine, settings.slot_save_path, self.aside)
        self.tells_texts = os.environ.get("LLAMA_SERVER_SLOTS_DEBUG", "") not in ("", "0")
        """Whether `/slots` tells prompts and what was written: llama-server's variable for it."""
        self.loading: Mapping[str, Any] = {}
        """How far the model is, where that takes long: those who ask meanwhile are told."""
        self.n_vectors = 0
        """Requests whose vectors are computed, or wait for it."""
        self.sleep = Sleep(settings.sleep_idle_s, let_go=self._let_go, bring_back=self._bring_back)
        self.hints = Hints(engine, self.pins, self.sleep, self.looks)
        self.recordings = Recordings(self.sleep.request)
        """Streams that outlive their readers."""
        self._remembered = remembered
        self._kept: dict[Callable[[Service], Any], Any] = {}
        self._copies: list[SavedPrefix] = []
        """What was cached beside the context, while the model is unloaded."""
        self._is_started = False
        self._is_ready = False
        self._is_stopping = False
        self._failure: Exception | None = None
        # Weak, because a generation that nobody holds is cancelled.
        self._generations: WeakSet[Generation] = WeakSet()

    async def start(self, loading: Awaitable[None] | None = None) -> None:
        """Loads the model; until this returns, requests are refused with [`StillLoadingError`].

        `loading` is what `engine.start()` has made, where that was called before.

        Raises:
            ModelLoadError: the file is no model that can be run.
            InvalidConfig: a setting does not fit the model.
            RuntimeError: the engine was started before.
        """
        self._is_started = True
        try:
            await (loading or self.engine.start())
            self.chat.check_settings()
            await self._check_defaults()
            if self.settings.restore_prompt is not None:
                await self.engine.load_prefix(self.settings.restore_prompt)
            if (given := self.settings.system_prompt) is not None:
                await self._begin_with(given)
        except Exception as error:
            self._failure = error
            if not isinstance(error, WeftError):
                logger.exception("the engine cannot be started")
            raise
        self._is_ready = True
        self.sleep.start()
        self.aside.begin(Purpose.PROMPT, self._compile)
        self.aside.begin(Purpose.PROMPT, build_info)

    @property
    def build(self) -> str:
        """Which build answers, as [`build_info`] says. It takes milliseconds the first time, so it is asked once beforehand."""
        return build_info()

    def _compile(self) -> None:
        """Called on another thread: only chats wait for it, and those who ask what chats can do."""
        try:
            self.chat.compile()
        except EngineStopped:
            pass  # Nobody needs it any more.
        except Exception:
            logger.exception("the chat template cannot be compiled")

    async def compiled_chat(self) -> ChatFormat:
        """How chats are written, once the template is compiled: to begin with it would hold the event loop up.

        Raises:
            TextsWaitingError: too much waits to be read.
        """
        if not self.chat.is_compiled:
            # Behind the compilation that has begun.
            await self.aside.elsewhere(Purpose.PROMPT, 0, self.chat.compile)
        return self.chat

    async def _check_defaults(self) -> None:
        """Reads what the settings hold completions to, which else is read with each request: a wrong one is no client's fault."""
        grammar, json_schema, logit_bias = self.settings.grammar, self.settings.json_schema, self.settings.sampling.logit_bias
        if self._makes_only_vectors or not (grammar or json_schema or logit_bias):
            return
        # Such a prompt is refused, after everything else of its request was read.
        too_long = [0] * self.engine.limits.n_ctx_slot
        asked = Request(prompt=too_long, grammar=grammar, json_schema=json_schema, logit_bias=logit_bias)
        try:
            await self.aside.elsewhere(Purpose.PROMPT, 0, self.engine.generate, asked)
        except ContextOverflow:
            pass
        except InvalidRequest as error:
            raise InvalidConfig(error.param, error.message) from None

    async def _begin_with(self, system_prompt: SystemPrompt) -> None:
        """Computes the system prompt of the settings."""
        try:
            async with self.common_prompt.changed(system_prompt):
                pass
        except (ContextOverflow, PinsFull) as error:
            raise InvalidConfig("system_prompt", str(error)) from None

    async def _let_go(self, is_needed: Callable[[], bool]) -> bool:
        """Unloads the model; False where a request has come before that has begun."""
        await self.pins.remember()
        copies = await self.engine.copy_store(goes_on=lambda: not is_needed())
        if is_needed():
            return False
        self._kept = {make: make(self) for make in self._remembered}
        logger.info("no request for %g s: unloading the model, which the next one loads again", self.sleep.patience_s)
        await self.engine.sleep()
        # Only now: where the model stays, what is cached does too.
        self._copies = copies
        # Frames of errors that were caught refer to each other, and some to the model. Nobody waits just now.
        gc.collect()
        return True

    async def _bring_back(self) -> None:
        """Loads the model again, and brings back what is not the model's; where that fails, the model is unloaded as before."""
        began = time.monotonic()
        try:
            await self._load_again()
        except EngineStopped:
            raise
        except Exception as error:
            logger.error("the model cannot be loaded again: %s", error)
            if self.engine.is_running:
                await self.engine.sleep()
            raise
        logger.info("the model is loaded again after %.1f s", time.monotonic() - began)

    async def _load_again(self) -> None:
        if not self.engine.is_running:
            await self.engine.wake()
        # The file may have been replaced.
        self.chat = ChatFormat(self.engine, self.settings, self.tally.count_unread_call)
        self.chat.check_settings()
        self.chat.compile()
        await self.engine.load_copies(self._copies)
        try:
            if self.settings.restore_prompt is not None:
                await self.engine.load_prefix(self.settings.restore_prompt)
        except EngineStopped:
            raise
        except (WeftError, OSError) as error:
            logger.warning("the prompt that was saved could not be brought back: %s", error)
        common = self.common_prompt.prefix
        pinned = await self.pins.again()
        self.common_prompt.stands_in(None if common is None else pinned.get(common.id))
        # Only now: whoever tries again after a failure needs them.
        self._copies = []

    def told(self, make: "Callable[[Service], Made]") -> Made:
        """What `make`, one of `remembered`, makes of the running engine or, while the model is unloaded, what it made before."""
        return make(self) if self.engine.is_running else cast("Made", self._kept[make])

    def told_before(self, make: "Callable[[Service], Made]") -> Made | None:
        """What `make` made when the model was last unloaded; None where it never was."""
        return self._kept.get(make)

    async def until_dead(self) -> None:
        """Returns when the engine of a service that was started runs no more though nobody stopped it."""
        while self._is_stopping or self._is_alive:  # noqa: ASYNC110 (a thread that dies rings no bell)
            await asyncio.sleep(LIVENESS_S)

    @property
    def _is_alive(self) -> bool:
        """Whether the engine runs, or will where a request comes."""
        if self.engine.is_running:
            return True
        return not self.sleep.is_awake and (self.sleep.is_turning or self.engine.is_asleep)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is written, and no vectors are computed."""
        return not self._generations and not self.n_vectors

    async def stop_engine(self) -> None:
        """Stops the engine: every open stream ends with an error that says so."""
        self._is_stopping = True
        self.hints.close()
        self.sleep.stop()
        await self.engine.close()

    async def stop(self) -> None:
        """Stops the engine, and gives the open streams a moment to say so to their clients."""
        await self.stop_engine()
        if ends := [asyncio.create_task(generation.closed.wait()) for generation in self._generations]:
            await asyncio.wait(ends, timeout=FAREWELL_S)
        await self.recordings.close()
        self.aside.close()

    def refusal(self) -> Exception | None:
        """Why no request can be served now: the model is being loaded, cannot be loaded, or the engine runs no more."""
        if self._failure is not None:
            return self._failure
        if not self._is_ready:
            return StillLoadingError(self.loading)
        return None if self._is_alive and not self._is_stopping else EngineStopped()

    @property
    def state(self) -> EngineState:
        """What the engine is about."""
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
        """What answers call the model, before it is loaded too."""
        return self.settings.model_name or Path(self.engine.path).name

    @property
    def capabilities(self) -> list[str]:
        """What the model is served for, in llama-server's words; it makes vectors beside whatever it writes."""
        vectors = "reranking" if self.engine.vector_stats().pooling == "rank" else "embedding"
        modalities = self.engine.model.modalities
        media = ["multimodal"] if modalities.vision or modalities.audio else []
        return [vectors] if self._makes_only_vectors else ["completion", *media, vectors]

    @property
    def _makes_only_vectors(self) -> bool:
        return self.engine.model.is_encoder or self.settings.embeddings or self.settings.reranking

    async def submit(self, asked: Submission) -> Generation:
        """Submits one request for each prompt: all of them, or none.

        Raises:
            ContextOverflow: a prompt does not fit.
            InvalidRequest: a field is out of range.
            QueueFull: too many requests wait.
            TextsWaitingError: too many texts wait.
            ClientLeftError: the client has left.
            EngineStopped: the engine was stopped.
            NotSupportedError: the server makes vectors only.
            NotSupported: the model does.
            CrossOriginError: a page of another origin asks for `explain_cache`, which shows texts of other clients.
        """
        if asked.template.explain_cache:
            require_trusted_sender("the field explain_cache")
        asked = await self.with_media_read(asked)
        # With a vocabulary of 150,000 pieces that takes up to a third of a second.
        size = LONG_TEXT + 1 if asked.looks_through_vocabulary else asked.size
        schema_parts = SchemaParts(asked.response_fields)
        begun = await self.aside.work(Purpose.PROMPT, size, self._begin, asked, current_owner(), schema_parts)
        generation = Generation(asked, *begun, self.tally, owner=current_owner(), schema_parts=schema_parts)
        self._generations.add(generation)
        return generation

    async def fork(self, generation: Generation, prompt: int, place: int, asked: ForkAsked) -> list[int] | Generation:
        """Forks a branch: the numbers of its forks in its own stream, or what they write in theirs.

        Raises:
            InvalidRequest: a field is out of range, or the forks cannot be told where they are to come.
            WeftError: what [`Stream.fork`][weft.Stream.fork] raises.
        """
        if not asked.own_stream and not generation.takes_forks:
            message = "the answer to this request has no room for forks; set stream to true, which gives them one of their own"
            raise InvalidRequest("stream", message)
        size = LONG_TEXT + 1 if asked.looks_through_vocabulary else asked.size
        told = (generation.asked.prompts[prompt], asked, generation.schema_parts)
        options, append = await self.aside.work(Purpose.PROMPT, size, self._fork_options, *told)
        making = asyncio.create_task(self._make_forks(generation, prompt, place, asked, options=options, append=append))
        try:
            # What was made is taken up, also where whoever asked has left: forks that nobody knows could not be cancelled.
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_close_unread)
            raise

    async def _make_forks(
        self, generation: Generation, prompt: int, place: int, asked: ForkAsked, *, options: dict[str, Any], append: list[int]
    ) -> list[int] | Generation:
        source = generation.branch(prompt, place)
        try:
            appended = self.engine.detokenize(append) if append else ""
        except InvalidRequest as error:
            raise InvalidRequest("append", error.message) from None
        if generation.reads_forks and not asked.own_stream:
            n_before = len(generation.text_before(prompt, place)) + len(generation.text(prompt, place)) + len(appended)
            if asked.n * n_before > MAX_READ_AGAIN:
                message = (
                    f"each of the {asked.n} forks would read {n_before} characters again for this chat's stream, {MAX_READ_AGAIN}"
                    " together at most; set stream to true, which gives them one of their own, or ask for fewer"
                )
                raise InvalidRequest("n", message)
        with generation.forking():
            made = await generation.streams[prompt].fork(
                place, n=asked.n, at=asked.at, unit=asked.unit, append=append or None, own_stream=asked.own_stream, **options
            )
            if isinstance(made, list):
                seed = options.get("seed")
                first = (source.seed or 0) - place + made[0] if seed is None else seed
                request = _forked(source, len(made), {**options, "seed": first % 2**32})
                n_probs = options.get("n_probs")
                asks_likely = generation.asks_likely(prompt, place) if n_probs is None else n_probs > 0
                generation.add_forks(prompt, made, request, appended, asks_likely=asks_likely)
                return made
        alone = msgspec.structs.replace(generation.asked, stream=True, branches=())
        requests = [_forked(source, asked.n, {**options, "seed": made.seed})]
        own = Generation(alone, requests, [made], self.tally, owner=generation.owner)
        self._generations.add(own)
        return own

    def _fork_options(self, sent: SentPrompt, asked: ForkAsked, schema_parts: SchemaParts) -> tuple[dict[str, Any], list[int]]:
        """What forks are asked for, and the tokens of what is appended to the text before them."""
        options = {**asked.options}
        if asked.logit_bias is not None:
            options["logit_bias"] = self._biases(asked.logit_bias)
        if asked.penalty_prompt is not None:
            options["penalty_prompt"] = self._penalty_prompt(asked.penalty_prompt)
        if isinstance(schema := options.get("json_schema"), str):
            schema_parts.of(schema)
        return options, self._tokens_on(asked.append, parse_special=_reads_special(sent))

    def check_writes(self) -> None:
        """Refuses what is to be written or scored where the server makes vectors only.

        Raises:
            NotSupportedError: it does.
        """
        if self.settings.embeddings or self.settings.reranking:
            flag = "--embeddings" if self.settings.embeddings else "--reranking"
            raise NotSupportedError(f"This server does not support completions. Start it without `{flag}`")

    async def with_media_read(self, asked: Submission) -> Submission:
        """The same with its pictures and sounds read, where they are not yet.

        Raises:
            InvalidRequest: what is asked of the prompts cannot be told of pictures and sounds.
            NotSupportedError: the server makes vectors only.
            WeftError: what `MediaReader.read` raises.
        """
        self.check_writes()
        if not any(isinstance(prompt, MediaPrompt) for prompt in asked.prompts):
            return asked
        if asked.gap is not None:
            raise InvalidRequest(
                "prompt", "a prompt with pictures or sounds cannot stand before a gap; leave out what follows it"
            )
        if asked.template.prompt_logprobs is not None:
            message = "prompt_logprobs cannot be told of a prompt with pictures or sounds; leave it out"
            raise asked.blame(InvalidRequest("prompt_logprobs", message))
        return msgspec.structs.replace(asked, prompts=await self.with_media(asked.prompts))

    async def with_media(self, prompts: Sequence[SentPrompt]) -> Sequence[SentPrompt]:
        """Prompts with their pictures and sounds read; it raises what `MediaReader.read` does."""
        files = [file for prompt in prompts if isinstance(prompt, MediaPrompt) for file in prompt.files()]
        if not files:
            return prompts
        media = iter(await self.media.read(files))
        return [prompt.read(media) if isinstance(prompt, MediaPrompt) else prompt for prompt in prompts]

    def adapters(self, asked: Sequence[tuple[int, float]] | None) -> Sequence[tuple[int, float]] | None:
        """Every loaded adapter with its scale, where these are asked for; None leaves the scales to the server.

        The answer tells them, and they are those of all prompts of a request, whatever is set meanwhile.
        """
        loaded = self.engine.adapters
        if asked is None:
            return [(adapter.id, adapter.scale) for adapter in loaded] or None
        scales = dict(asked)
        # What is not loaded is refused by the engine.
        return [*((adapter.id, scales.pop(adapter.id, 0.0)) for adapter in loaded), *scales.items()]

    def generations_of(self, owner: str | None) -> list[Generation]:
        """Those of one owner that are read."""
        return [one for one in list(self._generations) if one.owner == owner and not one.closed.is_set()]

    def find_generation(self, name: str, owner: str | None) -> Generation | None:
        """The generation of this owner with this id, which may stand behind a dash as in OpenAI's ids; None once it has ended."""
        _, _, own = name.rpartition("-")
        return next((one for one in self.generations_of(owner) if one.id == own), None)

    def generation_of(self, request_id: int) -> tuple[Generation, int] | None:
        """The generation of one of the engine's requests, and the position of its prompt there; None once nobody reads it."""
        for generation in list(self._generations):
            for prompt, stream in enumerate(generation.streams):
                if stream.request_id == request_id:
                    return generation, prompt
        return None

    def _begin(self, asked: Submission, owner: str | None, schema_parts: SchemaParts) -> tuple[list[Request], list[Stream]]:
        """Tokenizes every prompt, submits its request, and reads what is to be told of its schemas."""
        requests = self._requests(asked, owner)
        streams: list[Stream] = []
        try:
            for request in requests:
                streams.append(self.engine.generate(request))  # noqa: PERF401 (those before a failure must be closed)
            for schema in _schemas(requests):
                schema_parts.of(schema)
        except Exception as error:
            for stream in streams:
                stream.close()
            if isinstance(error, InvalidRequest):
                raise asked.blame(error) from None
            raise
        return requests, streams

    def _requests(self, asked: Submission, owner: str | None) -> list[Request]:
        limit = self.engine.limits.max_queue
        if len(asked.prompts) > limit:
            raise InvalidRequest("prompt", f"there are {len(asked.prompts)} prompts; at most {limit} may wait")
        slot = None if asked.slot is None else asked.slot % self.engine.limits.n_slots
        template = msgspec.structs.replace(
            asked.template,
            logit_bias=self._biases(asked.logit_bias),
            penalty_prompt=self._penalty_prompt(asked.penalty_prompt),
            adapters=self.adapters(asked.template.adapters),
            slot=slot,
            owner=owner,
            # Told to the log, where the body does not ask for it.
            explain_cache=asked.template.explain_cache or logger.isEnabledFor(logging.DEBUG),
        )
        if asked.gap is None:
            for prompt in asked.prompts:
                self.check_length(prompt)
            prompts: Iterable[Sequence[int] | MixedPrompt] = (self._prompt(prompt, asked.after) for prompt in asked.prompts)
        else:
            prefixes = [prompt for prompt in asked.prompts if not isinstance(prompt, MediaPrompt | MixedPrompt)]
            prompts = self._around_gap(prefixes, asked.gap, template.max_tokens)
        requests = [
            self._with_branches(msgspec.structs.replace(template, prompt=prompt), asked, sent)
            for prompt, sent in zip(prompts, asked.prompts, strict=True)
        ]
        if template.prompt_logprobs is not None:
            n_tokens = sum(len(request.prompt) for request in requests)
            if (error := _too_many_logprobs(template.prompt_logprobs, n_tokens)) is not None:
                raise asked.blame(error)
        return requests

    def _with_branches(self, request: Request, asked: Submission, sent: SentPrompt) -> Request:
        """The same with what follows its prompt, and with its branches, where they differ."""
        # Where a prompt came as tokens, no text of it is read for control tokens, and so none behind it.
        parse_special = _reads_special(sent)

        def suffix(pieces: Sequence[Piece]) -> Sequence[int] | None:
            return self._tokens_on(pieces, parse_special=parse_special) or None

        if asked.suffix:
            request = msgspec.structs.replace(request, suffix_prompt=suffix(asked.suffix))
        if not asked.branches:
            return request
        branches = [
            msgspec.structs.replace(
                branch.template,
                logit_bias=request.logit_bias if branch.logit_bias is asked.logit_bias else self._biases(branch.logit_bias),
                penalty_prompt=request.penalty_prompt
                if branch.penalty_prompt is asked.penalty_prompt
                else self._penalty_prompt(branch.penalty_prompt),
                adapters=self.adapters(branch.template.adapters),
                suffix_prompt=suffix(branch.suffix),
                seed=branch.template.seed if branch.has_seed else None,
            )
            for branch in asked.branches
        ]
        seed = int.from_bytes(os.urandom(4)) if request.seed is None else request.seed
        own = tuple(cast("BranchOptions", {name: getattr(one, name) for name in BRANCH_FIELDS}) for one in branches)
        return msgspec.structs.replace(request, seed=seed, branches=own)

    def _tokens_on(self, pieces: Sequence[Piece], *, parse_special: bool) -> list[int]:
        """The tokens of what follows a prompt."""
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
        """The prompts in which prefixes stand before a gap. They are cut where they are too long."""
        model = self.engine.model
        if lacks := missing(model):
            told = "".join(f"{name} token is missing. " for name in lacks)
            raise NotSupportedError(f"Infill is not supported by this model: {told}")
        plain = partial(self._tokens, add_special=False, parse_special=False)
        suffix, begun = plain(gap.suffix), self._tokens(gap.begun, add_special=False)
        for prefix in prefixes:
            yield infill_tokens(
                model,
                plain(prefix),
                suffix,
                begun=begun,
                snippets=gap.snippets,
                n_batch=self.engine.config.n_batch,
                n_ctx=self.engine.limits.n_ctx_slot,
                n_predict=n_predict,
                suffix_first=gap.suffix_first,
            )

    def check_length(self, pieces: SentPrompt) -> None:
        """Refuses what cannot fit, were all of its tokens as long as they can be, before any of it is tokenized.

        Raises:
            ContextOverflow: it cannot fit.
        """
        n_ctx = self.engine.limits.n_ctx_slot
        n_least = _n_least(pieces, self.engine.model)
        if n_least >= n_ctx:
            is_counted = isinstance(pieces, TokenIds | MixedPrompt) or not any(
                isinstance(piece, str) for piece in _pieces(pieces)
            )
            raise ContextOverflow(n_least, n_ctx, is_least=not is_counted)

    def _biases(self, biases: Sequence[tuple[Piece, float]]) -> Sequence[tuple[int, float]]:
        n_vocab = self.engine.model.n_vocab
        if len(biases) > n_vocab:
            raise InvalidRequest("logit_bias", f"there are {len(biases)} biases; the vocabulary has {n_vocab} tokens")
        if isinstance(biases, Biases):
            # Written now, and not when the event loop needs it.
            biases.json()
            return biases
        result = [
            (token, bias) for piece, bias in biases for token in self._tokens([piece], add_special=False, parse_special=False)
        ]
        if len(result) > n_vocab:
            raise InvalidRequest("logit_bias", f"there are biases of {len(result)} tokens; the vocabulary has {n_vocab} tokens")
        return self._biases(Biases(result)) if len(result) > LONG_TEXT else result

    def _penalty_prompt(self, pieces: Sequence[Piece] | None) -> Sequence[int] | None:
        if pieces is None:
            return None
        tokens = self._tokens(pieces, add_special=False, parse_special=False)
        if len(tokens) > LONG_TEXT:
            tokens = tokens if isinstance(tokens, TokenIds) else TokenIds(tokens)
            # As with biases.
            tokens.json()
        return tokens

    async def tokenize(self, pieces: Sequence[Piece], *, add_special: bool, parse_special: bool) -> Sequence[int]:
        """The tokens of texts and tokens. Only text that begins them gets the model's opening tokens."""
        more = {"add_special": add_special, "parse_special": parse_special}
        return await self.aside.work(Purpose.TEXT, size_of(pieces), self._tokens, pieces, **more)

    async def prompt_tokens(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """The tokens of a prompt for the engine.

        Raises:
            ContextOverflow: it cannot fit.
        """
        return await self.aside.work(Purpose.PROMPT, size_of(pieces), self.prompt_now, pieces)

    def prompt_now(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """The same on this thread.

        Raises:
            ContextOverflow: it cannot fit.
        """
        self.check_length(pieces)
        return self._tokens(pieces)

    def text_or_tokens(self, pieces: Sequence[Piece]) -> str | Sequence[int]:
        """A text as it is, or its tokens where it is made of several pieces."""
        return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], str) else self._tokens(pieces)

    async def chat_prompt(
        self, data: Chat, files: Sequence[MediaFile] = (), *, n_more: int = 0, with_system_end: bool = False
    ) -> ChatPrompt:
        """The prompt that a chat becomes, in tokens; `files` are its pictures and sounds.

        `n_more` bytes of what is said did not come with the body.

        Raises:
            ContextOverflow: it cannot fit.
            InvalidRequest: the messages are not what they must be, or the template refuses them.
            WeftError: what `MediaReader.read` raises.
        """
        media = await self.media.read(files)
        size, told = _size_of_chat(data, files) + n_more, {"with_system_end": with_system_end}
        chat = await self.compiled_chat()
        return await self.aside.work(Purpose.PROMPT, size, chat.prompt, data, media, **told)

    async def chat_text(self, data: Chat, files: Sequence[MediaFile] = ()) -> str:
        """The prompt that a chat becomes, as a text; it raises what `chat_prompt` does, but reads none of the files."""
        self.media.check(files)
        chat = await self.compiled_chat()
        return await self.aside.work(Purpose.TEXT, _size_of_chat(data, files), chat.text, data)

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
    """Nobody reads the stream of forks whose caller has left."""
    if not making.cancelled() and making.exception() is None and isinstance(made := making.result(), Generation):
        made.close()


def _reads_special(sent: SentPrompt) -> bool:
    """Whether texts behind a prompt are read for control tokens: its own were."""
    return isinstance(sent, MediaPrompt) or (
        not isinstance(sent, TokenIds | MixedPrompt) and any(isinstance(piece, str) for piece in sent)
    )


def _schemas(requests: Sequence[Request]) -> set[str]:
    """The schemas that branches are held to; those of one prompt are those of all."""
    asked = [of.get("json_schema") for request in requests[:1] for of in ({"json_schema": request.schema}, *request.branches)]
    return {schema for schema in asked if isinstance(schema, str)}


def _forked(source: Request, n: int, options: Mapping[str, Any]) -> Request:
    """What forks of a branch were asked for, for those who tell of them."""
    return msgspec.structs.replace(source, **{**options, "n": n, "branches": ()})


def _size_of_chat(data: Chat, files: Sequence[MediaFile]) -> int:
    """What it costs to make a prompt of a chat follows this: all that a template sees came in the body, and files it sees not."""
    n_bytes = n_body_bytes() - sum(len(file.source) for file in files)
    return max(n_bytes, 0) + MESSAGE_SIZE * len(data.messages or ())


def _too_many_logprobs(n_likely: int, n_tokens: int) -> InvalidRequest | None:
    n = n_tokens * (1 + max(n_likely, 0))
    if n <= MAX_PROMPT_LOGPROBS:
        return None
    message = f"prompt_logprobs asks for {n} log-probabilities of {n_tokens} tokens; at most {MAX_PROMPT_LOGPROBS} are told"
    return InvalidRequest("prompt_logprobs", message)


def _pieces(prompt: Sequence[Piece] | MediaPrompt) -> Sequence[object]:
    return prompt.pieces if isinstance(prompt, MediaPrompt) else prompt


def _n_least(pieces: SentPrompt, model: Model) -> int:
    """A number of tokens that pieces are at least. Where a token has at most so many bytes, characters are counted for them."""
    if isinstance(pieces, TokenIds | MixedPrompt):
        return len(pieces)
    longest = model.longest_piece

    def least(text: str) -> int:
        return model.least_tokens(text) if longest is None else -(-len(text) // longest)

    return sum(
        least(piece) if isinstance(piece, str) else piece.n_tokens if isinstance(piece, Media) else 1 for piece in _pieces(pieces)
    )
