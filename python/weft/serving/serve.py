"""Runs Granian with one worker process, which owns the engine, under a supervisor.

The supervisor starts another worker if the worker or its engine crashes, but not if the model cannot be loaded: the worker then
sends the reason, the supervisor stops, and the reason is the last line of the log. Only the worker imports the engine and HTTP
(`weft.serving.worker`), so the supervisor starts immediately and stays small.
"""

import logging
import logging.config
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from granian.constants import Interfaces
from granian.server.mp import MPServer

from weft.demo import DEMO_MODEL
from weft.errors import InvalidConfigError
from weft.installed.platform import is_hangup_ignored
from weft.serving.endpoint import Endpoint, connection_limit
from weft.serving.listening import CannotListenError, claim, tls
from weft.serving.logs import log_config
from weft.serving.protocol import KILL_AFTER_S, LOADING, READY, STOP, reason_of
from weft.settings import Settings
from weft.settings.keys import keys_of

logger = logging.getLogger("weft")


def serve(settings: Settings, warnings: Sequence[str] = ()) -> int:
    """Serves until SIGTERM, SIGINT or SIGHUP. Returns the exit code: 0 after a signal, 1 if serving failed.

    `warnings` are messages about the settings, which are logged first.
    """
    config = log_config(settings)
    try:
        logging.config.dictConfig(config)
    except ValueError as error:  # The cause is the error of the log file.
        logger.error("cannot log to %s: %s", settings.log_file, error.__cause__ or error)
        return 1
    for warning in warnings:
        logger.warning("%s", warning)
    try:
        # Read once, so that a restarted worker has the same keys.
        settings = replace(settings, api_keys=keys_of(settings), api_key_file=None)
        certificate = tls(settings)
        addresses, claims = claim(settings)
    except (InvalidConfigError, CannotListenError) as error:
        logger.error("%s", reason_of(error))
        return 1
    n = connection_limit(len(addresses), settings.engine.max_queue)
    with claims:
        return _supervise(settings, [Endpoint.create(address, settings, certificate, n, config) for address in addresses])


def _supervise(settings: Settings, endpoints: Sequence[Endpoint]) -> int:
    if settings.model is None and settings.source is None:
        logger.info("serving the demo model, %s; give another with -m", Path(DEMO_MODEL).name)
    ours, workers = Pipe()
    server = _Server("weft", interface=Interfaces.ASGI, workers_kill_timeout=KILL_AFTER_S, **endpoints[0].arguments)
    server.line = ours
    server.is_hangup_ignored = is_hangup_ignored()
    supervision = threading.Thread(target=server.supervise, name="weft-supervision", daemon=True)
    supervision.start()
    is_dead = False
    try:
        server.serve(target_loader=partial(_application, settings, endpoints, workers), wrap_loader=False)
    except SystemExit:
        # Granian exits so if a worker has died for good, or was stopped by the same Ctrl-C as the supervisor.
        is_dead = not server.interrupt_signal
    finally:
        # The worker's last message may be the reason for its death, so it is received first.
        workers.close()
        supervision.join()
    if server.failure is not None or is_dead:
        logger.error("%s", server.failure or "the server process died")
        return 1
    return 0


class _Server(MPServer):
    """Granian's supervisor, with a pipe to the worker.

    Granian's worker waits for open responses when it stops, and a stream may take hours. So the worker is first asked, over the
    pipe, to stop its engine, which ends every stream with an error.
    """

    line: Connection
    failure: str | None = None
    """Reason why the model could not be loaded."""
    is_hangup_ignored = False
    """True if SIGHUP was ignored when the server started, as by `nohup`, so that it outlives the terminal."""

    def supervise(self) -> None:
        """Receives the workers' messages until the pipe is closed. A worker that dies is restarted only if it was ready."""
        with suppress(EOFError, OSError):
            while True:
                message = self.line.recv()
                self.respawn_failed_workers = message == READY
                if message not in (LOADING, READY):
                    self.failure = message
                    self.signal_handler_interrupt()

    def signal_handler_interrupt(self, *args: object, **kwargs: object) -> None:
        """Handles a termination signal, and a model that cannot be loaded."""
        with suppress(OSError):  # There is no worker any more.
            self.line.send(STOP)
        super().signal_handler_interrupt(*args, **kwargs)  # type: ignore[no-untyped-call]

    def signal_handler_reload(self, *args: object, **kwargs: object) -> None:
        """Handles SIGHUP. Granian's own handler would start a second engine and drop the streams of the first."""
        if not self.is_hangup_ignored:
            self.signal_handler_interrupt(*args, **kwargs)

    def _write_pidfile(self) -> None:
        """Does nothing: no pid file is used, and Granian's implementation would scan all processes of the machine."""


def _application(settings: Settings, endpoints: Sequence[Endpoint], line: Connection) -> Callable[..., Any]:
    """Creates the application, in the worker process."""
    try:
        from weft.serving.worker import application  # noqa: PLC0415 (not imported in the supervisor, to keep it small)
    except ImportError as error:
        from weft.installed.driver import missing_driver  # noqa: PLC0415 (needed only where an import fails)

        if (driver := missing_driver()) is None:
            raise
        line.send(str(driver))
        raise SystemExit(1) from error
    return application(settings, endpoints, line)
