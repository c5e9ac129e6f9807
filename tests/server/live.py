"""A server in a process of its own, as a user starts it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import httpx

from tests.helpers import wait_until
from tests.server.matchers import Json


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environ() -> dict[str, str]:
    """The environment without settings of the server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}


class LiveServer:
    """`python -m weft` on a free port, its log in a file. One thread, so that a busy machine is slow and not very slow."""

    def __init__(self, log: Path, *arguments: str, port: int | None = None, program: Sequence[str] = ("-m", "weft")) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *program, "--port", str(self.port), "-t", "1", *arguments], stderr=stderr, env=environ()
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()

    async def ready(self) -> None:
        """Waits until the model is loaded."""

        def is_ready() -> bool:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            try:
                return client.get(f"{self.url}/health").status_code == 200
            except httpx.TransportError:
                return False

        with httpx.Client() as client:
            # A look takes a millisecond from a start that takes a second on one core.
            await wait_until(is_ready, 120, 0.02)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def worker_ids(self) -> list[int]:
        """The supervisor's children."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]

    def worker_id(self) -> int:
        """The process that owns the engine."""
        [worker] = self.worker_ids()
        return worker

    def memory_bytes(self) -> int:
        """Resident memory of the worker."""
        pages = int(Path(f"/proc/{self.worker_id()}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str) -> Json:
        return httpx.get(self.url + path).raise_for_status().json()

    def busy_slots(self) -> list[int]:
        return [slot["id"] for slot in self.get("/slots") if slot["is_processing"]]


def events_of(text: str) -> Sequence[str]:
    """The data of each event of a stream; comments are left out."""
    assert text.endswith("\n\n")
    frames = [frame for frame in text.removesuffix("\n\n").split("\n\n") if not frame.startswith(":")]
    # OpenAI's responses name each event on a line before it.
    frames = [re.sub(r"\Aevent: [a-z_.]+\n", "", frame) for frame in frames]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]
