"""State of each application's replicas in this process: written by the router, which Ray creates, and read by its users.

Ray pickles the router's class with its module's globals, and so creates copies of both in each process; this module is not
copied.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from weft.ray.messages import Told

__all__ = ["Known", "known", "of_router"]


class Known(NamedTuple):
    """A router's interface for other threads."""

    told: Callable[[], Mapping[str, Told]]
    """Returns the last report of each running replica."""
    remember: Callable[[str, Sequence[int], bytes], None]
    """Records that a replica has these tokens cached, with the salt of their hashes."""


_NOTHING = Known(lambda: MappingProxyType({}), lambda *_: None)

_of_application: dict[str, Known] = {}


def of_router(application: str, now: Known) -> None:
    """Registers the router of an application; called when it is created."""
    _of_application[application] = now


def known(application: str) -> Known:
    """Returns the interface of an application's router; an empty one before the first request has created it."""
    return _of_application.get(application, _NOTHING)
