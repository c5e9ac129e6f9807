"""Every setting of the server: its flags, its variable, its range and its default, in one table.

The spellings are llama-server's, so that a command line written for it works here. `weft.cli.flags_without_setting` has those
flags of llama-server that set nothing here. What is the engine's own is `Settings.engine`, and how tokens are chosen
`Settings.sampling`: here they only get their spellings.

The modules beside this one have the parts of `Settings`. All but `ChatSettings` are made as parts of it alone, and so have no
constructor, comparison or text of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weft.config import EngineConfig
from weft.hub.source import Source, file_name
from weft.sampling_fields import Sampling
from weft.settings.access import AccessSettings
from weft.settings.chat import ChatSettings
from weft.settings.compute import STEPS
from weft.settings.context import CACHE, ContextSettings
from weft.settings.flags import Flag
from weft.settings.log import LogSettings
from weft.settings.media import PROJECTOR, MediaSettings
from weft.settings.model import LOADING, ModelSettings
from weft.settings.overrides import OVERRIDES
from weft.settings.positions import POSITIONS
from weft.settings.sampling import DRAWING, SamplingSettings
from weft.settings.server import ServerSettings
from weft.settings.threads import THREADS
from weft.settings.vectors import POOLING, VectorSettings

__all__ = ["Settings", "table"]

_GROUPS: tuple[type | Mapping[str, Flag], ...] = (
    *(ModelSettings, LOADING, OVERRIDES, MediaSettings, PROJECTOR, CACHE, ContextSettings, POSITIONS, STEPS, THREADS),
    *(SamplingSettings, DRAWING, VectorSettings, POOLING, ChatSettings, ServerSettings, AccessSettings, LogSettings),
)
"""In the order of help: settings of the server, and the flags of those that its parts have."""


@dataclass(frozen=True, kw_only=True)
class Settings(
    LogSettings,
    AccessSettings,
    ServerSettings,
    ChatSettings,
    VectorSettings,
    SamplingSettings,
    ContextSettings,
    MediaSettings,
    ModelSettings,
):
    """What a user asks of the server. `None` leaves the choice to the engine."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    """How the engine is to be."""
    sampling: Sampling = field(default_factory=Sampling)
    """How a token is chosen where a request does not say."""

    @property
    def source(self) -> Source | None:
        """Where the model is to be had from; None is a file that is here, or the demo model."""
        if self.hf_repo is None and self.model_url is None and self.docker_repo is None:
            return None
        return Source(
            repo=self.hf_repo,
            file=self.hf_file,
            url=self.model_url,
            docker=self.docker_repo,
            token=self.hf_token or None,
            offline=self.offline,
            wants_projector=self.engine.mmproj is None and self.mmproj_url is None and self.mmproj_auto,
        )

    @property
    def model_name(self) -> str | None:
        """What answers call the model; None is the name of its file, which the engine knows.

        As with llama-server a model of the hub has its own name, and not that of one of its files.
        """
        return self.alias or self.hf_repo or self.docker_repo or (None if self.model_url is None else file_name(self.model_url))

    @property
    def projector_source(self) -> Source | None:
        """Where the projector is to be had from, where it has an address of its own."""
        return None if self.mmproj_url is None else Source(url=self.mmproj_url, offline=self.offline)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Settings by the names of the table, those of their parts among them; what is not given is the default.

        Raises:
            InvalidConfig: A setting of the engine is out of range.
        """
        parts: dict[str, dict[str, Any]] = {"engine": {}, "sampling": {}, "": {}}
        for name, value in values.items():
            parts[_PART_OF.get(name, "")][name] = value
        if values.get("lora_init_without_apply"):
            parts["engine"]["lora"] = tuple((path, 0.0) for path, _ in values.get("lora", ()))
        return cls(engine=EngineConfig(**parts["engine"]), sampling=Sampling(**parts["sampling"]), **parts[""])


_PART_OF = {
    **dict.fromkeys(EngineConfig.__struct_fields__, "engine"),
    **dict.fromkeys(Sampling.__struct_fields__, "sampling"),
}
"""Which part of the settings has a field that they have not themselves."""


def table() -> dict[str, Flag]:
    """The row of each setting, in the order of help."""
    rows: dict[str, Flag] = {}
    for group in _GROUPS:
        rows |= {each.name: each.metadata["flag"] for each in fields(group)} if isinstance(group, type) else group
    return rows
