"""What `/v1/completions` answers with where a request, or the server's settings, ask for other events than OpenAI's."""

from collections.abc import Callable, Mapping
from typing import Any

from weft import InvalidRequest
from weft.fields.shown import shown
from weft.server.request_fields import CompletionFields, ping_s
from weft.server.run.generation import Generation
from weft.server.run.service import Service
from weft.server.run.stream import Answer, StreamedAnswer, StreamedForm
from weft.server.run.submission import Submission
from weft.settings import Settings

__all__ = ["EventFormat", "EventFormats"]

OPENAI = "openai"
"""The route's own events, by the name that a request can ask for them where the settings do not."""


class EventFormat:
    """One dialect's way from a body to a stream."""

    def __init__(
        self, submission: Callable[[CompletionFields, Settings], Submission], stream: Callable[[Generation], StreamedForm]
    ) -> None:
        self.submission = submission
        self.stream = stream


class EventFormats:
    """Those there are, by name. They stand between dialects, which do not name each other."""

    def __init__(self, formats: Mapping[str, EventFormat]) -> None:
        self._formats = formats

    async def answer(self, name: str | None, data: CompletionFields, service: Service) -> Answer[Any] | None:
        """The answer in the format that a request names, or else the settings; None where that is the route's own.

        Raises:
            InvalidRequest: there is no such format.
        """
        name = name or (service.settings.compat if service.settings.compat in self._formats else OPENAI)
        if name == OPENAI:
            return None
        if (form := self._formats.get(name)) is None:
            known = ", ".join([OPENAI, *self._formats])
            raise InvalidRequest("event_format", f"event_format is {shown(name)}; it must be one of {known}")
        generation = await service.submit(form.submission(data, service.settings))
        return Answer(StreamedAnswer(generation, form.stream(generation), ping_s(data, service.settings)))
