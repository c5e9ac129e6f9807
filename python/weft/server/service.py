"""The engine as HTTP sees it: loading or ready, and the requests that run on it."""

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from weakref import WeakSet

import msgspec

from weft import Completions, Engine, Request, WeftError
from weft.server.errors import StillLoadingError
from weft.server.generation import Generation
from weft.settings import Settings

__all__ = ["Piece", "Service"]

Piece = str | int
"""A stretch of a prompt: text, or one token."""

LONG_TEXT = 8_192
"""Texts of more characters than this are tokenized on a thread of their own: they would hold the event loop up."""

FAREWELL_S = 1.0
"""How long open streams have, after the engine was stopped, to tell their clients."""


class Service:
    """One engine, its settings, and the generations that run on it."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.build = f"weft-{version('weft')}"
        self._is_ready = False
        self._failure: Exception | None = None
        # Weak, because a generation that nobody holds is cancelled.
        self._generations: WeakSet[Generation] = WeakSet()

    async def start(self) -> None:
        """Loads the model; until this returns, requests are refused with [`StillLoadingError`].

        Raises:
            ModelLoadError: the file is no model that can be run.
            InvalidConfig: a setting does not fit the model.
        """
        try:
            await self.engine.start()
        except WeftError as error:
            self._failure = error
            raise
        self._is_ready = True

    async def stop(self) -> None:
        """Stops the engine, and gives the open streams a moment to say so to their clients."""
        await self.engine.close()
        if ends := [asyncio.create_task(generation.closed.wait()) for generation in self._generations]:
            await asyncio.wait(ends, timeout=FAREWELL_S)

    def require_ready(self) -> None:
        """Raises [`StillLoadingError`] until the model is there, or what keeps it from ever being there."""
        if self._failure is not None:
            raise self._failure
        if not self._is_ready:
            raise StillLoadingError

    @property
    def model_name(self) -> str:
        """What answers call the model."""
        return self.settings.alias or Path(self.engine.model.path).name

    async def submit(self, prompts: Sequence[Sequence[Piece]], template: Request) -> Generation:
        """Submits one request like `template` for each prompt: all of them, or none.

        Raises:
            ContextOverflow: a prompt does not fit.
            InvalidRequest: a field is out of range.
            QueueFull: too many requests wait.
            EngineStopped: the engine was stopped.
        """
        requests = [msgspec.structs.replace(template, prompt=await self.tokenize(prompt)) for prompt in prompts]
        streams: list[Completions] = []
        try:
            for request in requests:
                streams.append(self.engine.generate(request))  # noqa: PERF401 (those before a failure must be closed)
        except Exception:
            for stream in streams:
                stream.close()
            raise
        generation = Generation(requests, streams)
        self._generations.add(generation)
        return generation

    async def tokenize(self, pieces: Sequence[Piece], *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The tokens of a prompt. Only text that begins it gets the model's opening tokens."""
        tokens: list[int] = []
        for position, piece in enumerate(pieces):
            if isinstance(piece, int):
                tokens.append(piece)
                continue
            opens = add_special and position == 0
            if len(piece) <= LONG_TEXT:
                tokens += self.engine.tokenize(piece, add_special=opens, parse_special=parse_special)
            else:
                tokens += await asyncio.to_thread(self.engine.tokenize, piece, add_special=opens, parse_special=parse_special)
        return tokens
