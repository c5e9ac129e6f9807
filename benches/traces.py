"""Traces of agents that exist, played over HTTP: what was computed for them, and what had to be.

A trace is what a client has sent while it did a task (`tests/clients/trace.py`), with texts of our own that are as long. The
server is Weft with a model that plays the part of a skilled one (`tests/clients/actor.py`), so that what it answers is what the
next request of the trace says that it has answered. Requests that came at once are sent at once.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benches.start import serving
from benches.streaming import BenchError, free_port, is_ready
from tests.clients.chats import CHATS
from tests.clients.trace import bodies
from tests.engine.tiny_models import write_tiny_model

__all__ = ["REPLAYED", "TRACES", "Played", "play", "play_elsewhere"]

RECORDED = {path.stem: path for path in sorted(Path("tests/clients/traces").glob("*.json"))}

TRACES: tuple[str, ...] = (*RECORDED, *CHATS)

SCALE = 0.25
"""A token of a toy is a byte, and one of a model that is in use is about four: as many tokens, not as many characters."""

REPLAYED = ("-np", "4", "-c", "65536", "--kv-unified", "-t", "1")
"""The actor has its own chat template. With a toy model, a second thread costs more than it saves."""

PATIENCE_S = 300.0

TURNS = [{"role": role, "delimiter": f"<|im_start|>{role}\n"} for role in ("user", "assistant")]
"""How turns begin in these prompts. A llama-server finds it in the template of a chat, and keeps what its memory is there."""


class Prompt(msgspec.Struct):
    """What a model was asked to continue, and what it said."""

    tokens: list[int]
    text: str
    said: str


class Played(msgspec.Struct):
    """What a trace has cost."""

    n_requests: int
    computed: int
    had_to: int
    prompts: list[Prompt]


def play(name: str, flags: Sequence[str]) -> Played:
    """Plays a trace to a server that is started with these flags."""
    trace = CHATS[name]() if name in CHATS else json.loads(RECORDED[name].read_text(encoding="utf-8"))
    requests = bodies(trace, SCALE)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "prompts"
        own = ("--without-projector", "--prompts", str(log))
        with serving([*flags, "--metrics"], program=("tests.clients.actor", *own)) as (port, _), ThreadPoolExecutor(16) as pool:
            running: dict[int, Future[None]] = {}
            for event in trace["order"]:
                if event >= 0:
                    running[event] = pool.submit(_post, port, *requests[event])
                else:
                    running.pop(-1 - event).result()
            computed = _computed(port)
        prompts = [msgspec.json.decode(line, type=Prompt) for line in log.read_bytes().splitlines()]
    return Played(len(requests), computed, had_to(prompts), prompts)


def had_to(prompts: Sequence[Prompt]) -> int:
    """Tokens of these prompts that come after all that was sent or said before; of each the last one at least."""
    known: list[str] = []
    n = 0
    for prompt in prompts:
        # A character for a token, because strings are compared fast.
        tokens = "".join(map(chr, prompt.tokens))
        n += len(tokens) - min(max((_common(tokens, each) for each in known), default=0), len(tokens) - 1)
        first = prompt.tokens[-1] - prompt.text.encode()[-1]
        known.append(tokens + "".join(chr(byte + first) for byte in prompt.said.encode()))
    return n


def _common(left: str, right: str) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle - 1)
    return low


def play_elsewhere(program: Path, prompts: Sequence[Prompt], flags: Sequence[str]) -> int:
    """Has a llama-server continue the same prompts, one after the other, with the same answers; what it has computed."""
    with _other(program, flags) as port:
        for prompt in prompts:
            held = "root ::= " + json.dumps(prompt.said, ensure_ascii=False)
            # It fails where a grammar is met and no token ends the text: each token is a byte, and so many are enough.
            n = len(prompt.said.encode())
            body = {"prompt": prompt.tokens, "grammar": held, "cache_prompt": True, "temperature": 0.0, "n_predict": n}
            body["message_delimiters"] = TURNS
            _post(port, "/completion", body)
        return _computed(port)


@contextmanager
def _other(program: Path, flags: Sequence[str]) -> Iterator[int]:
    port = free_port()
    with tempfile.TemporaryFile() as log:
        command = [str(program), "--port", str(port), "--metrics", *flags]
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not is_ready(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise BenchError(f"{program} did not start:\n{log.read()[-2_000:].decode(errors='replace')}")
                time.sleep(0.05)
            yield port
        finally:
            server.terminate()
            server.wait()


def _post(port: int, path: str, body: dict[str, Any]) -> None:
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise BenchError(f"{path}: {error.read().decode()}") from error


def _computed(port: int) -> int:
    """Tokens of prompts that a server has computed since its start."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        told = re.search(r"^llamacpp:prompt_tokens_total (\d+)", answer.read().decode(), re.MULTILINE)
    if told is None:
        raise BenchError("the server does not say what it has computed")
    return int(told[1])


def main() -> int:
    """Writes the prompts and answers of a trace to a file, for the part `traces` of the benchmark `speculation`."""
    parser = argparse.ArgumentParser(description="prompt, answer, prompt, answer and so on, each with a zero byte after it")
    parser.add_argument("trace", choices=TRACES)
    parser.add_argument("--texts", type=Path, required=True, help="the file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        toy = Path(folder) / "toy.gguf"
        write_tiny_model("attention", toy, has_end=False)
        played = play(args.trace, [*REPLAYED, "-m", str(toy), "--override-kv", "llama.context_length=int:65536"])
    args.texts.write_text("".join(f"{prompt.text}\0{prompt.said}\0" for prompt in played.prompts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
