"""A model in this process. Its engine runs on the event loop of a separate thread."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from queue import SimpleQueue

import msgspec

from weft.chat.answer.parts import Content, Part, Reasoning
from weft.chat.conversation import ChatMessage, Conversation
from weft.chat.format import ChatFormat
from weft.cli.chat.pieces import ChatModelError, Messages, Piece
from weft.cli.local_engine import model_name, new_engine
from weft.engine import Engine
from weft.errors import WeftError
from weft.events import Finished, Token
from weft.request import Request
from weft.settings import Settings

__all__ = ["LocalModel"]

WHOLE_REASONS = ("end", "stop")
"""Finish reasons of answers that were not truncated."""


class LocalModel:
    """The model of the settings. The constructor loads it.

    Raises:
        ChatModelError: The model cannot be loaded, or is not a model for chats.
    """

    def __init__(self, settings: Settings) -> None:
        self.name = model_name(settings)
        """Name of the model."""
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="weft-chat", daemon=True).start()
        self._engine = new_engine(settings)
        try:
            asyncio.run_coroutine_threadsafe(self._engine.start(), self._loop).result()
            self._format = _format(self._engine, settings)
        except WeftError as error:
            raise ChatModelError(str(error)) from error

    def answer(self, messages: Messages, n: int) -> Generator[Piece, None, None]:
        """Yields the pieces of `n` answers; see `ChatModel`."""
        pieces: SimpleQueue[Piece | BaseException | None] = SimpleQueue()

        async def produce() -> None:
            try:
                async with aclosing(self._pieces(messages, n)) as generated:
                    async for piece in generated:
                        pieces.put(piece)
                pieces.put(None)
            except Exception as error:  # noqa: BLE001 (raised on the thread that reads)
                pieces.put(error)

        producing = asyncio.run_coroutine_threadsafe(produce(), self._loop)
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, WeftError):
                    raise ChatModelError(str(piece)) from piece
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            producing.cancel()

    async def _pieces(self, messages: Messages, n: int) -> AsyncGenerator[Piece, None]:
        chat = Conversation(messages=msgspec.convert(messages, list[ChatMessage]))
        prompt = await asyncio.to_thread(self._format.prompt, chat)
        request = self._request(n)
        request = msgspec.structs.replace(request, prompt=prompt.tokens, checkpoints_at=prompt.turn_ends)
        if prompt.constraint is not None:
            request = prompt.constraint.apply(request)
        form = prompt.answer_to(request)
        readers = [form.reader() for _ in range(n)]
        stream = self._engine.stream(request)
        try:
            while events := await stream.next_batch():
                for event in events:
                    if not isinstance(event, Token | Finished):
                        continue
                    reader = readers[event.index]
                    parts: list[Part] = reader.read(event.text)
                    if isinstance(event, Finished):
                        parts += reader.end(is_truncated=event.finish_reason != "stop")
                    for part in parts:
                        if isinstance(part, Content | Reasoning):
                            yield Piece(event.index, "content" if isinstance(part, Content) else "reasoning", part.text)
        finally:
            stream.close()

    def _request(self, n: int) -> Request:
        """Returns the request of the settings, without a prompt."""
        settings = self._settings
        return Request(
            prompt=(),
            n=n,
            max_tokens=settings.n_predict,
            stop=settings.stop,
            seed=settings.seed,
            grammar=settings.grammar,
            json_schema=settings.json_schema,
            context_shift=settings.context_shift,
            n_keep=settings.n_keep,
            **msgspec.structs.asdict(settings.sampling),
        )

    def close(self) -> None:
        """Stops the engine."""
        asyncio.run_coroutine_threadsafe(self._engine.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)


def _format(engine: Engine, settings: Settings) -> ChatFormat:
    form = ChatFormat(engine, settings)
    form.check_settings()
    form.compile()
    return form
