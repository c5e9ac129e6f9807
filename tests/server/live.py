"""A server in a process of its own, as a user starts it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LiveServer:
    """`python -m weft` on a free port; its log goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weft", "--port", str(self.port), *arguments], stderr=stderr, env=environ
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()

    def wait_until_ready(self, deadline_s: float = 20) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            try:
                return httpx.get(f"{self.url}/health").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_ready, deadline_s)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def worker_id(self) -> int:
        """The process that owns the engine: the supervisor's only child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        assert len(children) == 1
        return int(children[0])

    def memory_bytes(self) -> int:
        """Resident memory of the worker."""
        pages = int(Path(f"/proc/{self.worker_id()}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path).raise_for_status().json()

    def busy_slots(self) -> list[int]:
        return [slot["id"] for slot in self.get("/slots") if slot["is_processing"]]


def wait_until(condition: Callable[[], object], deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {condition}"
        time.sleep(0.002)


async def until(condition: Callable[[], object], deadline_s: float) -> None:
    """`wait_until` beside other work on the event loop."""
    async with asyncio.timeout(deadline_s):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.002)


def bodies(dialect: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The route of a dialect, and a body for it with the limit spelt its way."""
    if dialect == "openai" and "n_predict" in fields:
        fields["max_tokens"] = fields.pop("n_predict")
    return {"openai": "/v1/completions", "llamacpp": "/completion"}[dialect], fields


def events_of(text: str) -> Sequence[str]:
    """The data of each event of a stream; comments are left out."""
    assert text.endswith("\n\n")
    frames = [frame for frame in text.removesuffix("\n\n").split("\n\n") if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [frame.removeprefix("data: ") for frame in frames]
