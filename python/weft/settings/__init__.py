"""Every setting of the server: its flags, its variable, its range and its default, in one table.

The spellings are llama-server's, so that a command line written for it works here. `weft.cli.accepted` has those flags of
llama-server that set nothing here.
"""

from dataclasses import dataclass, fields

from weft.settings.access import AccessSettings
from weft.settings.chat import ChatSettings
from weft.settings.compute import ComputeSettings
from weft.settings.context import ContextSettings
from weft.settings.flags import Flag
from weft.settings.log import LogSettings
from weft.settings.model import ModelSettings
from weft.settings.sampling import SamplingSettings
from weft.settings.server import ServerSettings

__all__ = ["Settings", "table"]


@dataclass(frozen=True, kw_only=True)
class Settings(
    LogSettings,
    AccessSettings,
    ServerSettings,
    ChatSettings,
    SamplingSettings,
    ComputeSettings,
    ContextSettings,
    ModelSettings,
):
    """What a user asks of the server. `None` leaves the choice to the engine."""

    # A dataclass takes the fields of its last base first: this is the order of help, from the bottom.


def table() -> dict[str, Flag]:
    """The row of each setting, in the order of help."""
    return {field.name: field.metadata["flag"] for field in fields(Settings)}
