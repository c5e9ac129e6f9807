"""Worker process: runs the engine and the application that serves it."""

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
from typing import TYPE_CHECKING, Any, cast

from granian.constants import Interfaces
from granian.server.embed import Server as EmbeddedServer

from weft._native import trim_allocator, use_short_time_slices
from weft.engine import Engine
from weft.errors import EngineStoppedError
from weft.installed.platform import ignore_hangup
from weft.serving.connections import App, Connections
from weft.serving.endpoint import Endpoint, head_s
from weft.serving.idle_memory import Collector
from weft.serving.listening import is_listening
from weft.serving.local_engine import new_engine
from weft.serving.protocol import KILL_AFTER_S, LOADING, READY, reason_of
from weft.settings import Settings

if TYPE_CHECKING:
    from weft.hub.progress import Progress
    from weft.server.gateway import Gateway

logger = logging.getLogger("weft")

SWITCH_INTERVAL_S = 0.0001
"""Interpreter switch interval, in seconds: how long a thread may hold the GIL while the event loop waits for it."""

LISTENING_INTERVAL_S = 0.001
MAX_LISTENING_POLLS = 1_000
"""Poll interval in seconds, and maximum number of polls, until Granian listens; that takes milliseconds."""


def application(settings: Settings, endpoints: Sequence[Endpoint], line: Connection) -> Callable[..., Any]:
    """Creates the application, while its model is being loaded. The supervisor has the other end of `line`."""
    line.send(LOADING)
    # Chats are rendered on worker threads. With the default interval of 5 ms they would delay the event loop too long.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    trim_allocator()
    use_short_time_slices()  # Also applies to Granian's threads, which are started later.
    # Closing the terminal sends SIGHUP to every process; only the supervisor handles it.
    ignore_hangup()
    began = time.monotonic()
    fetched: dict[str, Any] = {}

    def on_fetching(progress: "Progress") -> None:
        fetched["download"] = {"file": progress.file, "bytes": progress.n_bytes, "total": progress.n_total}

    engine = new_engine(settings, has_bar=settings.verbosity >= 3, on_fetching=on_fetching)

    def on_started(error: Exception | None) -> None:
        if isinstance(error, EngineStoppedError):  # Stopped while the model was being loaded.
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
            ", ".join(endpoint.url for endpoint in endpoints),
        )

    # Granian has made the worker's loop current, and runs it when it has the application. One iteration starts the load of the
    # model on another thread, which does not need the GIL, while this thread imports all of HTTP.
    loop = asyncio.get_event_loop()
    loading = loop.create_task(_start(engine, endpoints))
    loop.run_until_complete(asyncio.sleep(0))
    # Objects created from here on are permanent. They are frozen, because a full collection that traverses them delays every
    # stream by 15 ms.
    gc.disable()
    from weft.server import create_app  # noqa: PLC0415

    connections = Connections(
        ports=[endpoint.address.port for endpoint in endpoints if endpoint.address.path is None],
        limit_s=head_s(settings),
        unread_s=settings.timeout_s,
        n_max=endpoints[0].n_connections,
    )
    # Without its engine the process is useless, so it exits and the supervisor starts another.
    app = create_app(
        engine,
        settings,
        loading=loading,
        on_started=on_started,
        on_died=partial(os._exit, 1),
        background=partial(_listen_also, endpoints[1:], connections, line),
    )
    app.service.lifecycle.loading = fetched
    gc.freeze()
    gc.enable()
    Collector(lambda: app.service.is_idle).start(loop)
    threading.Thread(target=_stop_on_request, args=(line, app, loop), name="weft-line", daemon=True).start()
    connections.start(app.service.refusals, loop)
    return connections.wrap(cast("App", app))


async def _start(engine: Engine, endpoints: Sequence[Endpoint]) -> None:
    """Starts the engine; returns when it is running and the server is listening.

    A small model may be loaded before Granian listens, which has no notification for that. The log must not report that the
    server is ready while it refuses connections.
    """
    await engine.start()
    for _ in range(MAX_LISTENING_POLLS):
        if all(is_listening(endpoint.address) for endpoint in endpoints):
            return
        await asyncio.sleep(LISTENING_INTERVAL_S)


@asynccontextmanager
async def _listen_also(
    endpoints: Sequence[Endpoint], connections: Connections, line: Connection, app: "Gateway"
) -> AsyncIterator[None]:
    """Listens on all endpoints but the first, in the same process and event loop, since Granian's worker supports only one."""
    serving: dict[asyncio.Task[None], EmbeddedServer] = {}
    for endpoint in endpoints:
        if endpoint.address.path is not None:
            # Left behind by a worker that crashed.
            endpoint.address.path.unlink(missing_ok=True)
        server = EmbeddedServer(connections.wrap(cast("App", app)), interface=Interfaces.ASGINL, **endpoint.arguments)
        task = asyncio.create_task(server.serve())
        task.add_done_callback(partial(_report_failure, endpoint, line))
        serving[task] = server
    yield
    for server in serving.values():
        server.stop()  # type: ignore[no-untyped-call]
    if serving:
        await asyncio.wait(serving, timeout=KILL_AFTER_S / 2)


def _report_failure(endpoint: Endpoint, line: Connection, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        line.send(f"cannot listen on {endpoint.address.name}: {str(error).partition(chr(10))[0]}")


def _stop_on_request(line: Connection, app: "Gateway", loop: asyncio.AbstractEventLoop) -> None:
    """Stops the engine when the supervisor requests it, and the process if the supervisor was killed.

    Otherwise an orphaned worker would keep the port in use.
    """
    supervisor = parent_process()
    assert supervisor is not None, "a worker is a child of the process that serves"
    ready = wait([line, supervisor.sentinel])
    asyncio.run_coroutine_threadsafe(app.service.stop_engine(), loop)
    if line not in ready:
        os.kill(os.getpid(), signal.SIGTERM)
