"""Alternative event formats of a route, chosen by the request or the server's settings."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt
from weft.server.inference.generation import Generation
from weft.server.streaming.encoder import Encoder
from weft.settings import Settings


class _Body(Protocol):
    event_format: str | None


Body = TypeVar("Body", bound=_Body)


class EventFormat(NamedTuple):
    """The stream format of another API."""

    prepared: Callable[[Any, Settings], Any]
    """Returns the body adapted to this format; refuses fields that the format cannot represent."""
    stream: Callable[[Generation], Encoder]
    """Creates the encoder."""


class EventFormats:
    """The event formats of a route, by name. APIs share formats through it without importing each other."""

    def __init__(self, own: str, others: Mapping[str, EventFormat]) -> None:
        self._own = own
        """Name of the route's own format."""
        self._others = others

    def prepare(self, body: Body, settings: Settings) -> tuple[Body, EventFormat | None]:
        """Returns the body, adapted to the format that it or else the settings name, and that format; None is the route's own.

        Raises:
            InvalidRequestError: The format does not exist, or cannot represent a field of the body.
        """
        name = body.event_format or (settings.compat if settings.compat in self._others else self._own)
        if name == self._own:
            return body, None
        if (form := self._others.get(name)) is None:
            known = ", ".join([self._own, *self._others])
            raise InvalidRequestError("event_format", f"event_format is {excerpt(name)}; it must be one of {known}")
        return form.prepared(body, settings), form
