"""Ray on this machine, with replicas of the demo model behind real HTTP."""

import contextlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve

import weft.ray
from weft.ray.messages import MethodCall

__all__ = ["Cluster", "free_port", "running", "wait_until"]

MEMORY_BYTES = 200_000_000
"""Of Ray's store of objects."""


class Cluster:
    """An application that runs, and what a test does to it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def deploy(self, **options: Any) -> None:  # noqa: ANN401 (those of `build`)
        """Serves the demo model; each replica has four slots unless it is said otherwise."""
        settings = {"n_slots": 4, "n_ctx": 4096, "kv_unified": True, "cache_ram": 64, "metrics": True, "context_shift": True}
        serve.run(weft.ray.build(**{**settings, "num_cpus": 0.25, **options}), name="weft")
        wait_until(lambda: self.client.get("/health").status_code == 200, 60)

    def call_replica(self, method: str, *given: object) -> list[Any]:
        """What a method of each replica gives."""
        handle = serve.get_deployment_handle("replica", "weft")
        return list(handle.broadcast("answer", MethodCall(method, given)).results(timeout_s=30))

    def n_busy(self) -> int:
        """Sequences that run, and requests that wait, in all replicas."""
        return sum(report.digest.n_running + report.digest.n_queued for report in self.call_replica("report"))

    @staticmethod
    def processes(title: str) -> list[int]:
        """The processes that this one's Ray calls so: `replica`, `ingress` or `ProxyActor`."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
                if folder.name.isdigit() and name.startswith("ray::") and title in name and _is_below(int(folder.name)):
                    found.append(int(folder.name))
        return sorted(found)

    @staticmethod
    def kill(process_id: int, signal: int) -> None:
        """Sends a signal to one of them."""
        os.kill(process_id, signal)


def _is_below(process_id: int) -> bool:
    """Whether it is of the session of Ray that this process has begun."""
    environment = Path(f"/proc/{process_id}/environ").read_bytes()
    return f"WEFT_TEST_OF={os.getpid()}".encode() in environment.split(b"\0")


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """Ray with two processors, and Serve on a free port; all of it is gone at the end."""
    port = free_port()
    os.environ["WEFT_TEST_OF"] = str(os.getpid())
    ray.init(
        num_cpus=2,
        object_store_memory=MEMORY_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield Cluster(port)
    finally:
        serve.shutdown()
        ray.shutdown()


def free_port() -> int:
    """A port that nobody listens on. It is none of those that systems hand out: a process of Ray's might get it meanwhile."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind(("127.0.0.1", port))
            return port
    raise OSError("of a hundred ports none is free")


def wait_until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Waits for something that nothing announces."""
    end = time.monotonic() + deadline_s
    while True:
        with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
            if condition():
                return
        assert time.monotonic() < end, f"not so within {deadline_s} s"
        time.sleep(0.05)
