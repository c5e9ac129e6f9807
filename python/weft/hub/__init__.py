"""Downloads of models by name, from the Hugging Face hub and other servers.

    path = weft.hub.model("ggml-org/gemma-3-1b-it-GGUF:Q8_0")
    async with weft.Engine(path) as engine: ...

Requires the optional package huggingface-hub, which is imported on first use.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from weft.errors import ModelLoadError
from weft.hub.failure import Unavailable
from weft.hub.progress import DownloadCounter, Progress
from weft.hub.source import ModelFiles, Source, docker_name, http_address, repo_name

__all__ = ["ModelFiles", "Progress", "Source", "cached", "find", "model"]


def model(
    repo: str | None = None,
    *,
    file: str | None = None,
    url: str | None = None,
    docker: str | None = None,
    token: str | None = None,
    offline: bool = False,
    on_progress: Callable[[Progress], object] | None = None,
) -> Path:
    """Returns the path of a model's file, after downloading it if necessary. Blocks meanwhile.

    An interrupted download continues where it was, also in another process; concurrent downloads of a model wait for each other.
    Downloads are checked for their length and, on the hub, their hash. A terminal shows a progress bar.

    Args:
        repo: `USER/MODEL` or `USER/MODEL:QUANT` of the hub; the quantization is case-insensitive. The default is Q4_K_M, then
            Q8_0, then the first GGUF file. `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE` and `HF_HUB_OFFLINE` apply.
        file: File of the repository, instead of a quantization.
        url: http(s) URL of a GGUF file, instead of a repository.
        docker: `[REPO/]MODEL[:TAG]` of Docker's registry, instead of a repository of the hub; the default of `REPO` is `ai`, of
            `TAG` `latest`. `WEFT_DOCKER_REGISTRY` may be the URL of another registry, such as a mirror.
        token: Access token for the hub; None is `HF_TOKEN`, or the token stored by `hf auth login`.
        offline: Uses cached files only.
        on_progress: Called after each chunk of the download.

    Returns:
        Path of a GGUF file: the first part of a split model, next to the others.

    Raises:
        ModelLoadError: The model is not available; `reason` has the details.
        ValueError: The name of the repository or image, or the URL, is invalid, or not exactly one of them is given.
    """
    if [repo, url, docker].count(None) != 2:
        raise ValueError("name a repository, a URL or an image of Docker's registry")
    source = Source(
        repo=None if repo is None else repo_name(repo),
        file=file,
        url=None if url is None else http_address(url),
        docker=None if docker is None else docker_name(docker),
        token=token,
        offline=offline,
    )
    return find(source, on_progress).model


def find(source: Source, on_progress: Callable[[Progress], object] | None = None, *, has_bar: bool = True) -> ModelFiles:
    """Returns the paths of a model's file, as `model` does, and of its projector if the source requests it.

    Raises:
        ModelLoadError: The model is not available.
    """
    _need_library(source.name)
    from weft.hub import docker, repository, url  # noqa: PLC0415 (they require huggingface-hub)

    try:
        counter = DownloadCounter(on_progress, has_bar)
        if source.docker is not None:
            return ModelFiles(docker.find(source, counter))
        return repository.find(source, counter) if source.url is None else ModelFiles(url.find(source, counter))
    except Unavailable as error:
        raise ModelLoadError(source.name, str(error)) from None


def cached() -> list[str]:
    """Returns all downloads: `USER/MODEL:QUANT` of the hub, then URLs, then Docker images, each in alphabetical order.

    Raises:
        ModelLoadError: The package huggingface-hub, which defines the cache folder, is not installed.
    """
    _need_library("by its name")
    from weft.hub.folders import cached as in_folders  # noqa: PLC0415

    return in_folders()


def _need_library(name: str) -> None:
    if find_spec("huggingface_hub") is None:
        raise ModelLoadError(name, "downloads require the package huggingface-hub: pip install huggingface-hub")
