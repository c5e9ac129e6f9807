"""Pictures and sounds: what reads them, and where they may come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from weft.config import EngineConfig
from weft.hub.source import http_address
from weft.settings.flags import Flag, Way, flag, row
from weft.settings.values import boolean, folder, items, together, unset_at, within

__all__ = ["PROJECTOR", "MediaSettings"]

MEDIA = "pictures and sounds"

_DEVICE = ("-mmdev", "--mmproj-device")


def _is_on_gpu(device: str) -> bool:
    if device != "none":
        raise ValueError(f"{device!r} cannot be asked for: llama.cpp takes the first GPU there is, and 'none' is the CPU")
    return False


def _hosts(names: str) -> tuple[str, ...]:
    if not (hosts := tuple(map(_host, items(names)))):
        raise ValueError("there must be at least one host")
    return hosts


def _host(name: str) -> str:
    """A host as addresses spell it, perhaps with a port."""
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
    """Pictures and sounds: what reads them, and where they may come from."""

    mmproj_url: str | None = flag(
        None,
        MEDIA,
        "-mmu",
        "--mmproj-url",
        metavar="URL",
        parse=http_address,
        env="LLAMA_ARG_MMPROJ_URL",
        help="http(s) address of a projector, which is downloaded once",
    )
    mmproj_auto: bool = flag(
        True,
        MEDIA,
        constants={"--mmproj-auto": True, "--no-mmproj": False, "--no-mmproj-auto": False},
        parse=boolean,
        env="LLAMA_ARG_MMPROJ_AUTO",
        help="take the projector that lies beside a model of -hf, where --mmproj names none (default: yes)",
    )
    media_path: str | None = flag(
        None,
        MEDIA,
        "--media-path",
        metavar="PATH",
        parse=folder,
        help="folder of files that chats may name, as file://cat.png (default: none)",
    )
    allow_media_urls: tuple[str, ...] = flag(
        (),
        MEDIA,
        "--allow-media-urls",
        metavar="HOSTS",
        parse=_hosts,
        separator=",",
        join=together,
        env="LLAMA_ARG_ALLOW_MEDIA_URLS",
        help="hosts from which chats may name files by http(s), with commas between them, each alone or with a port; '*' is any"
        " that is public, one in a private network must be named (default: none)",
    )


def _image_tokens(end: str, which: str) -> Flag:
    """How many tokens a picture takes: the one end of that, or the other."""
    return row(
        MEDIA,
        f"--image-{end}-tokens",
        parse=unset_at(-1, within(EngineConfig, f"image_{end}_tokens"), "(the default) leaves it to the projector"),
        env=f"LLAMA_ARG_IMAGE_{end.upper()}_TOKENS",
        help=f"{which} tokens that a picture takes, of models that leave a choice (default: as the projector says)",
    )


PROJECTOR: Mapping[str, Flag] = {
    "mmproj": row(
        MEDIA,
        "-mm",
        "--mmproj",
        metavar="FNAME",
        env="LLAMA_ARG_MMPROJ",
        help="projector (GGUF) that reads pictures and sounds for the model (default: with -hf, the repository's own)",
    ),
    "mmproj_offload": row(
        MEDIA,
        constants={"--mmproj-offload": True, "--no-mmproj-offload": False},
        parse=boolean,
        also=(Way(_DEVICE, _is_on_gpu, env="MTMD_BACKEND_DEVICE"),),
        env="LLAMA_ARG_MMPROJ_OFFLOAD",
        help="compute with the projector on a GPU, where there is one (default: yes)",
    ),
    **{f"image_{end}_tokens": _image_tokens(end, which) for end, which in (("min", "fewest"), ("max", "most"))},
}
"""Fields of `EngineConfig`."""
