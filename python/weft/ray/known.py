"""What a process knows of the replicas of each application: the router, which Ray makes, writes it, and whoever asks reads it.

Ray pickles the router's class with all that its module holds, and makes a copy of both in each process; this module is one.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from weft.ray.messages import Told

__all__ = ["Known", "known", "of_router"]


class Known(NamedTuple):
    """What a router knows; from any thread."""

    told: Callable[[], Mapping[str, Told]]
    """What each replica that runs told last."""
    remember: Callable[[str, Sequence[int], bytes], None]
    """That a replica holds these tokens, whose hashes have this salt."""


_NOTHING = Known(lambda: MappingProxyType({}), lambda *_: None)

_of_application: dict[str, Known] = {}


def of_router(application: str, now: Known) -> None:
    """Called by the router of an application when it is made."""
    _of_application[application] = now


def known(application: str) -> Known:
    """What the router of an application knows; nothing before the first request has made it."""
    return _of_application.get(application, _NOTHING)
