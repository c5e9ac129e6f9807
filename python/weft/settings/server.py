"""Settings of the HTTP server."""

from dataclasses import dataclass
from typing import Literal

from weft.settings.flags import FlagAlias, flag
from weft.settings.values import folder, items, one_of, prefix, some, text, unset_at, unset_below, whole

__all__ = ["ServerSettings"]

MAX_THREADS_HTTP = 256
"""Maximum threads for connections."""


def _tags(text: str) -> tuple[str, ...]:
    return tuple(sorted(set(items(text))))


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ServerSettings:
    """Settings of the HTTP server."""

    hosts: tuple[str, ...] = flag(
        ("127.0.0.1",),
        "--host HOST",
        parse=some("there must be at least one address", text),
        separator=",",
        env="LLAMA_ARG_HOST",
        help="comma-separated addresses to listen on; one that ends in .sock is a unix socket (default: 127.0.0.1)",
    )
    port: int = flag(
        8080,
        "--port PORT",
        parse=whole(0, 65535),
        env="LLAMA_ARG_PORT",
        help="port to listen on; 0 is any free port (default: 8080, with --compat srb 9090)",
    )
    reuse_port: bool = flag(
        False,
        constants={"--reuse-port": True},
        env="LLAMA_ARG_REUSE_PORT",
        help="share the port with other processes that use it; each gets some of the connections",
    )
    compat: Literal["", "srb", "parallel", "stream"] = flag(
        "",
        "--compat NAME",
        parse=one_of("srb", "parallel", "stream"),
        env="LLAMA_ARG_COMPAT",
        help="compatibility with another server: 'srb' answers /v1/completions with the events of single-request batching,"
        " 'parallel' has the events and defaults of llama.cpp's first multi-user server, 'stream' has the flags and defaults of"
        " the server whose /stream is plain text",
    )
    n: int | None = flag(
        None,
        "--n",
        parse=whole(1, 256),
        env="LLAMA_ARG_N",
        help="default number of completions per prompt (default: 1, and 8 for requests with the events of srb)",
    )
    timeout_s: int = flag(
        3600,
        "-to, --timeout S",
        parse=whole(1),
        env="LLAMA_ARG_TIMEOUT",
        help="seconds until a client that neither sends nor reads is disconnected (default: 3600, with --compat parallel 600)",
    )
    threads_http: int | None = flag(
        None,
        "--threads-http",
        parse=unset_below(1, whole(1, MAX_THREADS_HTTP), "or less is 1 thread"),
        env="LLAMA_ARG_THREADS_HTTP",
        help="threads that read and write connections, in addition to the event loop that handles requests; 0 or less is 1"
        " (default: -1)",
    )
    tags: tuple[str, ...] = flag(
        (),
        "--tags NAMES",
        parse=_tags,
        join=lambda first, second: tuple(sorted({*first, *second})),
        separator=",",
        env="LLAMA_ARG_TAGS",
        help="comma-separated tags of the model for the list of models; may be given several times",
    )
    max_body: int | None = flag(
        None,
        "--max-body BYTES",
        parse=whole(1024),
        env="LLAMA_ARG_MAX_BODY",
        help="maximum bytes of a request body (default: 4 MiB, 64 per token of a slot's context, 32 per piece of the vocabulary,"
        " and with a projector 32 MiB)",
    )
    ping_s: float | None = flag(
        30,
        "--sse-ping-interval S",
        parse=unset_at(-1, whole(1), "never sends one"),
        env="LLAMA_ARG_SSE_PING_INTERVAL",
        help="seconds of silence after which a stream sends a comment; -1 is never (default: 30)",
    )
    sleep_idle_s: int | None = flag(
        None,
        "--sleep-idle-seconds S",
        parse=unset_at(-1, whole(1), "(the default) never unloads the model"),
        help="seconds without requests after which the model is unloaded; the next request loads it again and waits; -1 is never"
        " (default: -1)",
    )
    api_prefix: str = flag(
        "",
        "--api-prefix PREFIX",
        parse=prefix,
        env="LLAMA_ARG_API_PREFIX",
        help="path prefix of all routes, as /llm (default: none)",
    )
    static_path: str | None = flag(
        None,
        "--path PATH",
        parse=folder,
        env="LLAMA_ARG_STATIC_PATH",
        help="folder of files to serve at / instead of the web page (default: none)",
    )
    ui: bool = flag(
        True,
        constants={"--ui": True, "--no-ui": False},
        also=(FlagAlias(("--webui",), value=True), FlagAlias(("--no-webui",), value=False)),
        env="LLAMA_ARG_UI",
        help="serve a web page at / (default: yes)",
    )
    slots_endpoint: bool = flag(
        True,
        constants={"--slots": True, "--no-slots": False},
        also=(FlagAlias(("--slots-endpoint-disable",), value=False),),
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        help="expose the state of slots at /slots (default: yes)",
    )
    props_endpoint: bool = flag(
        False,
        constants={"--props": True},
        env="LLAMA_ARG_ENDPOINT_PROPS",
        help="allow POST /props to change what GET /props returns",
    )
    metrics: bool = flag(
        False, constants={"--metrics": True}, env="LLAMA_ARG_ENDPOINT_METRICS", help="expose Prometheus metrics at /metrics"
    )
