"""Settings of the server, with flags, environment variables, ranges and defaults, in one table.

The spellings are llama-server's, so its command lines work unchanged. `weft.cli.flags_without_setting` has llama-server's flags
that have no effect here. Settings of the engine are in `Settings.engine` and sampling defaults in `Settings.sampling`; this
package only adds their spellings.

Each module of this package has a part of `Settings`. All parts but `ChatSettings` are only used as base classes, so they have no
own constructor, comparison or representation.
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
from weft.settings.embeddings import POOLING, EmbeddingSettings
from weft.settings.flags import Flag
from weft.settings.log import LogSettings
from weft.settings.media import PROJECTOR, MediaSettings
from weft.settings.model import LOADING, ModelSettings
from weft.settings.overrides import OVERRIDES
from weft.settings.positions import POSITIONS
from weft.settings.sampling import DRAWING, SamplingSettings
from weft.settings.server import ServerSettings
from weft.settings.threads import THREADS

__all__ = ["GROUPS", "Settings", "table"]


@dataclass(frozen=True, kw_only=True)
class Settings(
    LogSettings,
    AccessSettings,
    ServerSettings,
    ChatSettings,
    EmbeddingSettings,
    SamplingSettings,
    ContextSettings,
    MediaSettings,
    ModelSettings,
):
    """Settings of the server. `None` leaves the choice to the engine."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    """Settings of the engine."""
    sampling: Sampling = field(default_factory=Sampling)
    """Default sampling parameters of requests."""

    @property
    def source(self) -> Source | None:
        """Source to download the model from; None for a local file or the demo model."""
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
        """Name of the model in responses; None is the name of its file, which the engine provides.

        As in llama-server, a model of the hub has the name of its repository, not of its file.
        """
        return self.alias or self.hf_repo or self.docker_repo or (None if self.model_url is None else file_name(self.model_url))

    @property
    def projector_source(self) -> Source | None:
        """Source to download the projector from, if it has its own URL."""
        return None if self.mmproj_url is None else Source(url=self.mmproj_url, offline=self.offline)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Settings":
        """Creates settings from values by name, including engine and sampling settings; others have their defaults.

        Raises:
            InvalidConfigError: A setting of the engine is out of range.
        """
        parts: dict[str, dict[str, Any]] = {"engine": {}, "sampling": {}, "": {}}
        for name, value in values.items():
            parts[_PART_OF.get(name, "")][name] = value
        if values.get("lora_init_without_apply"):
            parts["engine"]["lora"] = tuple((path, 0.0) for path, _ in values.get("lora", ()))
        return cls(engine=EngineConfig(**parts["engine"]), sampling=Sampling(**parts["sampling"]), **parts[""])


_PART_OF = {**dict.fromkeys(EngineConfig.__struct_fields__, "engine"), **dict.fromkeys(Sampling.__struct_fields__, "sampling")}
"""Part of the settings for fields that `Settings` does not have itself."""


def _flags(part: type) -> dict[str, Flag]:
    return {each.name: each.metadata["flag"] for each in fields(part)}


GROUPS: Mapping[str, Mapping[str, Flag]] = {
    "model": _flags(ModelSettings) | LOADING | OVERRIDES,
    "images and audio": _flags(MediaSettings) | PROJECTOR,
    "context and slots": CACHE | _flags(ContextSettings),
    "positions": POSITIONS,
    "compute": STEPS,
    "threads": THREADS,
    "sampling (defaults of requests)": _flags(SamplingSettings) | DRAWING,
    "embeddings and reranking": _flags(EmbeddingSettings) | POOLING,
    "chat": _flags(ChatSettings),
    "server": _flags(ServerSettings),
    "access": _flags(AccessSettings),
    "log": _flags(LogSettings),
}
"""Flags of the settings by group, in the order of `--help`."""

_TABLE: Mapping[str, Flag] = {name: flag for group in GROUPS.values() for name, flag in group.items()}


def table() -> Mapping[str, Flag]:
    """Returns the flag of each setting, in the order of `--help`."""
    return _TABLE
