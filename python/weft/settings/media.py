"""Settings of images and audio: the projector, and the permitted sources."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from weft.config import EngineConfig
from weft.hub.source import http_address
from weft.settings.flags import FlagAlias, field_flags, flag, row
from weft.settings.values import folder, some, together, unset_at, within

__all__ = ["PROJECTOR", "MediaSettings"]

_DEVICE = ("-mmdev", "--mmproj-device")


def _is_on_gpu(device: str) -> bool:
    if device != "none":
        raise ValueError(f"{device!r} cannot be asked for: llama.cpp takes the first GPU there is, and 'none' is the CPU")
    return False


def _host(name: str) -> str:
    """Parses a host with an optional port."""
    if name == "*":
        return name
    try:
        parts = urlsplit(f"//{name}")
        is_host = parts.netloc == name and parts.hostname is not None and "@" not in name and (parts.port or 1) > 0
    except ValueError:
        is_host = False
    if not is_host:
        raise ValueError(f"{name!r} is no host, as example.org or 10.0.0.7:8000")
    return name.lower()


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class MediaSettings:
    """Settings of images and audio."""

    mmproj_url: str | None = flag(
        None,
        "-mmu, --mmproj-url URL",
        parse=http_address,
        env="LLAMA_ARG_MMPROJ_URL",
        help="http(s) URL of a projector, downloaded once",
    )
    mmproj_auto: bool = flag(
        True,
        constants={"--mmproj-auto": True, "--no-mmproj": False, "--no-mmproj-auto": False},
        env="LLAMA_ARG_MMPROJ_AUTO",
        help="use the projector in the repository of -hf if --mmproj is not given (default: yes)",
    )
    media_path: str | None = flag(
        None,
        "--media-path PATH",
        parse=folder,
        help="folder of media files that chats may refer to, as file://cat.png (default: none)",
    )
    allow_media_urls: tuple[str, ...] = flag(
        (),
        "--allow-media-urls HOSTS",
        parse=some("there must be at least one host", _host),
        separator=",",
        join=together,
        env="LLAMA_ARG_ALLOW_MEDIA_URLS",
        help="comma-separated hosts, with optional ports, from which chats may load media by http(s); '*' is any public host,"
        " hosts in private networks must be listed (default: none)",
    )


PROJECTOR = field_flags(
    EngineConfig,
    mmproj=row(
        "-mm, --mmproj FNAME",
        env="LLAMA_ARG_MMPROJ",
        help="multimodal projector (GGUF) for images and audio (default: with -hf, that of the repository)",
    ),
    mmproj_offload=row(
        constants={"--mmproj-offload": True, "--no-mmproj-offload": False},
        also=(FlagAlias(_DEVICE, _is_on_gpu, env="MTMD_BACKEND_DEVICE"),),
        env="LLAMA_ARG_MMPROJ_OFFLOAD",
    ),
    **{
        f"image_{end}_tokens": row(
            f"--image-{end}-tokens",
            parse=unset_at(-1, within(EngineConfig, f"image_{end}_tokens"), "(the default) leaves it to the projector"),
            unset="-1",
            env=f"LLAMA_ARG_IMAGE_{end.upper()}_TOKENS",
        )
        for end in ("min", "max")
    },
)
"""Flags of the projector."""
