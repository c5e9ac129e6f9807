"""The worker process: the engine, and the application that serves it."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from granian.constants import Interfaces
from granian.server.embed import Server as EmbeddedServer

from weft._native import answer_at_once, trim_allocator
from weft.demo import DEMO_MODEL
from weft.engine import Engine
from weft.errors import EngineStopped
from weft.installed.platform import ignore_hangup
from weft.serving.connections import App, Connections
from weft.serving.idle_memory import Collector
from weft.serving.line import KILL_AFTER_S, LOADING, READY, reason_of
from weft.serving.listening import is_listening
from weft.serving.place import Place, head_s
from weft.serving.progress import bar
from weft.settings import Settings

if TYPE_CHECKING:
    from weft.hub.progress import Progress
    from weft.server.app import Application

__all__ = ["application"]

logger = logging.getLogger("weft")

SWITCH_INTERVAL_S = 0.0001
"""Seconds for which a thread keeps the interpreter that the event loop waits for."""

LISTENING_INTERVAL_S = 0.001
LISTENING_LOOKS = 1_000
"""How often, and how many times at most, it is looked whether Granian listens yet: milliseconds pass."""


def application(settings: Settings, places: Sequence[Place], config: dict[str, Any], line: Connection) -> Callable[..., Any]:
    """Makes the application, whose model is being loaded by then. The supervisor has the other end of the line."""
    line.send(LOADING)
    # Chats are rendered on threads beside the event loop, which gets the interpreter back after this time and not after 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    trim_allocator()
    answer_at_once()  # Granian's threads, which are started later, as well.
    # A terminal that closes tells every process; what is to happen then, the supervisor decides.
    ignore_hangup()
    began = time.monotonic()
    fetched: dict[str, Any] = {}
    engine = _engine(settings, fetched)

    def on_started(error: Exception | None) -> None:
        if isinstance(error, EngineStopped):  # Told to stop before the model was there.
            return
        if error is not None:
            line.send(reason_of(error))
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

    # Granian has made the worker's loop current, and runs it when it has the application. One turn of it begins to load the model
    # on another thread, which needs no interpreter, while this one imports all of HTTP.
    loop = asyncio.get_event_loop()
    loading = loop.create_task(_start(engine, places))
    loop.run_until_complete(asyncio.sleep(0))
    # All that comes now stays. The collector is not to look at it again and again while it comes, nor ever afterwards, when it
    # would hold every stream up for 15 ms.
    gc.disable()
    from weft.server import create_app  # noqa: PLC0415

    connections = Connections(
        ports=[place.address.port for place in places if place.address.path is None],
        limit_s=head_s(settings),
        unread_s=settings.timeout_s,
        n_max=places[0].n_connections,
    )
    # With its engine dead the process is of no use: it ends, and the supervisor starts another.
    app = create_app(
        engine,
        settings,
        loading=loading,
        on_started=on_started,
        on_died=partial(os._exit, 1),
        beside=partial(_listen_also, places[1:], connections, settings=settings, config=config, line=line),
    )
    app.service.loading = fetched
    gc.freeze()
    gc.enable()
    Collector(lambda: app.service.is_idle).start(loop)
    threading.Thread(target=_stop_when_told, args=(line, app, loop), name="weft-line", daemon=True).start()
    connections.start(app.service.refusals, loop)
    return connections.watching(cast("App", app))


def _engine(settings: Settings, fetched: dict[str, Any]) -> Engine:
    """The engine, which writes to `fetched` how far its model's download is, if there is one."""
    shows = settings.verbosity >= 3
    source, projector = settings.source, settings.projector_source
    if source is None and projector is None:
        title = f"loading {Path(settings.model or DEMO_MODEL).name}"
        return Engine(settings.model, config=settings.engine, on_progress=bar(title) if shows else None)
    from weft.serving.fetching import FetchingEngine  # noqa: PLC0415

    def on_fetching(progress: "Progress") -> None:
        fetched["download"] = {"file": progress.file, "bytes": progress.n_bytes, "total": progress.n_total}

    name = source.name if source is not None else Path(settings.model or DEMO_MODEL).name
    return FetchingEngine(
        source or settings.model,
        projector,
        config=settings.engine,
        has_bar=shows,
        on_fetching=on_fetching,
        on_progress=bar(f"loading {name}") if shows else None,
    )


async def _start(engine: Engine, places: Sequence[Place]) -> None:
    """Starts the engine; returns when it runs and the server listens.

    A small model is there before Granian listens, which it does once the application has started, and tells nobody. Who reads in
    the log that the server is ready must not find it closed.
    """
    await engine.start()
    for _ in range(LISTENING_LOOKS):
        if all(is_listening(place.address) for place in places):
            return
        await asyncio.sleep(LISTENING_INTERVAL_S)


@asynccontextmanager
async def _listen_also(
    places: Sequence[Place],
    connections: Connections,
    app: "Application",
    *,
    settings: Settings,
    config: dict[str, Any],
    line: Connection,
) -> AsyncIterator[None]:
    """Serves at the places beside the first, in the same process and on the same loop: Granian's worker has one."""
    serving: dict[asyncio.Task[None], EmbeddedServer] = {}
    for place in places:
        if place.address.path is not None:
            # A worker that crashed has left it behind.
            place.address.path.unlink(missing_ok=True)
        server = EmbeddedServer(
            connections.watching(cast("App", app)), interface=Interfaces.ASGINL, **place.granian(settings, config)
        )
        task = asyncio.create_task(server.serve())
        task.add_done_callback(partial(_tell_failure, place, line))
        serving[task] = server
    yield
    for server in serving.values():
        server.stop()  # type: ignore[no-untyped-call]
    if serving:
        await asyncio.wait(serving, timeout=KILL_AFTER_S / 2)


def _tell_failure(place: Place, line: Connection, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        line.send(f"cannot listen on {place.address.name}: {str(error).partition(chr(10))[0]}")


def _stop_when_told(line: Connection, app: "Application", loop: asyncio.AbstractEventLoop) -> None:
    """Stops the engine when the supervisor says so, and the process too where the supervisor was killed.

    Such a process would hold the port with nobody to stop it.
    """
    supervisor = parent_process()
    assert supervisor is not None, "a worker is a child of the process that serves"
    ready = wait([line, supervisor.sentinel])
    asyncio.run_coroutine_threadsafe(app.service.stop_engine(), loop)
    if line not in ready:
        os.kill(os.getpid(), signal.SIGTERM)
