"""State of each application's replicas in this process: written by the router, which Ray creates, and read by its users.

Ray pickles the router's class with its module's globals, and so creates copies of both in each process; this module is not
copied.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from weft.ray.messages import ReplicaReport


class RouterState(NamedTuple):
    """A router's interface for other threads."""

    reports: Callable[[], Mapping[str, ReplicaReport]]
    """Returns the last report of each running replica."""
    remember: Callable[[str, Sequence[int], bytes], None]
    """Records that a replica has these tokens cached, with the salt of their hashes."""


_NOTHING = RouterState(lambda: MappingProxyType({}), lambda *_: None)

_of_application: dict[str, RouterState] = {}


def register_router(application: str, now: RouterState) -> None:
    """Registers the router of an application; called when it is created."""
    _of_application[application] = now


def router_state(application: str) -> RouterState:
    """Returns the interface of an application's router; an empty one before the first request has created it."""
    return _of_application.get(application, _NOTHING)
