"""Settings of the server, with flags, environment variables, ranges and defaults.

The spellings are llama-server's, so its command lines work unchanged; `weft.cli.flags_without_setting` has its flags that have no
effect here. To add a setting:

1. Add its field, with type and default, to `Settings` below, or to `ChatSettings` in `chat.py` if it is about chats. A setting of
   the engine is a field of `EngineConfig` in `weft/config.py` instead, which `rust/python/settings.rs` reads; a sampling
   parameter is a field of `Sampling` in `weft/sampling_fields.py`. Both have their description and their bounds there. Then
   write the stubs of their keywords: `python scripts/option_stubs.py`.
2. If its text is more than a word or a switch, give it a parser: `parsed(default, parser)` at the field, with a function of
   `values.py` or a new one. Fields of the engine and of `Sampling` are parsed by their types and bounds; exceptions are in
   `engine.py`.
3. Add its spellings, its variable and its description to `flags.json`, in the group and at the position where `--help-all` shows
   it. The fields of an entry are described by `Words` in `flags.py`.
4. If `--help` is to show it too, add its name to `COMMON` in `weft/cli/help.py`.
5. Read it where it has its effect, as `settings.NAME` or `settings.engine.NAME`.
6. Print the page of all flags: `python scripts/flag_table.py > docs/reference/flags.md`.

The command line, variables, the configuration file and shell completion are derived from these tables.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import add
from typing import Any, Literal

import msgspec

from weft.config import EngineConfig
from weft.hub.source import Source, docker_name, file_name, http_address, repo_name
from weft.sampling_fields import Sampling
from weft.settings.access import host_names, key_list, media_host, origins
from weft.settings.chat import ChatSettings
from weft.settings.engine import TEXTS
from weft.settings.flags import Flag, FlagAlias, completed, parsed, read_words
from weft.settings.presets import PRESETS
from weft.settings.values import (
    boolean,
    file,
    file_text,
    folder,
    items,
    json_text,
    on_off_auto,
    one_of,
    prefix,
    some,
    sorted_union,
    unset_at,
    unset_below,
    whole,
)

__all__ = ["GROUPS", "MAX_THREADS_HTTP", "Settings", "table"]

MAX_THREADS_HTTP = 256
"""Maximum threads for connections."""


def _union(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*first, *second]))


def _nothing(_: str) -> None:
    return None


def _grammar(given: str) -> str | None:
    return given or None


@dataclass(frozen=True, kw_only=True)
class Settings(ChatSettings):
    """Settings of the server. `None` leaves the choice to the engine."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    """Settings of the engine."""
    sampling: Sampling = field(default_factory=Sampling)
    """Default sampling parameters of requests."""

    model: str | None = None
    hf_repo: str | None = parsed(None, repo_name)
    hf_file: str | None = None
    hf_token: str | None = None
    model_url: str | None = parsed(None, http_address)
    docker_repo: str | None = parsed(None, docker_name)
    offline: bool = False
    preset: str | None = parsed(None, constants={f"--{name}": name for name in PRESETS})
    alias: str | None = parsed(None, lambda names: next(iter(items(names)), None), join=lambda first, second: first or second)
    aliases: tuple[str, ...] = parsed((), also=(FlagAlias(("-a", "--alias"), items, env="LLAMA_ARG_ALIAS"),), join=_union)
    lora_init_without_apply: bool = False

    draft_hf_repo: str | None = parsed(None, repo_name)

    mmproj_url: str | None = parsed(None, http_address)
    mmproj_auto: bool = True
    media_path: str | None = parsed(None, folder)
    allow_media_urls: tuple[str, ...] = parsed((), some("there must be at least one host", media_host), join=add)

    cache_prompt: bool = True
    context_shift: bool = False
    n_keep: int | None = parsed(0, unset_at(-1, whole(0), "keeps the whole prompt"))
    restore_prompt: str | None = parsed(None, file)
    slot_save_path: str | None = parsed(None, folder)

    n_predict: int | None = parsed(None, unset_at(-1, whole(0), "(the default) sets no limit but the context"))
    stop: tuple[str, ...] = parsed((), lambda given: (given,), join=add)
    seed: int | None = parsed(None, unset_at(-1, whole(0, 2**32 - 1), "(the default) draws a new one for each request"))
    # A grammar and a schema exclude each other; the last one given applies.
    grammar: str | None = parsed(
        None,
        _grammar,
        also=(
            FlagAlias(("--grammar-file",), file_text(_grammar)),
            FlagAlias(("-j", "--json-schema", "-jf", "--json-schema-file"), _nothing),
        ),
    )
    json_schema: str | None = parsed(
        None,
        json_text,
        also=(
            FlagAlias(("-jf", "--json-schema-file"), file_text(json_text)),
            FlagAlias(("--grammar", "--grammar-file"), _nothing),
        ),
    )
    escape: bool = True

    embd_normalize: int = parsed(2, whole(-1))
    embeddings: bool = False
    reranking: bool = False

    hosts: tuple[str, ...] = parsed(("127.0.0.1",), some("there must be at least one address", str))
    port: int = parsed(8080, whole(0, 65_535))
    reuse_port: bool = False
    compat: Literal["", "srb", "parallel", "stream"] = parsed("", one_of("srb", "parallel", "stream"))
    n: int | None = parsed(None, whole(1, 256))
    timeout_s: int = parsed(3600, whole(1))
    threads_http: int | None = parsed(None, unset_below(1, whole(1, MAX_THREADS_HTTP), "or less is 1 thread"))
    tags: tuple[str, ...] = parsed((), lambda text: sorted_union(items(text)), join=sorted_union)
    max_body: int | None = parsed(None, whole(1024))
    ping_s: float | None = parsed(30, unset_at(-1, whole(1), "never sends one"))
    sleep_idle_s: int | None = parsed(None, unset_at(-1, whole(1), "(the default) never unloads the model"))
    api_prefix: str = parsed("", prefix)
    static_path: str | None = parsed(None, folder)
    ui: bool = True
    documents: bool = True
    documents_path: str | None = None
    documents_max_documents: int | None = parsed(None, whole(1))
    documents_max_nodes: int | None = parsed(None, whole(1))
    documents_max_bytes: int | None = parsed(None, whole(1, 2**63 - 1))
    slots_endpoint: bool = True
    props_endpoint: bool = False
    metrics: bool = False

    api_keys: tuple[str, ...] = parsed((), key_list, join=add)
    api_key_file: str | None = parsed(None, file)
    ssl_key_file: str | None = parsed(None, file)
    ssl_cert_file: str | None = parsed(None, file)
    allowed_hosts: tuple[str, ...] = parsed((), host_names, join=add)
    cors_origins: tuple[str, ...] = parsed(("*",), origins)
    cors_methods: str = "GET, POST, PATCH, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = True

    verbosity: int = parsed(3, lambda text: min(whole(0)(text), 5))
    log_format: Literal["text", "json"] = parsed(
        "text",
        one_of("text", "json"),
        also=(FlagAlias((), lambda is_json: "json" if boolean(is_json) else "text", env="LLAMA_ARG_LOG_JSONL"),),
    )
    log_file: str | None = None
    log_disable: bool = False
    log_colors: Literal["auto", "on", "off"] = parsed("auto", on_off_auto)
    log_prefix: bool = True
    log_timestamps: bool = True

    @property
    def is_verbose(self) -> bool:
        """True if everything is logged."""
        return self.verbosity >= 5

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

    @property
    def draft_source(self) -> Source | None:
        """Source to download the draft model from; None for a local file, or without a draft model."""
        if self.draft_hf_repo is None or self.engine.draft_model is not None:
            return None
        return Source(repo=self.draft_hf_repo, token=self.hf_token or None, offline=self.offline)

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


_STRUCTS: Mapping[str, type[msgspec.Struct]] = {"engine": EngineConfig, "sampling": Sampling}

_PART_OF = {name: part for part, struct in _STRUCTS.items() for name in struct.__struct_fields__}
"""Part of the settings for fields that `Settings` does not have itself."""


def _flags() -> Iterator[tuple[str, dict[str, Flag]]]:
    """Yields each group with its flags: the words of `flags.json` with the parsers of the fields."""
    own = {each.name: {"parse": boolean if each.type is bool else str, **each.metadata} for each in fields(Settings)}
    values = {**TEXTS, **own}
    flags = {
        group: {name: Flag(**{**msgspec.structs.asdict(each), **values.get(name, {})}) for name, each in words.items()}
        for group, words in read_words().items()
    }
    by_name = {name: flag for group in flags.values() for name, flag in group.items()}
    for group, members in flags.items():
        yield (
            group,
            {
                name: completed(flag, _STRUCTS[_PART_OF[name]], name, by_name) if name in _PART_OF else flag
                for name, flag in members.items()
            },
        )


GROUPS: Mapping[str, Mapping[str, Flag]] = dict(_flags())
"""Flags of the settings by group, in the order of `--help`."""

_TABLE: Mapping[str, Flag] = {name: flag for group in GROUPS.values() for name, flag in group.items()}


def table() -> Mapping[str, Flag]:
    """Returns the flag of each setting, in the order of `--help`."""
    return _TABLE
