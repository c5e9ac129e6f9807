"""`python -m weft top`: live display of a running server's state in a terminal."""

import signal
import sys
import time
from datetime import datetime
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from weft.cli.top.client import Server
from weft.cli.top.server_access import NoAnswerError
from weft.cli.top.state import Rates, ServerState
from weft.cli.top.view import page, unavailable

PLAIN_WIDTH, PLAIN_HEIGHT = 130, 48
"""Columns and lines of a page if the output is not a terminal."""


def top(
    _: object, *, url: str = "http://127.0.0.1:8080", key: str | None = None, interval_s: float = 1.0, once: bool = False
) -> int:
    """Displays the state of a server until Ctrl-C; without a terminal, prints one page after the other as plain text.

    Returns the exit code: 0, also after Ctrl-C; 1 if the server did not respond to `once`; 2 if `url` is not that of a server. A
    closed output pipe ends the process with 1.
    """
    try:
        server = Server(url, key)
    except ValueError as error:
        print(f"python -m weft top: error: {error}", file=sys.stderr)
        return 2
    # A pipe or a file has no width.
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    watch = _Watch(server, Console(width=width, highlight=False, markup=False))
    handled = signal.getsignal(signal.SIGINT)
    if handled is not signal.SIG_IGN:  # It is ignored in the background of a script.
        signal.signal(signal.SIGINT, watch.interrupt)
    try:
        return watch.once(interval_s) if once else watch.run(interval_s)
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGINT, handled)


class _Watch:
    def __init__(self, server: Server, console: Console) -> None:
        self._server = server
        self._console = console
        self._last: ServerState | None = None
        self._is_interrupted = False

    def interrupt(self, *_: object) -> NoReturn:
        """Handles Ctrl-C. If the exception is lost because a destructor was running, the next pause raises it again."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def _pause(self, seconds: float) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        time.sleep(seconds)

    def once(self, interval_s: float) -> int:
        """Prints one page, with rates over one interval. Returns the exit code."""
        try:
            self._render()
            self._pause(interval_s)
            self._console.print(self._render())
        except NoAnswerError as error:
            print(f"top: {error}", file=sys.stderr)
            return 1
        return 0

    def run(self, interval_s: float) -> int:
        """Displays pages forever, even while the server does not respond, since it may be restarted."""
        if not self._console.is_terminal:
            while True:
                self._console.print(self._page_or_reason(), end="\n\n")
                self._pause(interval_s)
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(self._page_or_reason(), refresh=True)
                self._pause(interval_s)

    def _page_or_reason(self) -> RenderableType:
        try:
            return self._render()
        except NoAnswerError as error:
            self._last = None
            return unavailable(str(error), datetime.now().astimezone())

    def _render(self) -> RenderableType:
        before, self._last = self._last, self._server.fetch_state()
        rates = Rates.between(before, self._last)
        height = self._console.height if self._console.is_terminal else PLAIN_HEIGHT
        now = datetime.now().astimezone()
        return page(self._server.url, self._last, rates, height=height, width=self._console.width, now=now)
