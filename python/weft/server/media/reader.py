"""Reads images and audio from request bodies, the folder of `--media-path`, or allowed hosts."""

import asyncio
import binascii
import os
import re
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from weft import Engine, InvalidRequestError, Media
from weft.errors import NotSupportedError
from weft.fields.excerpt import excerpt
from weft.installed.platform import OPEN_WITHOUT_WAITING
from weft.server.errors import TextsWaitingError
from weft.server.executor import Executor, Purpose
from weft.server.media.files import MAX_FILES, MediaFile, UnreadableError
from weft.server.streaming.client_timeouts import cancel_on_disconnect

MAX_BYTES = 24 * 1024 * 1024
"""Maximum total size of a request's files, in bytes; 32 MiB in base64."""

MAX_FETCHED = 10 * 1024 * 1024
"""Maximum size of a fetched file, in bytes; llama-server's limit."""

FETCH_S = 10.0
"""Timeout for fetching a file, in seconds; llama-server's limit."""

MAX_FETCHES = 16
"""Maximum concurrent fetches of all requests; more are refused."""

_PIECE = 64 * 1024
"""Characters of base64 decoded while holding the GIL."""

_LONGEST_HEAD = 256
"""Maximum characters of a `data:` URI before its data."""


class MediaReader:
    """Reads the images and audio of requests."""

    def __init__(self, engine: Engine, executor: Executor, *, folder: str | None, hosts: Sequence[str]) -> None:
        """Creates a reader.

        Args:
            engine: The engine, whose model has the projector.
            executor: Worker threads for decoding.
            folder: Folder that `file:` URLs may name; None forbids them.
            hosts: Allowed hosts, optionally with a port; `*` allows any public host.
        """
        self._engine = engine
        self._executor = executor
        self._folder = folder
        self._hosts = hosts
        self._n_fetches = 0

    def check(self, files: Sequence[MediaFile]) -> None:
        """Validates number and kinds of files without reading them.

        Raises:
            NotSupportedError: The model does not support this kind of input.
            InvalidRequestError: There are too many files.
        """
        if not files:
            return
        modalities = self._engine.model.modalities
        reads = {"image": modalities.vision, "audio": modalities.audio, None: modalities.vision or modalities.audio}
        for file in files:
            if not reads[file.kind]:
                # llama-server's wording.
                what = "multimodal" if file.kind is None else file.kind
                hint = "hint: if this is unexpected, you may need to provide the mmproj"
                raise NotSupportedError(f"{what} input is not supported - {hint}")
        if len(files) > MAX_FILES:
            raise InvalidRequestError(
                files[0].param, f"there are {len(files)} images and audio files; at most {MAX_FILES} are allowed"
            )

    async def read(self, files: Sequence[MediaFile]) -> list[Media]:
        """Returns the decoded images and audio, in order.

        Raises:
            NotSupportedError: The model does not support this kind of input.
            InvalidRequestError: There are too many files, they are too large, or one is unavailable or malformed.
            QueueFullError: The projector's queue is full.
            TextsWaitingError: Too many files are queued for decoding or being fetched.
            ClientDisconnectedError: The client has disconnected.
            EngineStoppedError: The engine was stopped.
        """
        self.check(files)
        media: list[Media] = []
        n_left = MAX_BYTES
        for file in files:
            try:
                media.append(await self._read(file, n_left))
            except UnreadableError as error:
                raise InvalidRequestError(file.param, f"{file.location}: {error}") from None
            except InvalidRequestError as error:
                raise InvalidRequestError(file.param, f"{file.location}: {error.message}") from None
            n_left -= media[-1].n_bytes
        return media

    async def _read(self, file: MediaFile, n_left: int) -> Media:
        scheme = re.match("(https?|file):", file.source, re.IGNORECASE) if file.may_be_address else None
        content: Callable[[], bytes]
        if scheme is None:
            # Four characters encode three bytes.
            size = len(file.source) * 3 // 4
            content = partial(_decode, file.source, n_left, self._url_hint() if file.may_be_address else "")
        elif scheme[1].lower() == "file":
            if self._folder is None:
                raise UnreadableError("file:// URLs are not allowed unless --media-path is specified")
            path, size = await self._executor.run_in_thread(Purpose.MEDIA, 0, _inside, Path(self._folder), file.source, n_left)
            content = partial(_contents, path, n_left)
        else:
            data = await self._fetched(file.source, min(n_left, MAX_FETCHED))
            content, size = partial(bytes, data), len(data)
        read_media = self._engine.model.read_media
        read = await self._executor.run_in_thread(Purpose.MEDIA, size, lambda: read_media(content()))
        if file.kind not in (None, read.kind):
            raise UnreadableError(f"it is of the kind {read.kind}; it must be of the kind {file.kind}")
        return read

    def _url_hint(self) -> str:
        """Returns a hint for error messages about URLs that are accepted, or an empty string."""
        ways = [*(["file://"] if self._folder is not None else []), *(["http(s)://"] if self._hosts else [])]
        return f"; to refer to a file, use a URL with {' or '.join(ways)}" if ways else ""

    async def _fetched(self, address: str, max_bytes: int) -> bytes:
        if not self._hosts:
            raise UnreadableError("URLs of files are not fetched; start the server with --allow-media-urls")
        if self._n_fetches >= MAX_FETCHES:
            raise TextsWaitingError(f"{self._n_fetches} files are being fetched")
        # Imported lazily: few servers fetch files, and the HTTP client takes some megabytes.
        from weft.server.media.fetching import fetched  # noqa: PLC0415

        self._n_fetches += 1
        try:
            async with asyncio.timeout(FETCH_S):
                task = asyncio.create_task(fetched(address, self._hosts, max_bytes, self._executor))
                return await cancel_on_disconnect(task)
        except TimeoutError:
            raise UnreadableError(f"it was not received within {FETCH_S:g} s") from None
        finally:
            self._n_fetches -= 1


def _decode(source: str, max_bytes: int, hint: str) -> bytes:
    """Decodes base64 or a `data:` URI in base64. Line breaks are ignored and padding is optional.

    Decodes in chunks, so that other threads can acquire the GIL in between.

    Raises:
        UnreadableError: The text is neither, which adds `hint` to the message, or has more than `max_bytes`.
    """
    start = 0
    if source[:5].lower() == "data:":
        start = source.find(",", 0, _LONGEST_HEAD) + 1
        if not source[: max(start - 1, 0)].lower().endswith(";base64"):
            raise UnreadableError(f"{excerpt(source)} is not a base64 data: URI")
    decoded = bytearray()
    rest, is_ended = "", False
    try:
        for location in range(start, len(source), _PIECE):
            # For text without whitespace, `split` compares each character once.
            text = rest + "".join(source[location : location + _PIECE].split())
            whole, rest = text[: len(text) // 4 * 4], text[len(text) // 4 * 4 :]
            if is_ended and text:
                raise binascii.Error
            decoded += binascii.a2b_base64(whole, strict_mode=True)
            is_ended = whole.endswith("=")
            if len(decoded) > max_bytes:
                raise UnreadableError(_too_large())
        rest = rest.rstrip("=")
        decoded += binascii.a2b_base64(rest + "=" * (-len(rest) % 4), strict_mode=True)
    except ValueError:
        raise UnreadableError(f"{excerpt(source)} is not base64{hint}") from None
    if len(decoded) > max_bytes:
        raise UnreadableError(_too_large())
    return bytes(decoded)


def _inside(folder: Path, address: str, max_bytes: int) -> tuple[Path, int]:
    """Returns the resolved path and size of the file in the folder that a `file:` URL names, following symbolic links."""
    name = unquote(re.sub("^file:(//)?(localhost(?=/))?", "", address, flags=re.IGNORECASE))
    refusal = UnreadableError(f"{excerpt(address)} is not a file in the folder of --media-path")
    if "\0" in name:
        raise refusal
    folder = folder.resolve()
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise refusal
        size = path.stat().st_size
    except (OSError, RuntimeError):  # The path is not accessible, or has circular links.
        raise refusal from None
    if size > max_bytes:
        raise UnreadableError(_too_large())
    return path, size


def _contents(path: Path, max_bytes: int) -> bytes:
    """Returns the contents of a file, which may have been replaced since it was checked."""
    try:
        # Opening a pipe would otherwise block until it has a writer.
        with os.fdopen(os.open(path, OPEN_WITHOUT_WAITING), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableError("it is not a regular file")
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror or error}") from None
    if len(data) > max_bytes:
        raise UnreadableError(_too_large())
    return data


def _too_large() -> str:
    return f"images and audio of a request may have {MAX_BYTES} bytes together"
