"""Clients that lean on a server, each doing one thing after another that it may not like, drawn at random.

`python -m benches.abusers PORT CONNECTIONS SEED` goes on until its standard input ends, then prints how often each was answered
with which status, as JSON. `--only NAME` does one of them alone. The process runs only where a processor would be idle: it
takes no time that the server on the same machine could use.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache

WAIT_S = 20.0
"""How long an answer, or being closed, is waited for."""

SLOW_S = 10.0
"""How long those who read slowly or nothing hold on."""

SLOWLY_S = 0.2
"""Between two reads."""

Do = Callable[[int, random.Random], Awaitable[str]]


def request(line: str, body: bytes | None = None) -> bytes:
    """A whole request."""
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    return f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}\r\n".encode() + (body or b"")


def post(path: str, **fields: object) -> Callable[[], bytes]:
    """One with a body, which is made when it is needed, and once."""
    return cache(lambda: request(f"POST {path}", json.dumps(fields).encode()))


def get(path: str) -> Callable[[], bytes]:
    """One without."""
    return cache(lambda: request(f"GET {path}"))


EMPTY_CHAT = [{"role": "user", "content": ""}] * 5_000
STORY = {"prompt": "Once upon a time,", "n_predict": 64, "ignore_eos": True}
WORDS = [f"word{number}" for number in range(4_000)]

REQUESTS: dict[str, Callable[[], bytes]] = {
    "5,000 empty messages": post("/v1/chat/completions", messages=EMPTY_CHAT, max_tokens=8),
    "a template of them": post("/apply-template", messages=EMPTY_CHAT),
    "a long text": post("/tokenize", content="word " * 400_000, with_pieces=True),
    "control tokens": post("/tokenize", content="<s>" * 32_000),
    "control tokens to complete": post("/completion", prompt="<s>" * 32_000),
    "4 MiB of token ids": post("/completion", prompt=[12] * (1 << 20)),
    "response_fields": post("/completion", **STORY, n=64, response_fields=["generation_settings/n_predict"] * 256),
    "n_probs": post("/completion", **STORY, n=64, n_probs=1_000, stream=True),
    "echo": post("/v1/completions", prompt=[300] * 1_000, echo=True, logprobs=1_000, max_tokens=1),
    "a large grammar": post("/completion", **STORY, grammar=f"root ::= {' | '.join(json.dumps(word) for word in WORDS)}"),
    "a large schema": post("/completion", **STORY, json_schema={"enum": WORDS}),
    "/docs": get("/docs"),
    "/cache": get("/cache?limit=10000"),
    "/prefixes": get("/prefixes"),
    "a slot saved": post("/slots/0?action=save", filename="abuse"),
    "a slot restored": post("/slots/1?action=restore", filename="abuse"),
    "no such path": get("//" + "%2e%2e/" * 2_000),
    "no JSON": cache(lambda: request("POST /completion", b"[" * (1 << 20))),
    "a plain stream": post("/completion", **STORY, stream=True),
}


async def opened(port: int, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection; one with a small limit has small buffers, so that the server hears of its reading slowly."""
    client = socket.socket()
    client.setblocking(False)
    if limit < 1 << 16:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limit)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=client, limit=limit)


def status_of(begin: bytes) -> str:
    """What an answer begins with."""
    return begin[9:12].decode(errors="replace") if begin.startswith(b"HTTP/1.1 ") else "closed"


async def read_all(reader: asyncio.StreamReader) -> str:
    """Reads to the end."""
    begin = await reader.read(1 << 16)
    while await reader.read(1 << 16):
        pass
    return status_of(begin)


async def leave_at_once(reader: asyncio.StreamReader) -> str:  # noqa: ARG001
    """Waits for nothing."""
    return "left"


async def leave_in_the_middle(reader: asyncio.StreamReader) -> str:
    """Reads the beginning alone."""
    return status_of(await reader.read(4096))


async def read_slowly(reader: asyncio.StreamReader) -> str:
    """Reads a little now and then, for a while."""
    begin = await reader.read(256)
    for _ in range(int(SLOW_S / SLOWLY_S)):
        await asyncio.sleep(SLOWLY_S)
        await reader.read(256)
    return status_of(begin)


async def read_nothing(reader: asyncio.StreamReader) -> str:  # noqa: ARG001
    """Holds the connection, for a while."""
    await asyncio.sleep(SLOW_S)
    return "unread"


MANNERS = [read_all] * 8 + [leave_at_once, leave_at_once, leave_in_the_middle, leave_in_the_middle, read_slowly, read_nothing]


def asking(made: Callable[[], bytes]) -> Do:
    """Asks for something, and takes the answer in one manner or another."""

    async def do(port: int, draw: random.Random) -> str:
        manner = draw.choice(MANNERS)
        reader, writer = await opened(port, 4096 if manner in (read_slowly, read_nothing) else 1 << 16)
        try:
            writer.write(made())
            if manner is not leave_at_once:
                await writer.drain()
            return await manner(reader)
        finally:
            writer.transport.abort()

    return do


def saying(*parts: bytes, pause_s: float = 1.0) -> Do:
    """Says something that is no request, and waits to be closed."""

    async def do(port: int, draw: random.Random) -> str:  # noqa: ARG001
        reader, writer = await opened(port)
        try:
            answer = asyncio.ensure_future(read_all(reader))
            for part in parts:
                writer.write(part)
                await asyncio.wait([answer], timeout=pause_s)
                if answer.done():
                    break
            return await answer
        finally:
            writer.transport.abort()

    return do


ABUSES: dict[str, Do] = {name: asking(made) for name, made in REQUESTS.items()} | {
    "silence": saying(),
    "half a head": saying(b"POST /completion HTTP/1.1\r\nHo"),
    "a body at a byte a second": saying(request("POST /completion", b" " * 9_999)[:-9_999], *[b" "] * 100),
    "TLS": saying(bytes.fromhex("16030102000100 01fc0303") + bytes(range(256))),
}


async def lean(port: int, seed: int, names: list[str], answers: dict[str, Counter[str]]) -> None:
    """One connection after the other, for ever."""
    draw = random.Random(seed)
    while True:
        name = draw.choice(names)
        status = "waited"
        with suppress(TimeoutError):
            try:
                async with asyncio.timeout(WAIT_S):
                    status = await ABUSES[name](port, draw)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                status = "closed"
        answers[name][status] += 1


async def main() -> None:
    """Leans until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("connections", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--only", choices=ABUSES)
    options = parser.parse_args()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    answers: defaultdict[str, Counter[str]] = defaultdict(Counter)
    names = [options.only] if options.only else list(ABUSES)
    seeds = (options.seed * 1_000_000 + number for number in range(options.connections))
    leaning = [asyncio.create_task(lean(options.port, seed, names, answers)) for seed in seeds]
    await asyncio.to_thread(sys.stdin.read)
    for task in leaning:
        task.cancel()
    await asyncio.gather(*leaning, return_exceptions=True)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
