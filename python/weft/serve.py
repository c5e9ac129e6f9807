"""Granian with one worker process, which owns the engine, under a supervisor that owns nothing.

The supervisor starts another worker if native code ever takes one down, or its engine. It does not where the model cannot be
loaded: the worker says why, the supervisor stops, and the reason is the last line of the log.
"""

import asyncio
import logging
import logging.config
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from granian.constants import Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server as EmbeddedServer
from granian.server.mp import MPServer

from weft.engine import DEMO_MODEL, Engine
from weft.errors import EngineStopped, InvalidConfig
from weft.listening import Address, CannotListenError, claim, tls
from weft.logs import log_config
from weft.progress import bar
from weft.server import create_app
from weft.server.app import Application
from weft.server.auth import keys_of
from weft.settings import Settings, table

__all__ = ["serve"]

logger = logging.getLogger("weft")

LOADING = "loading"
READY = "ready"
"""What a worker tells its supervisor; anything else is the reason why the model cannot be loaded."""

STOP = "stop"
"""What the supervisor tells a worker."""

HEADER_S = 30
"""Most seconds that the head of a request may take, and that a connection may be idle between two requests of HTTP/1.1; a shorter
`--timeout` makes it less. (Granian leaves a connection open on which nothing was ever sent.)"""

KILL_AFTER_S = 1
"""A worker that has not ended this long after it was told to is killed: SIGTERM is to end the server within two seconds."""


def serve(settings: Settings, warnings: Sequence[str] = ()) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP. Returns the exit code: 0 then, 1 if it could not serve.

    `warnings` are about the settings, and are said first.
    """
    config = log_config(settings)
    try:
        logging.config.dictConfig(config)
    except ValueError as error:  # What could not be opened is its cause's.
        logger.error("cannot log to %s: %s", settings.log_file, error.__cause__ or error)
        return 1
    for warning in warnings:
        logger.warning("%s", warning)
    try:
        # Read once: a worker that is started again has the same keys.
        settings = replace(settings, api_keys=keys_of(settings), api_key_file=None)
        certificate = tls(settings)
        addresses, claims = claim(settings)
    except (InvalidConfig, CannotListenError) as error:
        logger.error("%s", _reason(error))
        return 1
    with claims:
        return _supervise(settings, [_Place(address, certificate, settings.api_prefix) for address in addresses], config)


@dataclass(frozen=True)
class _Place:
    """One place to listen at, as Granian is told of it."""

    address: Address
    certificate: tuple[Path, Path] | None
    """The files of the key and the certificate."""
    prefix: str = ""
    """What every path there begins with."""

    @property
    def url(self) -> str:
        return self.address.url(is_tls=self.certificate is not None, prefix=self.prefix)

    def granian(self, settings: Settings, config: dict[str, Any]) -> dict[str, Any]:
        """The arguments of either of Granian's servers."""
        key, certificate = self.certificate or (None, None)
        return {
            "address": self.address.host,
            "port": self.address.port,
            "uds": self.address.path,
            "websockets": False,
            # Granian stops reading new requests at this many; a full queue is to be answered 429 before that.
            "backpressure": settings.max_queue + 1024,
            "http1_settings": HTTP1Settings(header_read_timeout=min(HEADER_S, settings.timeout_s) * 1000),
            "ssl_key": key,
            "ssl_cert": certificate,
            # As llama-server, whose clients may be older than 1.3.
            "ssl_protocol_min": SSLProtocols.tls12,
            "log_dictconfig": config,
            "log_level": LogLevels.debug if settings.verbosity >= 5 else LogLevels.error,
        }


def _supervise(settings: Settings, places: Sequence[_Place], config: dict[str, Any]) -> int:
    if settings.model is None:
        logger.info("serving the demo model, %s; give another with -m", Path(DEMO_MODEL).name)
    ours, workers = Pipe()
    server = _Server("weft", interface=Interfaces.ASGI, workers_kill_timeout=KILL_AFTER_S, **places[0].granian(settings, config))
    server.line = ours
    server.is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    supervision = _Supervision(server)
    supervision.start()
    try:
        server.serve(target_loader=partial(_worker, settings, places, config, workers), wrap_loader=False)
    except SystemExit:
        # Granian's way to say that a worker has died for good, or was stopped by the same Ctrl-C as the supervisor.
        if not server.interrupt_signal:
            logger.error("the server process died")
            return 1
    finally:
        workers.close()
        supervision.join()
    if supervision.failure is not None:
        logger.error("%s", supervision.failure)
        return 1
    return 0


class _Server(MPServer):
    """Granian's supervisor, with a line to the worker.

    Granian's worker lets open answers come to their end before it stops, and a stream may have hours to go. So the worker is
    told over the line to stop its engine first, which ends every stream with an error that says so.
    """

    line: Connection
    is_hangup_ignored = False
    """Whether whoever started the server wants it to outlive the terminal, as `nohup` does."""

    def signal_handler_interrupt(self, *args: object, **kwargs: object) -> None:
        """Called when a signal has come, and when a model cannot be loaded."""
        with suppress(OSError):  # No worker is left to hear it.
            self.line.send(STOP)
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]

    def signal_handler_reload(self, *args: object, **kwargs: object) -> None:
        """Called at SIGHUP, where Granian would put a second engine beside the first and drop the streams of that."""
        if not self.is_hangup_ignored:
            self.signal_handler_interrupt(*args, **kwargs)


class _Supervision(threading.Thread):
    """Hears what workers tell: a worker that dies is replaced only if it was ready."""

    def __init__(self, server: _Server) -> None:
        super().__init__(name="weft-supervision", daemon=True)
        self.failure: str | None = None
        self._server = server

    def run(self) -> None:
        """Runs until no process is left that could tell anything."""
        while (told := self._next()) is not None:
            self._server.respawn_failed_workers = told == READY
            if told not in (LOADING, READY):
                self.failure = told
                self._server.signal_handler_interrupt()

    def _next(self) -> str | None:
        try:
            return str(self._server.line.recv())
        except (EOFError, OSError):
            return None


def _worker(settings: Settings, places: Sequence[_Place], config: dict[str, Any], line: Connection) -> Callable[..., Any]:
    """The application, made in the worker process."""
    line.send(LOADING)
    # A terminal that closes tells every process; what is to happen then, the supervisor decides.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    began = time.monotonic()
    engine = Engine(
        settings.model,
        slots=settings.slots,
        ctx_size=settings.ctx_size,
        kv_unified=settings.kv_unified,
        batch_size=settings.batch_size,
        ubatch_size=settings.ubatch_size,
        threads=settings.threads,
        threads_batch=settings.threads_batch,
        gpu_layers=settings.gpu_layers,
        kernels=settings.kernels,
        flash_attention=settings.flash_attention,
        tuned=settings.tuned,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        cache_ram=settings.cache_ram,
        max_queue=settings.max_queue,
        max_token_gap_ms=settings.max_token_gap_ms,
        mmap=settings.mmap,
        mlock=settings.mlock,
        direct_io=settings.direct_io,
        check_tensors=settings.check_tensors,
        devices=settings.devices,
        split_mode=settings.split_mode,
        main_gpu=settings.main_gpu,
        tensor_split=settings.tensor_split,
        numa=settings.numa,
        repack=settings.repack,
        on_progress=bar(f"loading {Path(settings.model or DEMO_MODEL).name}") if settings.verbosity >= 3 else None,
    )

    def on_started(error: Exception | None) -> None:
        if isinstance(error, EngineStopped):  # Told to stop before the model was there.
            return
        if error is not None:
            line.send(_reason(error))
            return
        line.send(READY)
        limits = engine.limits
        logger.info(
            "ready after %.1f s: %d slots, %d tokens of context, at most %d for one completion; %s",
            time.monotonic() - began,
            limits.n_slots,
            limits.n_ctx,
            limits.n_ctx_slot,
            ", ".join(place.url for place in places),
        )

    # Granian has made the worker's loop current, and runs it when it has the application.
    loop = asyncio.get_event_loop()
    # With its engine dead the process is of no use: it ends, and the supervisor starts another.
    app = create_app(
        engine,
        settings,
        on_started=on_started,
        on_died=partial(os._exit, 1),
        beside=partial(_listen_also, places[1:], settings, config, line),
    )
    threading.Thread(target=_stop_when_told, args=(line, app, loop), name="weft-line", daemon=True).start()
    return app


@asynccontextmanager
async def _listen_also(
    places: Sequence[_Place], settings: Settings, config: dict[str, Any], line: Connection, app: Application
) -> AsyncIterator[None]:
    """Serves at the places beside the first, in the same process and on the same loop: Granian's worker has one."""
    serving: dict[asyncio.Task[None], EmbeddedServer] = {}
    for place in places:
        if place.address.path is not None:
            # A worker that crashed has left it behind.
            place.address.path.unlink(missing_ok=True)
        server = EmbeddedServer(app, interface=Interfaces.ASGINL, **place.granian(settings, config))
        task = asyncio.create_task(server.serve())
        task.add_done_callback(partial(_tell_failure, place, line))
        serving[task] = server
    yield
    for server in serving.values():
        server.stop()  # type: ignore[no-untyped-call]
    if serving:
        await asyncio.wait(serving, timeout=KILL_AFTER_S / 2)


def _tell_failure(place: _Place, line: Connection, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        line.send(f"cannot listen on {place.address.name}: {str(error).partition(chr(10))[0]}")


def _reason(error: Exception) -> str:
    """What keeps the engine from starting; a setting is named as a user spells it."""
    if not isinstance(error, InvalidConfig):
        return str(error)
    if (flag := table().get(error.param)) is None:
        return str(error)
    spelt = "/".join(flag.spellings)
    if error.param in error.message:
        return error.message.replace(error.param, spelt)
    return f"{spelt}: {error.message}"


def _stop_when_told(line: Connection, app: Application, loop: asyncio.AbstractEventLoop) -> None:
    """Stops the engine when the supervisor says so, and the process too where the supervisor was killed.

    Such a process would hold the port with nobody to stop it.
    """
    supervisor = parent_process()
    assert supervisor is not None, "a worker is a child of the process that serves"
    ready = wait([line, supervisor.sentinel])
    asyncio.run_coroutine_threadsafe(app.service.stop_engine(), loop)
    if line not in ready:
        os.kill(os.getpid(), signal.SIGTERM)
