"""The pairs of servers that are compared: llama-server and Weft, with one model and the same flags."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.engine.tiny_encoders import write_tiny_encoder
from tests.server.live import LiveServer, environ, free_port
from weft.demo import DEMO_MODEL

__all__ = ["LlamaServer", "flags", "slot_files"]

TEMPLATE = Path(__file__).parent.parent / "clients" / "hermes.jinja"
CALLING = Path(__file__).parent / "llama.jinja"


def flags(folder: Path) -> Mapping[str, Sequence[str]]:
    """What the servers of each pair are started with; models are written into a folder."""
    for kind in ("bert", "reranker"):
        write_tiny_encoder(kind, folder / f"{kind}.gguf")
    # Drafts add fields to an answer, depending on the CPU and on the time of a step.
    demo = ("-m", DEMO_MODEL, "-a", "storyteller", "-np", "4", "-c", "1024", "-b", "512", "--kv-unified", "--spec-type", "none")
    small = ("-a", "tiny", "-np", "1", "-c", "128", "-b", "128", "-ub", "128")
    return {
        "plain": (*demo, "--metrics", "--props", "--slots"),
        "tools": (*demo, "--jinja", "--chat-template-file", str(TEMPLATE)),
        "calls": (*demo, "--jinja", "--chat-template-file", str(CALLING)),
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


class LlamaServer(LiveServer):
    """llama-server on a free port, its log in a file."""

    def __init__(self, program: Path, log: Path, *arguments: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        with log.open("wb") as told:
            self.process = subprocess.Popen(
                [program, "--port", str(self.port), "-t", "1", *arguments], stdout=told, stderr=told, env=environ()
            )
