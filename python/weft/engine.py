"""The engine for async Python."""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import msgspec

from weft import _native
from weft._native import (
    Adapter,
    CachedNode,
    Compute,
    Limits,
    Media,
    MixedPrompt,
    Model,
    Prefix,
    RecentStep,
    SavedPrefix,
    Slot,
    Stats,
    Stream,
)
from weft.answer import MAX_BYTES, Answer
from weft.config import EngineConfig, EngineOptions
from weft.demo import DEMO_MODEL
from weft.embedding import Embedding
from weft.errors import EngineStopped, InvalidRequest, WeftError
from weft.installed.platform import free_memory_bytes
from weft.prefix import PrefixFile
from weft.request import Prompt, Request, RequestOptions
from weft.request.branches import branch_requests
from weft.work import tuning
from weft.work.cache import CacheWork
from weft.work.threads import LONG_TEXT, For, Threads

if TYPE_CHECKING:
    from weft.chat.format import ChatPrompt
    from weft.chat.replies import ChatAnswer
    from weft.chat.request import ChatOptions, Messages, Templates
    from weft.infill import Snippet
    from weft.scoring import Continuation, Score, ScoreOptions

__all__ = ["Engine"]


class Engine(Embedding):
    """One model, one worker thread, one KV cache that all requests share.

    Making one loads nothing; `async with` or `await start()` does:

        async with Engine("model.gguf", n_slots=8) as engine:
            completion = await engine.complete("Once upon a time,", n=8, max_tokens=64)

    Once it is started, any thread and any event loop may use it, and several engines may live in one process. A forked child may
    not (`ForkedProcess`).

    Args:
        model: A GGUF file (of a split model, its first part); None is the demo model that ships with the package.
        config: How it is to be, whole; None is the default.
        on_progress: Called with the fraction that is loaded, 0 to 1, on the event loop that awaits `start`.
        **options: The fields of `EngineConfig`, which describes them; they replace those of `config`.

    Raises:
        TypeError: There is no setting of that name; the message has the nearest.
        InvalidConfig: A setting has the wrong type or is out of range.
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
        """Ends the last worker that was started."""
        self._stopping = threading.Lock()
        self._scales: list[tuple[int, float]] = []
        """Of the adapters, while it is asleep."""

    async def start(self) -> None:
        """Loads the model and starts the worker on another thread; the event loop goes on meanwhile.

        A start that fails or is cancelled closes the engine; what was being loaded goes as soon as it is there.

        Raises:
            ModelLoadError: The file is no model that can be run.
            InvalidConfig: Settings contradict each other, or do not fit the model or the memory.
            EngineStopped: The engine was closed, before or meanwhile.
            RuntimeError: It was started before.
        """
        if self._is_closed():
            raise EngineStopped
        if self._state != "new":
            raise RuntimeError("the engine was started before")
        self._state = "starting"
        try:
            await self._begin()
        except BaseException:
            self._state = "closed"
            raise

    async def sleep(self) -> None:
        """Lets the model go, with its worker and all that is cached, until `wake` loads it again; frees their memory.

        Every open stream ends with `EngineStopped`. Prefixes are pinned no longer; `copy_store` and `save_prefix` keep what was
        computed. Waits, on another thread, for the decode that is running.

        Raises:
            EngineStopped: The engine was closed.
            RuntimeError: It does not run.
        """
        scales = [(adapter.id, adapter.scale) for adapter in self.adapters]
        self._scales = scales
        self._state = "asleep"
        # It has the words of this model.
        self.__dict__.pop("_templates", None)
        self._native = None
        await self._threads.work(For.LIFE, self._end, self._stop)

    async def wake(self) -> None:
        """Loads the model again, after `sleep`; the adapters count as they did. The event loop goes on meanwhile.

        A load that fails or is cancelled leaves the engine asleep.

        Raises:
            ModelLoadError: The file is no model that can be run.
            InvalidConfig: Settings do not fit the model or the memory any more.
            InvalidRequest: The adapters that were on cannot be on together any more: their files are others now.
            EngineStopped: The engine was closed, before or meanwhile.
            RuntimeError: It is not asleep.
        """
        if self._is_closed():
            raise EngineStopped
        if not self.is_asleep:
            raise RuntimeError("the engine is not asleep")
        self._state = "starting"
        try:
            await self._begin(self._scales)
        except BaseException:
            if not self._is_closed():
                self._state = "asleep"
            raise

    async def _begin(self, scales: Sequence[tuple[int, float]] = ()) -> None:
        """Loads the model and starts the worker, with adapters of these scales; none are those of the configuration."""
        native = await self._threads.work(For.LIFE, self._load, self._report())
        # Runs at the latest when the interpreter exits: its libraries must not be torn down under a running worker.
        self._stop = weakref.finalize(self, _stop, native, os.getpid())
        try:
            if self._is_closed():
                raise EngineStopped
            if scales:
                native.set_adapters(scales)
        except WeftError:
            await self._threads.work(For.LIFE, self._end, self._stop)
            raise
        self._native = native
        self._state = "running"

    def _load(self, on_progress: Callable[[float], object] | None) -> _native.Engine:
        loaded = Model.load(self._path, self._config, on_progress=on_progress)
        kept = tuning.read(tuning.tune_file(loaded, tuning.Conditions.of(self._config))) if self._config.tuned else None
        return _native.Engine(loaded, self._config, tuned=None if kept is None else kept.choice)

    async def close(self) -> None:
        """Ends the worker and lets the model go. Idempotent; a closed engine does not start again.

        Every open stream ends with `EngineStopped`. Waits, on another thread, for the decode that is running.
        """
        self._state = "closed"
        # It holds the engine, as the engine holds it.
        self.__dict__.pop("_templates", None)
        self._native = None
        if self._stop is not None:
            await self._threads.work(For.LIFE, self._end, self._stop)

    def _end(self, stop: Callable[[], object] | None) -> None:
        """Ends a worker; where another thread is about that, waits for it."""
        with self._stopping:
            if stop is not None:
                stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def generate(self, prompt: Prompt | Request, **options: Unpack[RequestOptions]) -> Stream:
        """Queues a request and returns the stream of its events at once.

            async for event in engine.generate("Once upon a time,", n=8, max_tokens=64):
                match event:
                    case weft.Token(index, _, text): ...
                    case weft.Finished(index, reason): ...

        Whoever stops reading frees the slots: by `break` out of a loop that holds the only reference, as above, by `close()` or
        `aclose()`, by cancelling the task, or by dropping the stream.

        A prompt that is a string is tokenized here, on this thread, as `tokenize` does it; for a long one, give the tokens that
        `async_tokenize` returns.

        Args:
            prompt: What is to be continued, or a whole request. A list may hold strings, token ids and media:
                `["What is this? ", await engine.read_media(data), " It is"]`.
            **options: The other fields of the request; they replace those of a `Request` that is given as the prompt.

        Raises:
            InvalidRequest: A field has the wrong type or is out of range.
            ContextOverflow: The prompt alone fills the context.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was closed.
        """
        fields: dict[str, Any] = {**options}
        if isinstance(prompt, Request):
            request = msgspec.structs.replace(prompt, **fields) if fields else prompt
        else:
            request = Request(prompt=prompt, **fields)
        return self._submit(request)

    def _submit(self, request: Request) -> Stream:
        native = self._running()
        return native.submit(request, branch_requests(request)) if request.branches else native.submit(request)

    async def complete(
        self, prompt: Prompt | Request, *, max_bytes: int = MAX_BYTES, **options: Unpack[RequestOptions]
    ) -> Answer:
        """The whole answer: `generate`, read to its end. Cancelling it frees the slots.

        Args:
            prompt: As `generate` takes it.
            max_bytes: Most bytes of memory that the answer may take; see [`Answer.collect`][weft.Answer.collect].
            **options: The other fields of the request.

        Raises:
            AnswerTooLarge: The answer would take more than `max_bytes`.
            WeftError: What `generate` raises, and `DecodeError` where the model could not compute a step.
        """
        return await Answer.collect(self.generate(prompt, **options), max_bytes=max_bytes)

    async def score(
        self,
        prompt: str | Sequence[int],
        continuations: "Sequence[Continuation]",
        *,
        n_probs: int = 0,
        **options: "Unpack[ScoreOptions]",
    ) -> "list[Score]":
        """How likely each of some continuations is after a prompt, in their order.

            rain, snow = await engine.score("The sky is dark. Soon there will be", [" rain", " snow"])
            print(rain.logprob > snow.logprob, rain.tokens)

        The prompt is computed once, or not at all where it is cached, and the continuations together, as many at a time as there
        are slots. What earlier ones were told is told again without computing it.

        The tokens of a continuation stand behind those of the prompt as they are, not merged with them: a string is tokenized
        without the token that begins a text and without the space that some vocabularies put before one, and control tokens are
        not read in it. So `"A"` after `"Answer: "` and `" A"` after `"Answer:"` are different tokens; models expect the latter.

        Args:
            prompt: What stands before them, at least one token; a string is tokenized as `generate` does it.
            continuations: What may follow, each at least one token.
            n_probs: How many of the most likely tokens are told in the place of each, 0 to 1,000.
            **options: The fields of `Request` that count here.

        Raises:
            InvalidRequest: A text has no token, or a field has the wrong type or is out of range.
            ContextOverflow: The prompt with a continuation fills the context.
            QueueFull: `max_queue` requests of others wait already.
            DecodeError: The model could not compute a step.
            EngineStopped: The engine was closed.
        """
        return (await self.score_many([(prompt, continuations)], n_probs=n_probs, **options))[0]

    async def score_many(
        self,
        tasks: "Sequence[tuple[str | Sequence[int], Sequence[Continuation]]]",
        *,
        n_probs: int = 0,
        **options: "Unpack[ScoreOptions]",
    ) -> "list[list[Score]]":
        """What `score` says for each of some pairs of a prompt and its continuations; prompts share what they begin with.

        Raises:
            WeftError: What `score` raises.
        """
        from weft.scoring import continuation_tokens, scores  # noqa: PLC0415 (few score)

        def read(prompt: str | Sequence[int]) -> Sequence[int]:
            return self.tokenize(prompt) if isinstance(prompt, str) else prompt

        def go_on(text: "Continuation") -> Sequence[int]:
            return continuation_tokens(self.model, text) if isinstance(text, str) else text

        if any(isinstance(continuations, str) for _, continuations in tasks):
            raise InvalidRequest("continuations", "continuations must be a sequence of texts or of lists of tokens, not one text")
        read_tasks = [(read(prompt), [go_on(text) for text in continuations]) for prompt, continuations in tasks]
        return await scores(self, read_tasks, Request(prompt=(), **options), n_probs)

    def infill(
        self,
        prefix: str | Sequence[int],
        suffix: str | Sequence[int],
        *,
        begun: str | Sequence[int] = "",
        snippets: "Sequence[Snippet]" = (),
        suffix_first: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Stream:
        r"""Queues a request for what belongs between two texts, and returns the stream of its events as `generate` does.

            stream = engine.infill("def add(a, b):\n    ", "\n    return c", max_tokens=16)

        Texts are cut as [`weft.infill.infill_tokens`][] says, and not read for control tokens, but those of `begun`.

        Args:
            prefix: What stands before the gap.
            suffix: What stands behind it.
            begun: What of the gap is filled already.
            snippets: Pieces of other files that help.
            suffix_first: Puts the suffix before the prefix, as some models want it.
            **options: The other fields of the request.

        Raises:
            InvalidRequest: The model was not trained to fill gaps, or a field has the wrong type or is out of range.
            WeftError: What `generate` raises.
        """
        from weft.infill import infill_tokens  # noqa: PLC0415 (few fill gaps)

        def read(text: str | Sequence[int], *, parse_special: bool = False) -> Sequence[int]:
            return self.tokenize(text, add_special=False, parse_special=parse_special) if isinstance(text, str) else text

        prompt = infill_tokens(
            self.model,
            read(prefix),
            read(suffix),
            begun=read(begun, parse_special=True),
            snippets=snippets,
            n_batch=self.config.n_batch,
            n_ctx=self.limits.n_ctx_slot,
            n_predict=options.get("max_tokens"),
            suffix_first=suffix_first,
        )
        return self.generate(prompt, **options)

    async def chat(
        self,
        messages: "Messages",
        *,
        chat: "ChatOptions | None" = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        max_bytes: int = MAX_BYTES,
        **options: Unpack[RequestOptions],
    ) -> "ChatAnswer":
        """The whole answer to a chat: its next message, by the model's own template.

            answer = await engine.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=64)
            print(answer.reply.content)

        What is said in a message is never read as a control token, however it is spelt.

        Args:
            messages: What was said, by OpenAI's names.
            chat: How they become a prompt; see `weft.chat.request.ChatOptions`.
            tools: The functions that may be called, in OpenAI's way; `answer.reply.tool_calls` has the calls.
            tool_choice: `none`, `auto` (the default), `required`, or an object that names a function.
            max_bytes: Most bytes of memory that the answer may take.
            **options: The other fields of the request.

        Raises:
            InvalidRequest: A message or a field has the wrong type or is out of range, or the template refuses the messages.
            WeftError: What `complete` raises.
        """
        from weft.chat.replies import ChatAnswer  # noqa: PLC0415 (as with templates)

        given: dict[str, Any] = {"tools": tools, "tool_choice": tool_choice}
        more = {name: value for name, value in given.items() if value is not None}
        prompt = await self._templates.prompt(messages, **{**(chat or {}), **more})
        request = _asked(prompt, options)
        return ChatAnswer.of(await self.complete(request, max_bytes=max_bytes), prompt.answer_to(request))

    async def chat_request(
        self, messages: "Messages", *, chat: "ChatOptions | None" = None, **options: Unpack[RequestOptions]
    ) -> Request:
        """The request that `chat` makes, for `generate`, which streams its answer as it is written.

        Raises:
            InvalidRequest: A message has the wrong type, or the template refuses the messages.
            EngineStopped: The engine was closed.
        """
        return _asked(await self._templates.prompt(messages, **(chat or {})), options)

    async def apply_template(self, messages: "Messages", **chat: "Unpack[ChatOptions]") -> str:
        """The prompt that messages become, as a text: without the token that begins every text. The options are those of `chat`.

        Raises:
            InvalidRequest: A message has the wrong type, or the template refuses the messages.
        """
        return await self._templates.text(messages, **chat)

    @cached_property
    def _templates(self) -> "Templates":
        # Who never chats needs no Jinja.
        from weft.chat.request import Templates  # noqa: PLC0415

        return Templates(self, self._threads)

    @property
    def adapters(self) -> list[Adapter]:
        """The adapters (LoRA) that are loaded, each with its scale in requests that name none."""
        return self._running().adapters()

    def set_adapters(self, adapters: Sequence[tuple[int, float]]) -> None:
        """Requests that name no adapters get these from now on, as `Request.adapters`; what is not named is off.

        So do texts for vectors and for ranking, which name none.

        Raises:
            InvalidRequest: There is no such adapter, or a scale is no finite number; then nothing changes.
            EngineStopped: The engine was closed.
        """
        self._running().set_adapters(adapters)

    async def pin(self, prompt: str | Sequence[int], *, adapters: Sequence[tuple[int, float]] | None = None) -> Prefix:
        """Computes a prompt, as far as it is not cached, and keeps it computed until it is unpinned. Cancelling it pins nothing.

        It serves requests with the same `adapters`, which are as in `Request`.

        Raises:
            InvalidRequest: The prompt holds no tokens, or is none.
            ContextOverflow: The prompt alone fills the context.
            PinsFull: Pinned prefixes would take more than half of the cache.
            QueueFull: `max_queue` requests wait already.
            DecodeError: The model could not compute a step.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await self._work().pin(prompt, adapters)

    async def unpin(self, prefix: Prefix | int) -> bool:
        """Lets a pinned prefix be evicted again, given itself or its id. False where it is not pinned.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await self._threads.work(For.LOOK, self._running().unpin, prefix.id if isinstance(prefix, Prefix) else prefix)

    async def prefixes(self) -> list[Prefix]:
        """Every pinned prefix, in the order of their pinning.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await self._threads.work(For.LOOK, self._running().pinned)

    async def cached(self) -> list[CachedNode]:
        """What is cached: the prefix tree, parents before their children. Waits for the step that is running.

        Running streams wait while the tree is copied; `recently_used` copies only what it returns. Between two steps, the engine
        spends a bounded amount of work on such queries.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await self._threads.work(For.LOOK, self._running().cached)

    async def recently_used(self, limit: int) -> tuple[list[CachedNode], int]:
        """At most `limit` nodes of the prefix tree, and how many nodes there are in all: a large cache has tens of thousands.

        The most recently used come first. A node counts as used when something below it was: parents come before their
        children, and no node without its parent.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
            OverflowError: `limit` is below 0.
        """
        return await self._threads.work(For.LOOK, self._running().recently_used, limit)

    async def prefix_digest(self, key: bytes = b"", *, n_max: int = 8_192) -> tuple[bytes, bytes]:
        """Which prefixes are held in cells, and which only beside them, as hashes of their blocks of 64 tokens.

        A hash names a text from its beginning to the end of a block. Each is 8 bytes, the least byte first, and they are in the
        order of their numbers. `weft.ray.digest` makes the same hashes of a prompt. Only what other requests can use is told.

        Args:
            key: Of the hashes, at most 64 bytes: whoever does not know it cannot tell which texts these are.
            n_max: Most hashes. Where there are more, every second of each text is told, or every fourth, and so on.

        Raises:
            InvalidRequest: The key is longer.
            EngineStopped: The engine was closed, before or meanwhile.
            OverflowError: `n_max` is below 0.
        """
        return await self._threads.work(For.LOOK, self._running().prefix_digest, key, n_max)

    async def save_prefix(
        self,
        prompt: str | Sequence[int],
        path: str | os.PathLike[str],
        *,
        compute: bool = True,
        adapters: Sequence[tuple[int, float]] | None = None,
        invoked_at: int | None = None,
    ) -> PrefixFile:
        """Saves the computed state of a prompt to a file, which `load_prefix` of an engine with the same model and cache takes.

        Cancelling it frees the slot; a file that is being written by then is written to its end.

        Args:
            prompt: The prefix; what is not cached of it is computed first.
            path: The file; one that is there is replaced at the end.
            compute: False saves only as much as is cached.
            adapters: Which adapters it is computed with, as in `Request`; the file knows them, and serves requests with the same.
            invoked_at: From which token on an activated one of them (aLoRA) counts; None is the last place of its invocation.

        Raises:
            InvalidRequest: The prompt holds no tokens, or is none, or nothing of it could be copied.
            ContextOverflow: The prompt alone fills the context.
            QueueFull: `max_queue` requests wait already.
            DecodeError: The model could not compute a step.
            EngineStopped: The engine was closed, before or meanwhile.
            ModelLoadError: The model's own file is gone, or has changed since it was loaded.
            OSError: The file cannot be written.
        """
        return await self._work().save(prompt, path, compute=compute, adapters=adapters, invoked_at=invoked_at)

    async def load_prefix(self, path: str | os.PathLike[str], *, slot: int | None = None) -> PrefixFile:
        """Loads what `save_prefix` has saved: a request that begins like it computes only what is new. Cancelling loads nothing.

        Args:
            path: The file.
            slot: Waits for this slot and lets it hold the prefix; None takes any.

        Raises:
            PrefixFileError: The file is of another model, another kind of cache or an adapter that is not loaded, or damaged.
            InvalidRequest: There is no such slot.
            ContextOverflow: The prefix alone fills the context.
            QueueFull: `max_queue` requests wait already.
            EngineStopped: The engine was closed, before or meanwhile.
            ModelLoadError: The model's own file is gone, or has changed since it was loaded.
            OSError: The file cannot be read.
        """
        return await self._work().load(path, slot)

    async def copy_store(self, *, goes_on: Callable[[], bool] = lambda: True) -> list[SavedPrefix]:
        """Copies of what is cached beside the context, for `load_copies` after the engine has slept and woken.

        They are of whole prompts, the most recently used first, and take no more memory than that did, nor more than half of what
        is free: where prompts share much, not all are kept. Prompts of other adapters than those set, and those with pictures or
        sounds, are left out.

        Args:
            goes_on: Asked before each copy; False leaves it at those that there are.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
        """
        max_bytes = min(self.stats().store.n_bytes, free_memory_bytes() // 2)
        return await self._work().copies(max_bytes, goes_on)

    async def load_copies(self, copies: Sequence[SavedPrefix]) -> None:
        """Brings back what `copy_store` has copied: a request that begins like it computes only what is new.

        Raises:
            EngineStopped: The engine was closed, before or meanwhile.
        """
        await self._work().bring(copies)

    async def slot_tokens(self, slot: int) -> list[int]:
        """The tokens that a slot holds: those that its sequence has computed, or the last one's that ran there.

        A prompt that is pinned, saved, or loaded into no slot in particular runs in a free slot and leaves what that holds.

        Raises:
            InvalidRequest: There is no such slot.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        tokens, _, _ = await self.held_by_slot(slot)
        return tokens

    async def held_by_slot(self, slot: int) -> tuple[list[int], list[tuple[int, float]], int | None]:
        """What `slot_tokens` gives, the adapters that these tokens were computed with, as in `Request`, and `invoked_at`.

        That is the token from which on an activated adapter (aLoRA) counts, as `save_prefix` takes it; None where there is none.

        Raises:
            InvalidRequest: There is no such slot.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await self._threads.work(For.LOOK, self._running().held_by_slot, slot)

    async def erase_slot(self, slot: int) -> int:
        """Forgets the tokens that a slot holds, once nothing runs there; what else is cached stays. Returns how many they were.

        Raises:
            InvalidRequest: There is no such slot.
            EngineStopped: The engine was closed, before or meanwhile.
        """
        return await self._work().erase(slot)

    async def read_media(self, data: bytes) -> Media:
        """A picture (PNG, JPEG, GIF, BMP, WebP) or a sound (WAV, MP3, FLAC, Ogg Vorbis) for prompts, from the bytes of its file.

        It is decoded on another thread. The projector sees it on a thread of its own, beside the decode, when a request wants
        it first; what comes of it is kept, up to 256 MiB for all, and in the prefix tree like any other part of a prompt.

        Raises:
            NotSupported: The model was loaded without a projector (`EngineConfig.mmproj`).
            InvalidRequest: It is none of these, damaged, too large, or nothing that this projector reads; the message says which.
            QueueFull: 1 GiB of media is loaded and not let go.
            EngineStopped: The engine was closed.
        """
        return await self._threads.work(For.MEDIA, self.model.read_media, data)

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text; the defaults are how `generate` reads a prompt.

        It blocks this thread, and with it the event loop, for 0.2 to 5 µs per byte; `async_tokenize` does not.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds the tokens that begin and end a text, where the vocabulary asks for them.
            parse_special: Reads the spelling of a control token as that token.

        Raises:
            InvalidRequest: `text` has a lone surrogate, or a run of characters that this vocabulary's expressions cannot read.
        """
        return self.model.tokenize(text, add_special=add_special, parse_special=parse_special)

    async def async_tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True) -> Sequence[int]:
        """Returns what `tokenize` returns, without blocking the event loop: a long text is tokenized on another thread.

        The result may be the prompt of a request: `engine.generate(await engine.async_tokenize(book))`. It is one compact object
        where the text is long. Cancelling stops the work.

        Args:
            text: The text; bytes need not be UTF-8.
            add_special: Adds the tokens that begin and end a text, where the vocabulary asks for them.
            parse_special: Reads the spelling of a control token as that token.

        Raises:
            InvalidRequest: `text` has a lone surrogate, or a run of characters that this vocabulary's expressions cannot read.
        """
        if len(text) <= LONG_TEXT:
            return self.tokenize(text, add_special=add_special, parse_special=parse_special)
        tokenize = self.model.token_ids
        return await self._threads.work(For.TEXT, tokenize, text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int] | MixedPrompt) -> str:
        """The text that token ids stand for: control tokens as they are spelt, U+FFFD for bytes that are no UTF-8.

        A picture or a sound, whose places have ids below 0, is `<__media__>`.

        Raises:
            InvalidRequest: A token is outside of the vocabulary.
        """
        return self.model.detokenize(tokens)

    @property
    def path(self) -> str:
        """The model's file, before it is loaded too."""
        return self._path

    @property
    def has_files(self) -> bool:
        """Whether the files of the model are here, or are taken to be: an engine whose start brings them has them then."""
        return True

    @property
    def is_running(self) -> bool:
        """Whether the worker thread lives: it was started, was not stopped and has not died."""
        return self._native is not None and self._native.is_running

    @property
    def is_asleep(self) -> bool:
        """Whether `sleep` has let the model go, and `wake` has not brought it back."""
        return self._state == "asleep"

    def stats(self) -> Stats:
        """What the engine is doing, as of its last step."""
        return self._running().stats()

    def recent_steps(self) -> list[RecentStep]:
        """The last steps that computed or moved something, oldest first; at most 64."""
        return self._running().recent_steps()

    @property
    def slots(self) -> list[Slot]:
        """What each slot is doing, as of the last step."""
        return self.stats().slots

    @property
    def config(self) -> EngineConfig:
        """How it was asked to be; `limits` and `compute` say what came of it."""
        return self._config

    @property
    def model(self) -> Model:
        """The loaded model."""
        return self._running().model

    @property
    def limits(self) -> Limits:
        """The numbers that were settled when the engine started."""
        return self._running().limits

    @property
    def is_repeatable(self) -> bool:
        """Whether a seeded request gives the same text whoever else is served, and wherever its prompt is cached.

        It does where Weft's own kernels compute all of the model, on the CPU, and every layer sees the whole text.
        """
        return self._running().is_repeatable

    @property
    def embeddings_are_repeatable(self) -> bool:
        """Whether a text has the same embedding, bit by bit, whatever is computed concurrently.

        It has where Weft's own kernels compute all of a model that continues texts, on the CPU, and no layer keeps a state.
        Elsewhere the cosine of two embeddings of one text is at least 0.999999.
        """
        return self._running().embeddings_are_repeatable

    @property
    def compute(self) -> Compute:
        """How steps are computed, and why so."""
        return self._running().compute

    def _report(self) -> Callable[[float], object] | None:
        on_progress = self._on_progress
        if on_progress is None:
            return None
        loop = asyncio.get_running_loop()
        return lambda fraction: loop.call_soon_threadsafe(on_progress, fraction)

    def _work(self) -> CacheWork:
        return CacheWork(self._running(), self._threads)

    def _is_closed(self) -> bool:
        return self._state == "closed"

    def _running(self) -> _native.Engine:
        if self._native is not None:
            return self._native
        if self._is_closed():
            raise EngineStopped
        if self.is_asleep:
            raise RuntimeError("the engine is asleep; `await engine.wake()` loads the model again")
        raise RuntimeError("the engine is not started; use `async with` or `await engine.start()`")


def _stop(native: _native.Engine, process_id: int) -> None:
    # A forked child runs this at its exit too, and has no worker to stop.
    if os.getpid() == process_id:
        native.stop()


def _asked(prompt: "ChatPrompt", options: Mapping[str, Any]) -> Request:
    """The request that a chat becomes."""
    fields: dict[str, Any] = {"prompt": prompt.tokens, "snapshots_at": prompt.turn_ends, **options}
    request = Request(**fields)
    return request if prompt.held is None else prompt.held.request(request)
