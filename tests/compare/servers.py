"""The pairs of servers that are compared: llama-server and Weft, with one model and the same flags."""

import asyncio
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from tests.engine.tiny_encoders import write_tiny_encoder
from tests.server.live import LiveServer, environ, free_port
from weft.demo import DEMO_MODEL

__all__ = ["LlamaServer", "flags", "slot_files"]

TEMPLATE = Path(__file__).parent.parent / "clients" / "hermes.jinja"
START_S = 60


def flags(folder: Path) -> Mapping[str, Sequence[str]]:
    """What the servers of each pair are started with; models are written into a folder."""
    for kind in ("bert", "reranker"):
        write_tiny_encoder(kind, folder / f"{kind}.gguf")
    demo = ("-m", DEMO_MODEL, "-a", "storyteller", "-np", "4", "-c", "1024", "-b", "512", "--kv-unified")
    small = ("-a", "tiny", "-np", "1", "-c", "128", "-b", "128", "-ub", "128")
    return {
        "plain": (*demo, "--metrics", "--props", "--slots"),
        "tools": (*demo, "--jinja", "--chat-template-file", str(TEMPLATE)),
        "verbose": (*demo, "-v"),
        "locked": (*demo, "--api-key", "right", "--no-slots"),
        "vectors": ("-m", str(folder / "bert.gguf"), *small, "--embeddings"),
        "ranks": ("-m", str(folder / "reranker.gguf"), *small, "--reranking"),
    }


def slot_files(folder: Path, name: str) -> Sequence[str]:
    """The flag for a folder of its own for the files of one server's slots."""
    saved = folder / f"slots-{name}"
    saved.mkdir()
    return "--slot-save-path", str(saved)


class LlamaServer:
    """llama-server on a free port, its log in a file."""

    def __init__(self, program: Path, log: Path, *arguments: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("wb") as told:
            self._process = subprocess.Popen(
                [program, "--port", str(port), "-t", "1", *arguments], stdout=told, stderr=told, env=environ()
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    async def ready(self) -> None:
        """Waits until the model is loaded."""
        await _ready(self.url, self._process, self._log)


async def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended:\n{log.read_text()[-2000:]}")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"the server is not ready after {START_S} s:\n{log.read_text()[-2000:]}")
