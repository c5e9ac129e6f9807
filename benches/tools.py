"""What it costs that tools may be called: streamed tokens per second of chats with `tool_choice: auto`, against `none`.

Both have the same prompt, which shows the tools either way, so that what is left is what reads an answer for calls and what holds
it to them. They run in turn, several times over, and the ratio is the median of the rounds. Start it in the repository's root, as
`python -m benches.tools`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import os
import statistics
import sys
from pathlib import Path

import msgspec

from benches.streaming import DEMO, SPARE_CELLS, SYNTHETIC, BenchError, Load, Reader, chunks, read_all, served

LOADS = (Load(1, 1), Load(1, 8), Load(1, 32), Load(32, 1))
N_TOKENS = 384
"""Of each answer; with its prompt it fits the demo model's context."""
N_PROMPT = 512
"""Cells for the prompt: it shows the tools."""
N_ROUNDS = 7
N_QUICK = 3

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks it up.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "get_news")
]


class Usage(msgspec.Struct):
    """What an answer cost."""

    completion_tokens: int


class Chunk(msgspec.Struct):
    """What is checked of a chunk."""

    usage: Usage | None = None


def main() -> int:
    """Prints the table; 1 if something it needs is missing or answers wrongly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("-m", "--model", action="append", type=Path, help="a GGUF file, instead of those that are there")
    options = parser.parse_args()
    print(f"chats whose tools may be called, against those whose may not; load before: {os.getloadavg()[0]:.2f}")
    try:
        for path in options.model or [path for path in (SYNTHETIC, DEMO) if path.is_file()]:
            print(f"\n{path.name}\n   requests │ none tokens/s │ auto tokens/s │ ratio")
            for load in LOADS:
                measure(path, load, N_QUICK if options.quick else N_ROUNDS)
    except BenchError as error:
        print(f"tools bench: {error}", file=sys.stderr)
        return 1
    return 0


def measure(path: Path, load: Load, n_rounds: int) -> None:
    """Measures one load, and prints its row."""
    ctx_size = load.streams * (N_TOKENS + N_PROMPT + SPARE_CELLS)
    with served(path, load.streams, ctx_size) as port:
        speed(port, load, "none")
        pairs = []
        for nth in range(n_rounds):
            # Who goes first takes turns, so that a steady drift favours no side.
            sides = ("auto", "none") if nth % 2 else ("none", "auto")
            told = {side: speed(port, load, side) for side in sides}
            pairs.append((told["none"], told["auto"]))
    none, auto = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [auto / none for none, auto in pairs]
    ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f" {load!s:>10} │ {none:>13.1f} │ {auto:>13.1f} │ {ratio}", flush=True)


def speed(port: int, load: Load, choice: str) -> float:
    """Tokens per second of all branches together."""
    body = msgspec.json.encode(
        {
            "messages": [{"role": "user", "content": "Tell me a long story of a dog and a cat."}],
            "tools": TOOLS,
            "tool_choice": choice,
            "n": load.n,
            "max_tokens": N_TOKENS,
            "ignore_eos": True,
            "seed": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    )
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    readers = [Reader(port, request) for _ in range(load.connections)]
    read_all(readers)
    n_tokens = sum(map(n_written, readers))
    return n_tokens / (max(reader.last for reader in readers) - min(reader.first for reader in readers))


def n_written(reader: Reader) -> int:
    """Tokens of an answer."""
    head, _, body = b"".join(reader.received).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise BenchError(f"the server answered {head.splitlines()[:1]}: {body[:500]!r}")
    if b"transfer-encoding: chunked" in head.lower():
        body = b"".join(chunks(body))
    events = [msgspec.json.decode(frame[6:], type=Chunk) for frame in body.split(b"\n\n") if frame.startswith(b"data: {")]
    return sum(event.usage.completion_tokens for event in events if event.usage is not None)


if __name__ == "__main__":
    sys.exit(main())
