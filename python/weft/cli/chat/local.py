"""A model in this process."""

import asyncio
from collections.abc import Generator

import msgspec

from weft.chat.conversation import ChatMessage, ChatRequest
from weft.chat.pipeline import ChatPipeline
from weft.chat.stream import ChatStream, ContentDelta, ReasoningDelta
from weft.cli.chat.pieces import Messages, Piece
from weft.request import Request
from weft.serving.local_engine import model_name, new_engine
from weft.settings import Settings


class LocalModel:
    """The model of the settings. The constructor loads it. Its event loop runs during the methods only.

    Raises:
        WeftError: The model cannot be loaded, or is not a model for chats.
    """

    def __init__(self, settings: Settings) -> None:
        self.name = model_name(settings)
        """Name of the model."""
        self._settings = settings
        self._runner = asyncio.Runner()
        self._engine = new_engine(settings)
        self._runner.run(self._engine.start())
        self._pipeline = ChatPipeline(self._engine, settings)
        self._pipeline.check_settings()
        self._pipeline.compile()

    def answer(self, messages: Messages, n: int) -> Generator[Piece, None, None]:
        """Yields the pieces of `n` answers; see `ChatModel`."""
        stream = self._runner.run(self._stream(messages, n))
        try:
            while deltas := self._runner.run(stream.next_batch()):
                for delta in deltas:
                    if isinstance(delta, ContentDelta | ReasoningDelta):
                        yield Piece(delta.index, "content" if isinstance(delta, ContentDelta) else "reasoning", delta.text)
        finally:
            stream.close()

    async def _stream(self, messages: Messages, n: int) -> ChatStream:
        chat = ChatRequest(messages=msgspec.convert(messages, list[ChatMessage]))
        prompt = self._pipeline.prompt(chat)
        request = msgspec.structs.replace(self._request(n), prompt=prompt.tokens, **prompt.request_fields)
        request = prompt.constrained(request)
        return ChatStream(self._engine.stream(request), n, prompt.answer_to(request), self._engine.detokenize)

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
        self._runner.run(self._engine.close())
        self._runner.close()
