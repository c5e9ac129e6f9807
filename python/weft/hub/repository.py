"""Models in a repository of the hub, or in its local cache."""

import logging
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from weft.hub.choice import choose, projector_for
from weft.hub.download import Remote, download, fetched_or_cached
from weft.hub.failure import Unavailable, not_cached, reason
from weft.hub.folders import HASH, holding, hub_folder, repository_folder, snapshots
from weft.hub.progress import DownloadCounter
from weft.hub.source import ModelFiles, Source

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger("weft")


def find(source: Source, counter: DownloadCounter) -> ModelFiles:
    """Returns the path of the model's file (the first part of a split model) and, if requested, of its projector.

    Downloads missing files. Resolves the current commit online.

    Raises:
        Unavailable: The model is not available.
    """
    from huggingface_hub import constants, get_token  # noqa: PLC0415
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415

    repo, _, quant = str(source.repo).partition(":")
    hub = hub_folder()
    try:
        return fetched_or_cached(
            partial(_fetch, hub, repo, quant or None, source, counter),
            partial(_cached, hub, repo, quant or None, source),
            partial(reason, where=f"{constants.ENDPOINT}/{repo}", has_token=bool(source.token or get_token())),
            offline=source.offline,
            is_hub=True,
        )
    except HFValidationError as error:
        raise Unavailable(str(error)) from None


def _cached(hub: Path, repo: str, quant: str | None, source: Source) -> ModelFiles:
    why = not_cached(hub)
    for commit, files in snapshots(repository_folder(hub, repo)):
        try:
            name = choose(files, quant, source.file)[0]
        except Unavailable as error:
            why = f"in the cache {hub}, {error}; --offline prevents downloads"
            continue
        logger.info("%s is cached: %s", repo, commit / name)
        return _model_files(commit, name, _projector(name, files, source))
    raise Unavailable(why)


def _fetch(hub: Path, repo: str, quant: str | None, source: Source, counter: DownloadCounter) -> ModelFiles:
    from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url  # noqa: PLC0415
    from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

    info = HfApi(token=source.token).model_info(repo, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    files = {file.rfilename: file for file in info.siblings or ()}
    if info.sha is None or HASH.fullmatch(info.sha) is None:
        raise Unavailable("the hub does not report its commit")
    names: tuple[str, ...] = choose(files, quant, source.file)
    if (projector := _projector(names[0], files, source)) is not None:
        names = (*names, projector)
    if outside := [name for name in names if ".." in name.split("/") or name.startswith("/")]:
        raise Unavailable(f"the hub lists {outside[0]}, a path outside the cache")
    folder = repository_folder(hub, repo)
    missing = [name for name in names if not (folder / "snapshots" / info.sha / name).is_file()]
    if not missing:
        logger.info("%s is cached: %s", repo, names[0])
    else:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        counter.expect(f"{repo}: {names[0]}{more}", [files[name].size for name in missing])
    headers = build_hf_headers(token=source.token)
    for name in missing:
        key, n_bytes = _key(files[name]), files[name].size
        if key is None or (n_bytes is not None and n_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE):
            # The hub serves the largest files only in chunks, which its library assembles.
            hf_hub_download(repo, name, revision=info.sha, cache_dir=hub, token=source.token)
            continue
        remote = Remote(
            name=name,
            url=hf_hub_url(repo, name, revision=info.sha),
            headers=headers,
            etag=f'"{key}"',
            size=n_bytes,
            sha256=key if files[name].lfs is not None else None,
        )
        _download(remote, folder / "blobs" / key, folder / "snapshots" / info.sha / name, counter)
    # Written last, so that the reference only names a complete commit.
    _write_ref(folder / "refs" / "main", info.sha)
    return _model_files(folder / "snapshots" / info.sha, names[0], projector)


def _projector(model: str, files: Iterable[str], source: Source) -> str | None:
    return projector_for(model, files) if source.wants_projector else None


def _model_files(commit: Path, model: str, projector: str | None) -> ModelFiles:
    if projector is not None:
        logger.info("its projector is %s", projector)
    return ModelFiles(commit / model, None if projector is None else commit / projector)


def _key(file: "RepoSibling") -> str | None:
    """Returns the hash that names a file in the cache of the hub's library."""
    key = file.lfs.sha256 if file.lfs is not None else file.blob_id
    return key if key is not None and HASH.fullmatch(key) is not None else None


def _download(remote: Remote, blob: Path, pointer: Path, counter: DownloadCounter) -> None:
    """Downloads a file to the cache location of the hub's library, and links its name to it.

    The library's own download would restart from the beginning after each interruption.
    """
    folder = blob.parent.parent
    with holding(folder.parent / ".locks" / folder.name / f"{blob.name}.lock"):
        if not blob.is_file():
            download(remote, blob, blob.with_name(f"{blob.name}.incomplete"), counter)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        # Replaces a dangling link.
        pointer.unlink(missing_ok=True)
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:  # The file system does not support links.
            blob.replace(pointer)


def _write_ref(path: Path, commit: str) -> None:
    if not path.is_file() or path.read_text(encoding="ascii") != commit:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit, encoding="ascii")
