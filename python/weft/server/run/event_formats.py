"""What a route answers with where a request, or the server's settings, ask for other events than its own."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from weft import InvalidRequest
from weft.fields.shown import shown
from weft.server.request_fields import CompletionFields
from weft.server.run.generation import Generation
from weft.server.run.stream import StreamedForm
from weft.settings import Settings

__all__ = ["EventFormat", "EventFormats"]

Body = TypeVar("Body", bound=CompletionFields)


class EventFormat:
    """Another dialect's stream."""

    def __init__(
        self,
        prepared: Callable[[CompletionFields, Settings], CompletionFields],
        stream: Callable[[Generation], StreamedForm],
    ) -> None:
        self._prepared = prepared
        self.stream = stream

    def prepared(self, data: Body, settings: Settings) -> Body:
        """The body as one that asks for this stream; what the stream has no place for is refused."""
        prepared = self._prepared(data, settings)
        assert isinstance(prepared, type(data)), "some of its fields have other values"
        return prepared


class EventFormats:
    """Those that a route has, by name. They stand between dialects, which do not name each other."""

    def __init__(self, own: str, others: Mapping[str, EventFormat]) -> None:
        self._own = own
        """The route's own events, by the name that a request can ask for them where the settings do not."""
        self._others = others

    def named(self, name: str | None, settings: Settings) -> EventFormat | None:
        """The format that a request names, or else the settings; None where that is the route's own.

        Raises:
            InvalidRequest: there is no such format.
        """
        name = name or (settings.compat if settings.compat in self._others else self._own)
        if name == self._own:
            return None
        if (form := self._others.get(name)) is None:
            known = ", ".join([self._own, *self._others])
            raise InvalidRequest("event_format", f"event_format is {shown(name)}; it must be one of {known}")
        return form
