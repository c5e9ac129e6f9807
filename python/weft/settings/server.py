"""Where the server listens, and what it serves."""

from dataclasses import dataclass
from typing import Literal

from weft.settings.flags import Way, flag
from weft.settings.values import boolean, folder, items, one_of, prefix, unset_at, unset_below, whole

__all__ = ["ServerSettings"]

SERVER = "server"

MAX_THREADS_HTTP = 256
"""Most threads that read and write connections."""


def _hosts(text: str) -> tuple[str, ...]:
    if not (hosts := items(text)):
        raise ValueError("there must be at least one address")
    return hosts


def _tags(text: str) -> tuple[str, ...]:
    return tuple(sorted(set(items(text))))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerSettings:
    """Where the server listens, and what it serves."""

    hosts: tuple[str, ...] = flag(
        ("127.0.0.1",),
        SERVER,
        "--host",
        metavar="HOST",
        parse=_hosts,
        separator=",",
        env="LLAMA_ARG_HOST",
        help="addresses to listen on, with commas between them; one that ends in .sock is a unix socket (default: 127.0.0.1)",
    )
    port: int = flag(
        8080,
        SERVER,
        "--port",
        metavar="PORT",
        parse=whole(0, 65535),
        env="LLAMA_ARG_PORT",
        help="port to listen on; 0 is any that is free (default: 8080, with --compat srb 9090)",
    )
    reuse_port: bool = flag(
        False,
        SERVER,
        constants={"--reuse-port": True},
        parse=boolean,
        env="LLAMA_ARG_REUSE_PORT",
        help="listen also where another process listens; each gets some of the connections",
    )
    compat: Literal["", "srb", "parallel", "stream"] = flag(
        "",
        SERVER,
        "--compat",
        metavar="NAME",
        parse=one_of("srb", "parallel", "stream"),
        env="LLAMA_ARG_COMPAT",
        help="be as another server: 'srb' answers /v1/completions with the events of single-request batching, 'parallel' has"
        " the events and defaults of llama.cpp's first server for several users, 'stream' the flags and defaults of the one"
        " whose /stream is plain text",
    )
    n: int | None = flag(
        None,
        SERVER,
        "--n",
        parse=whole(1, 256),
        env="LLAMA_ARG_N",
        help="completions of a prompt where a request does not say (default: 1, and 8 where it asks for the events of srb)",
    )
    timeout_s: int = flag(
        3600,
        SERVER,
        "-to",
        "--timeout",
        metavar="S",
        parse=whole(1),
        env="LLAMA_ARG_TIMEOUT",
        help="seconds after which a client that does not send or read is given up (default: 3600, with --compat parallel 600)",
    )
    threads_http: int | None = flag(
        None,
        SERVER,
        "--threads-http",
        parse=unset_below(1, whole(1, MAX_THREADS_HTTP), "or less is 1 thread"),
        env="LLAMA_ARG_THREADS_HTTP",
        help="threads that read and write connections, beside the one event loop that answers requests; 0 or less is 1"
        " (default: -1)",
    )
    tags: tuple[str, ...] = flag(
        (),
        SERVER,
        "--tags",
        metavar="NAMES",
        parse=_tags,
        join=lambda first, second: tuple(sorted({*first, *second})),
        separator=",",
        env="LLAMA_ARG_TAGS",
        help="words about the model, with commas between them, which the list of models shows; may be given several times",
    )
    max_body: int | None = flag(
        None,
        SERVER,
        "--max-body",
        metavar="BYTES",
        parse=whole(1024),
        env="LLAMA_ARG_MAX_BODY",
        help="most bytes of a request's body (default: 4 MiB, 64 per token of a slot's context, 32 per piece of the vocabulary,"
        " and with a projector 32 MiB)",
    )
    ping_s: float | None = flag(
        30,
        SERVER,
        "--sse-ping-interval",
        metavar="S",
        parse=unset_at(-1, whole(1), "never sends one"),
        env="LLAMA_ARG_SSE_PING_INTERVAL",
        help="seconds of silence after which a stream carries a comment; -1 is never (default: 30)",
    )
    sleep_idle_s: int | None = flag(
        None,
        SERVER,
        "--sleep-idle-seconds",
        metavar="S",
        parse=unset_at(-1, whole(1), "(the default) never unloads the model"),
        help="seconds without a request after which the model is unloaded until the next one, which waits for it; -1 is never"
        " (default: -1)",
    )
    api_prefix: str = flag(
        "",
        SERVER,
        "--api-prefix",
        metavar="PREFIX",
        parse=prefix,
        env="LLAMA_ARG_API_PREFIX",
        help="path that all routes begin with, as /llm (default: none)",
    )
    static_path: str | None = flag(
        None,
        SERVER,
        "--path",
        metavar="PATH",
        parse=folder,
        env="LLAMA_ARG_STATIC_PATH",
        help="folder of files to serve at / in place of the page (default: none)",
    )
    ui: bool = flag(
        True,
        SERVER,
        constants={"--ui": True, "--no-ui": False},
        also=(Way(("--webui",), value=True), Way(("--no-webui",), value=False)),
        parse=boolean,
        env="LLAMA_ARG_UI",
        help="serve a page at / (default: yes)",
    )
    slots_endpoint: bool = flag(
        True,
        SERVER,
        constants={"--slots": True, "--no-slots": False},
        also=(Way(("--slots-endpoint-disable",), value=False),),
        parse=boolean,
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        help="serve at /slots what the slots do (default: yes)",
    )
    props_endpoint: bool = flag(
        False,
        SERVER,
        constants={"--props": True},
        parse=boolean,
        env="LLAMA_ARG_ENDPOINT_PROPS",
        help="let POST /props change what GET /props shows",
    )
    metrics: bool = flag(
        False,
        SERVER,
        constants={"--metrics": True},
        parse=boolean,
        env="LLAMA_ARG_ENDPOINT_METRICS",
        help="serve counters for Prometheus at /metrics",
    )
