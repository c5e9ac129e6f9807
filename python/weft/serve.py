"""Granian with one worker process, which owns the engine, under a supervisor that owns nothing.

The supervisor starts another worker if native code ever takes one down, or its engine. It does not where the model cannot be
loaded: the worker says why, the supervisor stops, and the reason is the last line of the log.
"""

import asyncio
import logging
import logging.config
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from granian.constants import Interfaces
from granian.log import LogLevels
from granian.server.mp import MPServer

from weft.engine import DEMO_MODEL, Engine
from weft.errors import EngineStopped, InvalidConfig
from weft.logs import log_config
from weft.progress import bar
from weft.server import create_app
from weft.server.app import Application
from weft.settings import Settings, table

__all__ = ["serve"]

logger = logging.getLogger("weft")

LOADING = "loading"
READY = "ready"
"""What a worker tells its supervisor; anything else is the reason why the model cannot be loaded."""

STOP = "stop"
"""What the supervisor tells a worker."""

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
    host = settings.hosts[0]
    try:
        address, claim = _claim(host, settings.port)
    except OSError as error:
        logger.error("cannot listen on %s:%d: %s", host, settings.port, error.strerror or error)
        return 1
    with claim:
        return _supervise(settings, address, config)


def _supervise(settings: Settings, address: str, config: dict[str, Any]) -> int:
    if settings.model is None:
        logger.info("serving the demo model, %s; give another with -m", Path(DEMO_MODEL).name)
    ours, workers = Pipe()
    server = _Server(
        "weft",
        address=address,
        port=settings.port,
        interface=Interfaces.ASGI,
        websockets=False,
        # Granian stops reading new requests at this many; a full queue is to be answered 429 before that.
        backpressure=settings.max_queue + 1024,
        workers_kill_timeout=KILL_AFTER_S,
        log_dictconfig=config,
        log_level=LogLevels.debug if settings.verbosity >= 5 else LogLevels.error,
    )
    server.line = ours
    server.is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    supervision = _Supervision(server)
    supervision.start()
    try:
        server.serve(target_loader=partial(_worker, settings, workers), wrap_loader=False)
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


def _worker(settings: Settings, line: Connection) -> Callable[..., Any]:
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
        flash_attention=settings.flash_attention,
        tuned=settings.tuned,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        cache_ram=settings.cache_ram,
        max_queue=settings.max_queue,
        max_token_gap_ms=settings.max_token_gap_ms,
        mmap=settings.mmap,
        mlock=settings.mlock,
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
            "ready after %.1f s: %d slots, %d tokens of context, at most %d for one completion; http://%s:%d",
            time.monotonic() - began,
            limits.n_slots,
            limits.n_ctx,
            limits.n_ctx_slot,
            f"[{settings.hosts[0]}]" if ":" in settings.hosts[0] else settings.hosts[0],
            settings.port,
        )

    # Granian has made the worker's loop current, and runs it when it has the application.
    loop = asyncio.get_event_loop()
    # With its engine dead the process is of no use: it ends, and the supervisor starts another.
    app = create_app(engine, settings, on_started=on_started, on_died=partial(os._exit, 1))
    threading.Thread(target=_stop_when_told, args=(line, app, loop), name="weft-line", daemon=True).start()
    return app


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


def _claim(host: str, port: int) -> tuple[str, socket.socket]:
    """The numeric address of `host`, if nobody listens there, and a claim on it that holds until it is closed.

    Granian would listen beside whoever does (SO_REUSEPORT), and each would get some of the connections. Trying to listen finds
    strangers; the claim, a name that one process at a time can have, finds a server like this one that does not listen yet.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    claim = socket.socket(socket.AF_UNIX)
    try:
        # The zero makes it a name without a file (unix(7), abstract sockets), which goes with the process.
        claim.bind(f"\0weft-{address[0]}-{port}")
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError:
        claim.close()
        raise
    return str(address[0]), claim
