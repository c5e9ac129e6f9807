"""Requests that a server makes on behalf of its clients."""

from typing import Annotated

from weft.fields.meta import described
from weft.request import Request


@described
class InternalRequest(Request, frozen=True, kw_only=True):
    """A request with fields for servers."""

    owner: Annotated[
        str | None,
        "owner of the request; None is the anonymous owner. Explanations contain nothing of other owners' requests",
    ] = None
    system_end: Annotated[
        int | None,
        "number of prompt tokens up to the end of the system message, for explanations; None if there is none",
    ] = None
