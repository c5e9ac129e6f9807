"""An engine that does what a test writes down: for what a real one cannot be made to do when it is wanted."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Never, cast

import msgspec
from litestar.types import ASGIApp

import weft
from tests.server.matchers import Json
from weft._native import TokenIds

Step = Sequence[Any] | Exception


def token(index: int, text: str, n_predicted: int = 1) -> Json:
    return weft.Token(index, 7, text, slot=index, n_predicted=n_predicted)


ENDS: dict[str, tuple[str, str | int | None, bool]] = {
    "end": ("stop", None, False),
    "stop": ("stop", "STOP", False),
    "length": ("length", None, False),
    "context_full": ("length", None, True),
    "cancelled": ("cancelled", None, False),
}
"""Finish reason, stop reason, and whether the context was full, by a short name."""


def finished(index: int, text: str = "", reason: str = "end", n_predicted: int = 2) -> Json:
    usage = weft.Usage(n_computed=1, n_cached=2, n_predicted=n_predicted, n_context=4, prompt_ms=1.0, predicted_ms=1.0)
    finish_reason, stop_reason, is_full = ENDS[reason]
    return weft.Finished(index, cast("Any", finish_reason), usage, index, stop_reason, text, is_full)


def idle_slot(id_slot: int) -> Json:
    counts = {"n_prompt": 0, "n_computed": 0, "n_cached": 0, "n_predicted": 0, "n_remaining": 0}
    return SimpleNamespace(id=id_slot, is_processing=False, request_id=None, index=None, **counts)


def busy_slot(id_slot: int, request_id: int, index: int) -> Json:
    counts = {"n_prompt": 3, "n_computed": 1, "n_cached": 2, "n_predicted": 5, "n_remaining": 7}
    return SimpleNamespace(id=id_slot, is_processing=True, request_id=request_id, index=index, **counts)


class ScriptedStream:
    """Yields its steps, then waits for ever or until it is closed."""

    def __init__(self, steps: Sequence[Step], request_id: int = 0) -> None:
        self.request_id = request_id
        self.seed = 1
        self.n_prompt = 3
        self.explanation: weft.CacheExplanation | None = None
        self.is_closed = False
        self._steps = list(steps)

    async def readable(self) -> None:
        if not self._steps:
            await asyncio.get_running_loop().create_future()

    async def next_batch(self, *, compact: bool) -> Sequence[Any]:
        assert compact
        await self.readable()
        step = self._steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        self.is_closed = True


class PlainStream(ScriptedStream):
    """The same for a reader of plain log-probabilities; it ends after its steps."""

    async def next_batch(self, *, compact: bool = False) -> Sequence[Any]:
        assert not compact
        return await super().next_batch(compact=True) if self._steps else ()


class ScriptedEngine:
    """Loads when `loaded` is set; every request gets the next of `scripts`, or the error that stands in its place."""

    def __init__(self, *scripts: Sequence[Step] | Exception) -> None:
        self.loaded = asyncio.Event()
        self.streams: list[ScriptedStream] = []
        self.requests: list[weft.Request] = []
        self.failure: Exception | None = None
        self.is_running = False
        self.model = SimpleNamespace(
            path="/models/scripted.gguf",
            description="scripted 1B Q4_K - Medium",
            n_vocab=128,
            bos_token=None,
            eos_token=None,
            chat_template=None,
            metadata=dict,
            token_bytes=self._token_bytes,
            pieces_json=self._pieces_json,
            token_ids=lambda text, **more: TokenIds(self.tokenize(text, **more)),
            detokenize=self.detokenize,
            control_tokens=list,
            end_tokens=list,
            is_encoder=False,
            longest_piece=None,
            least_tokens=lambda text: 0,
            modalities=SimpleNamespace(vision=False, audio=False),
        )
        self.path = self.model.path
        self.has_files = True
        self.limits = SimpleNamespace(max_queue=8, n_slots=4, n_ctx=16_384, n_ctx_slot=4_096, forks_anywhere=True)
        self.compute = SimpleNamespace(summary="as it is written")
        self.is_repeatable = True
        self.no_speculation_reason = "it is turned off"
        self.embeddings_are_repeatable = True
        self.adapters: list[Json] = []
        self.slots: list[Json] = [idle_slot(id_slot) for id_slot in range(4)]
        """What `stats` tells of the slots."""
        self.loop_thread = 0
        self.threads: set[int] = set()
        """Threads that texts and tokens were worked on."""
        self.submitted_on: list[int] = []
        """The thread of each submission."""
        self.refused_on: list[int] = []
        """The thread of each whose prompt was too long."""
        self._scripts = list(scripts)

    async def start(self) -> None:
        self.loop_thread = threading.get_ident()
        await self.loaded.wait()
        if self.failure is not None:
            raise self.failure
        self.is_running = True

    async def close(self) -> None:
        self.is_running = False

    def tokenize(self, text: str, **_: bool) -> list[int]:
        self.threads.add(threading.get_ident())
        return [ord(character) for character in text]

    def detokenize(self, tokens: Sequence[int]) -> str:
        self.threads.add(threading.get_ident())
        return "".join(map(chr, tokens))

    def _token_bytes(self, token: int) -> bytes:
        self.threads.add(threading.get_ident())
        return chr(token).encode()

    def _pieces_json(self, tokens: Sequence[int]) -> bytes:
        return b",".join(msgspec.json.encode({"id": token, "piece": self._token_bytes(token).decode()}) for token in tokens)

    def stream(self, request: weft.Request) -> ScriptedStream:
        self._check_length(request)
        self.submitted_on.append(threading.get_ident())
        self.requests.append(request)
        script = self._scripts.pop(0)
        if isinstance(script, Exception):
            raise script
        self.streams.append(ScriptedStream(script, request_id=len(self.streams)))
        return self.streams[-1]

    def _check_length(self, request: weft.Request) -> None:
        if (n_prompt := len(request.prompt)) >= self.limits.n_ctx_slot:
            self.refused_on.append(threading.get_ident())
            raise weft.ContextOverflowError(n_prompt, self.limits.n_ctx_slot)

    def stats(self) -> Json:
        return SimpleNamespace(slots=self.slots)

    def embedding_stats(self) -> Json:
        return SimpleNamespace(pooling="mean")

    def as_engine(self) -> weft.Engine:
        return cast("weft.Engine", self)


async def connect(app: ASGIApp, path: str, body: object, leave: Callable[[list[Any]], bool]) -> list[Any]:
    """Posts `body` as an ASGI server would, and leaves as soon as `leave` says so of what was sent; returns that."""
    sent: list[Any] = []
    has_left = asyncio.Event()
    received = iter([{"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}])

    async def receive() -> Json:
        for message in received:
            return message
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Json) -> None:
        sent.append(message)
        if leave(sent):
            has_left.set()

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
    if leave(sent):
        has_left.set()
    await app(cast("Any", scope), receive, send)
    return sent


class FullEngine(ScriptedEngine):
    """Refuses every request, having taken it down."""

    def stream(self, request: weft.Request) -> Never:
        self._check_length(request)
        self.requests.append(request)
        raise weft.QueueFullError(1)


class ScriptedLogprobs:
    """What a compact stream tells of one token, `n` likely ones beside it, all of them the same."""

    def __init__(self, n: int) -> None:
        self.chosen = weft.Logprob(0, b"word", -1.0)
        self._n = n

    def __len__(self) -> int:
        return self._n

    def token_json(self, with_top: bool, is_prob: bool) -> bytes:
        assert not is_prob
        return msgspec.json.encode(self._token() | {"top_logprobs": [self._token()] * (self._n if with_top else 0)})

    def completion_json(self, is_prob: bool) -> bytes:
        assert not is_prob
        return msgspec.json.encode(self._token() | {"top_logprobs": [self._token()] * self._n, "content": "word", "probs": []})

    def top_json(self) -> bytes:
        return msgspec.json.encode({f"word{nth}": -1.0 for nth in range(self._n)})

    def _token(self) -> dict[str, Any]:
        return {"id": 0, "token": "word", "bytes": list(b"word"), "logprob": -1.0}
