"""Access log: one line per request, with its status, timings and token counts."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from contextvars import Token as Previous
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from litestar.types import HTTPScope, Message, Send

from weft import Finished, Request, Token, Usage
from weft.server.refusals import Reason, Refusals, unlogged
from weft.serving.logs import FIELDS

logger = logging.getLogger(__name__)

MAX_PATH = 200
"""Maximum characters of a path in a log line."""

PROBE = "/health"
"""Suffix of paths that monitoring requests every few seconds. They are logged at DEBUG level."""

_current: ContextVar["RequestLine | None"] = ContextVar("request_line", default=None)


def current_line() -> "RequestLine | None":
    """Returns the log line of the request that the current task handles."""
    return _current.get()


class RequestLine:
    """Collects data about a request, and writes the log line when its block is left.

    Generations that start within the block report their progress to it.
    """

    def __init__(self, scope: HTTPScope, refusals: Refusals) -> None:
        self._refusals = refusals
        self._refused: Reason | None = None
        self._method = scope["method"]
        self._path = scope["path"]
        self._client = (scope.get("client") or ("-", 0))[0]
        self._level = logging.DEBUG if self._path.endswith(PROBE) else logging.INFO
        self._began = time.monotonic()
        self._status: int | None = None
        self._n = 0
        self._first: tuple[int, int] | None = None
        """Indices of prompt and branch of the first token."""
        self._first_at = 0.0
        self._last_at = 0.0
        self._n_predicted: list[Mapping[tuple[int, int], int]] = []
        """For each generation, tokens so far by prompt and branch."""
        self._usages: dict[tuple[int, int], Usage] = {}
        """Usage of finished branches, by prompt and branch."""

    def __enter__(self) -> Self:
        self._previous: Previous[RequestLine | None] = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _current.reset(self._previous)
        n_unlogged = 0 if self._refused is None else self._refusals.add(self._refused)
        if n_unlogged is not None and logger.isEnabledFor(self._level):
            fields = self._fields() | ({"unlogged": n_unlogged} if n_unlogged else {})
            logger.log(self._level, "%s", _text(fields), extra={FIELDS: fields})

    def watch_status(self, send: Send) -> Send:
        """Returns a `send` that records the status of the response."""

        async def send_and_learn(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        return send_and_learn

    def refuse(self, reason: Reason) -> None:
        """Sets the reason why the request was refused or its response interrupted. Only the first call has an effect."""
        self._refused = self._refused or reason

    def expect(self, requests: Sequence[Request], n_predicted: Mapping[tuple[int, int], int]) -> None:
        """Registers requests to be generated.

        Args:
            requests: The requests.
            n_predicted: Live view of the tokens generated so far, by prompt and branch.
        """
        self._n += sum(request.n for request in requests)
        self._n_predicted.append(n_predicted)

    def watch(self, prompt: int, events: Sequence[object], ended: Sequence[Finished]) -> None:
        """Records events of one prompt as they arrive, and the final events among them."""
        self._last_at = time.monotonic()
        if self._first is None and (first := next((event for event in events if isinstance(event, Token)), None)) is not None:
            self._first, self._first_at = (prompt, first.index), self._last_at
        for event in ended:
            self._usages[prompt, event.index] = event.usage

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "method": self._method,
            # Quoted, since a path may contain a newline.
            "path": quote(self._path[:MAX_PATH]) + "…" * (len(self._path) > MAX_PATH),
            "client": self._client,
            "status": self._status,
            "ms": _ms(time.monotonic() - self._began),
        }
        if self._refused is not None:
            fields["refused"] = str(self._refused)
        return fields | self._work() if self._n else fields

    def _work(self) -> dict[str, Any]:
        usages = self._usages.values()
        finished = {branch: usage.n_predicted for branch, usage in self._usages.items()}
        branches = {branch: n for counted in self._n_predicted for branch, n in counted.items()} | finished
        n_predicted = sum(branches.values())
        work: dict[str, Any] = {"n": self._n, "n_finished": len(usages)}
        if usages:
            work["prompt_tokens_computed"] = sum(usage.n_computed for usage in usages)
            work["prompt_tokens_cached"] = sum(usage.n_cached for usage in usages)
        if (first := self._usages.get(self._first) if self._first else None) is not None:
            waiting_ms = 1000 * (self._first_at - self._began) - first.prompt_ms
            work |= {"queue_ms": round(max(waiting_ms, 0.0), 1), "prompt_ms": round(first.prompt_ms, 1)}
        work["tokens_predicted"] = n_predicted
        if self._first is not None:
            # Tokens that arrive together have no time between them; then the engine's own measurement is better.
            writing_s = max(self._last_at - self._first_at, *(usage.predicted_ms / 1000 for usage in usages), 0.0)
            # The first token of each branch comes from the prompt's step.
            n_steps = n_predicted - len(branches)
            work["predicted_ms"] = _ms(writing_s)
            work["tokens_per_second"] = round(n_steps / writing_s, 1) if writing_s > 0 and n_steps > 0 else 0.0
        return work


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)


def _text(fields: dict[str, Any]) -> str:
    status = "no answer" if fields["status"] is None else fields["status"]
    text = f"{fields['method']} {fields['path']} {status} {fields['ms']:.0f} ms"
    if "refused" in fields:
        text += f", refused: {fields['refused']}{unlogged(fields.get('unlogged', 0))}"
    if "n" not in fields:
        return text
    n, n_finished = fields["n"], fields["n_finished"]
    text += f": {n_finished} of {n} completions" if n_finished < n else f": {n} completion{'s' * (n > 1)}"
    if "prompt_tokens_computed" in fields:
        text += f", prompt {fields['prompt_tokens_computed']} computed + {fields['prompt_tokens_cached']} cached"
    if "prompt_ms" in fields:
        text += f" in {fields['prompt_ms']:.0f} ms after {fields['queue_ms']:.0f} ms in the queue"
    text += f", {fields['tokens_predicted']} predicted"
    if "predicted_ms" in fields:
        text += f" in {fields['predicted_ms']:.0f} ms, {fields['tokens_per_second']:.1f} tokens/s"
    return text
