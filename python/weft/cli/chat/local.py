"""A model in this process. Its engine runs on the event loop of a separate thread."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from queue import SimpleQueue

import msgspec

from weft.chat.conversation import ChatMessage, ChatRequest
from weft.chat.pipeline import ChatPipeline
from weft.chat.stream import ChatStream, ContentDelta, ReasoningDelta
from weft.cli.chat.pieces import ChatModelError, Messages, Piece
from weft.engine import Engine
from weft.errors import WeftError
from weft.request import Request
from weft.serving.local_engine import model_name, new_engine
from weft.settings import Settings

__all__ = ["LocalModel"]


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
            self._pipeline = _pipeline(self._engine, settings)
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
        chat = ChatRequest(messages=msgspec.convert(messages, list[ChatMessage]))
        prompt = await asyncio.to_thread(self._pipeline.prompt, chat)
        request = msgspec.structs.replace(self._request(n), prompt=prompt.tokens, **prompt.request_fields)
        request = prompt.constrained(request)
        stream = ChatStream(self._engine.stream(request), n, prompt.answer_to(request), self._engine.detokenize)
        async with aclosing(stream):
            async for delta in stream:
                if isinstance(delta, ContentDelta | ReasoningDelta):
                    yield Piece(delta.index, "content" if isinstance(delta, ContentDelta) else "reasoning", delta.text)

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


def _pipeline(engine: Engine, settings: Settings) -> ChatPipeline:
    pipeline = ChatPipeline(engine, settings)
    pipeline.check_settings()
    pipeline.compile()
    return pipeline
