"""`python -m weft top`: what a running server does, live in a terminal."""

import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from weft.cli.top.asking import NoAnswerError, Server
from weft.cli.top.looks import Look, Rates
from weft.cli.top.view import page, unanswered

__all__ = ["top"]

LEAST_S, MOST_S = 0.1, 3_600.0
"""Between two looks, in seconds."""

PLAIN_WIDTH, PLAIN_HEIGHT = 130, 48
"""Columns and lines of a page that no terminal shows."""


def top(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Shows what a server does, until Ctrl-C; where the output is no terminal, one page after the other in plain text.

    Returns the exit code: 0, also after Ctrl-C; 1 where `--once` got no answer. A wrong command line ends the process with 2, and
    an output that nobody reads any more with 1.
    """
    parser = _parser()
    given = parser.parse_args(argv)
    if not LEAST_S <= given.interval <= MOST_S:
        parser.error(f"--interval is {given.interval:g}; it must be {LEAST_S:g} to {MOST_S:,.0f} seconds")
    try:
        server = Server(given.url, given.api_key or environ.get("LLAMA_API_KEY"))
    except ValueError as error:
        parser.error(str(error))
    # A pipe or a file has no width of its own.
    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    watch = _Watch(server, Console(width=width, highlight=False, markup=False))
    handled = signal.getsignal(signal.SIGINT)
    if handled is not signal.SIG_IGN:  # Not in the background of a script.
        signal.signal(signal.SIGINT, watch.interrupt)
    try:
        return watch.once(given.interval) if given.once else watch.run(given.interval)
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGINT, handled)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m weft top",
        description="Shows what a running server does: slots, queue, cells, tokens per second, hit rate, and the prefixes that "
        "were found most often. Rates need a server that was started with --metrics.",
        epilog="Ctrl-C ends it. Where the output is no terminal, it is plain text, one page after the other.",
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8080", help="where it is (%(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="the key that it asks for [LLAMA_API_KEY]")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two looks (%(default)g)")
    parser.add_argument("--once", action="store_true", help="look twice, print what there was between, and end")
    return parser


class _Watch:
    def __init__(self, server: Server, console: Console) -> None:
        self._server = server
        self._console = console
        self._last: Look | None = None
        self._is_interrupted = False

    def interrupt(self, *_: object) -> NoReturn:
        """Called at Ctrl-C. What it raises is lost where Python happens to run a destructor; then the next pause raises it."""
        self._is_interrupted = True
        raise KeyboardInterrupt

    def _pause(self, seconds: float) -> None:
        if self._is_interrupted:
            raise KeyboardInterrupt
        time.sleep(seconds)

    def once(self, interval_s: float) -> int:
        """One page, of two looks."""
        try:
            self._look()
            self._pause(interval_s)
            self._console.print(self._look())
        except NoAnswerError as error:
            print(f"top: {error}", file=sys.stderr)
            return 1
        return 0

    def run(self, interval_s: float) -> int:
        """Page after page, also while the server does not answer: it may be started anew."""
        if not self._console.is_terminal:
            while True:
                self._console.print(self._answered(), end="\n\n")
                self._pause(interval_s)
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(self._answered(), refresh=True)
                self._pause(interval_s)

    def _answered(self) -> RenderableType:
        try:
            return self._look()
        except NoAnswerError as error:
            self._last = None
            return unanswered(str(error), datetime.now().astimezone())

    def _look(self) -> RenderableType:
        before, self._last = self._last, self._server.look()
        rates = Rates.between(before, self._last)
        height = self._console.height if self._console.is_terminal else PLAIN_HEIGHT
        now = datetime.now().astimezone()
        return page(self._server.url, self._last, rates, height=height, width=self._console.width, now=now)
