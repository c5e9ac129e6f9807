"""Every setting of the server: its flags, its variable, its range and its default, in one table.

The spellings are llama-server's, so that a command line written for it works here.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from weft.engine import KvType
from weft.flags import at_most, boolean, flag, folder, layers, number, on_off_auto, one_of, unset_at, unset_below, whole

__all__ = ["Settings"]

kv_type = one_of(*get_args(KvType))

MODEL = "model"
CONTEXT = "context and slots"
COMPUTE = "compute"
SAMPLING = "sampling (what a request leaves unsaid)"
SERVER = "server"
LOG = "log"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user asks of the server. `None` leaves the choice to the engine."""

    model: str | None = flag(
        None,
        MODEL,
        "-m",
        "--model",
        metavar="FNAME",
        env="LLAMA_ARG_MODEL",
        help="GGUF file to serve; of a split model, its first part (default: the demo model that comes with weft)",
    )
    alias: str | None = flag(
        None,
        MODEL,
        "-a",
        "--alias",
        metavar="STRING",
        env="LLAMA_ARG_ALIAS",
        help="name of the model in answers (default: the file's name)",
    )
    gpu_layers: int | None = flag(
        None,
        MODEL,
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        parse=layers,
        env="LLAMA_ARG_N_GPU_LAYERS",
        help="layers to keep in GPU memory: a number, 'auto' or 'all' (default: auto, as many as there are)",
    )
    mmap: bool = flag(
        True,
        MODEL,
        constants={"--mmap": True, "--no-mmap": False},
        parse=boolean,
        env="LLAMA_ARG_MMAP",
        help="map the file instead of reading it (default: enabled)",
    )
    mlock: bool = flag(
        False,
        MODEL,
        constants={"--mlock": True},
        parse=boolean,
        env="LLAMA_ARG_MLOCK",
        help="keep the weights from being swapped out",
    )

    ctx_size: int | None = flag(
        None,
        CONTEXT,
        "-c",
        "--ctx-size",
        parse=unset_at(0, whole(1)),
        env="LLAMA_ARG_CTX_SIZE",
        help="tokens of context in all, shared by the slots (default: 0, chosen from the model, the slots and the free memory)",
    )
    slots: int | None = flag(
        None,
        CONTEXT,
        "-np",
        "--parallel",
        parse=unset_at(-1, whole(1, 254)),
        env="LLAMA_ARG_N_PARALLEL",
        help="completions that are written at once (default: -1, which is 8, each free to use the whole context)",
    )
    kv_unified: bool | None = flag(
        None,
        CONTEXT,
        constants={"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False},
        parse=boolean,
        env="LLAMA_ARG_KV_UNIFIED",
        help="let each slot use the whole context, or its own share of it (default: the whole where -np is unset, else a share)",
    )
    cache_type_k: KvType = flag(  # noqa: RUF009 (a field, made anew)
        "f16",
        CONTEXT,
        "-ctk",
        "--cache-type-k",
        metavar="TYPE",
        parse=kv_type,
        env="LLAMA_ARG_CACHE_TYPE_K",
        help="number format of K in the cache: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1 (default: f16)",
    )
    cache_type_v: KvType = flag(  # noqa: RUF009 (a field, made anew)
        "f16",
        CONTEXT,
        "-ctv",
        "--cache-type-v",
        metavar="TYPE",
        parse=kv_type,
        env="LLAMA_ARG_CACHE_TYPE_V",
        help="number format of V in the cache, one of the same (default: f16)",
    )
    cache_ram: int | None = flag(
        None,
        CONTEXT,
        "-cram",
        "--cache-ram",
        parse=whole(-1),
        env="LLAMA_ARG_CACHE_RAM",
        help="most MiB of memory for what is cached beside the context; -1 is no limit, 0 is off"
        " (default: 8192, or a quarter of the machine's memory if that is less)",
    )
    slot_save_path: str | None = flag(
        None,
        CONTEXT,
        "--slot-save-path",
        metavar="PATH",
        parse=folder,
        env="LLAMA_ARG_SLOT_SAVE_PATH",
        help="folder in which POST /slots saves and restores what slots hold (default: none, which turns that off)",
    )
    max_queue: int = flag(
        1024,
        CONTEXT,
        "--max-queue",
        parse=whole(0),
        env="LLAMA_ARG_MAX_QUEUE",
        help="requests that may wait for a slot; further ones are answered 429 (default: 1024)",
    )

    batch_size: int = flag(
        2048,
        COMPUTE,
        "-b",
        "--batch-size",
        parse=whole(1),
        env="LLAMA_ARG_BATCH",
        help="most tokens that llama.cpp takes in one call (default: 2048)",
    )
    ubatch_size: int | None = flag(
        None,
        COMPUTE,
        "-ub",
        "--ubatch-size",
        parse=whole(1),
        env="LLAMA_ARG_UBATCH",
        help="most tokens that are computed at once (default: 512, or fewer where memory is short)",
    )
    threads: int | None = flag(
        None,
        COMPUTE,
        "-t",
        "--threads",
        parse=unset_below(1, whole(1, 512)),
        env="LLAMA_ARG_THREADS",
        help="threads that compute new tokens; 0 or less is as tuned, else one for each physical core (default: -1)",
    )
    threads_batch: int | None = flag(
        None,
        COMPUTE,
        "-tb",
        "--threads-batch",
        parse=unset_below(1, whole(1, 512)),
        env="LLAMA_ARG_THREADS_BATCH",
        help="threads that compute prompts; 0 or less is as many as --threads, if that is given, else as tuned (default: -1)",
    )
    flash_attention: Literal["auto", "on", "off"] = flag(
        "auto",
        COMPUTE,
        "-fa",
        "--flash-attn",
        metavar="[on|off|auto]",
        parse=on_off_auto,
        env="LLAMA_ARG_FLASH_ATTN",
        help="attention in one fused kernel; auto is as tuned, else off on a CPU unless V is quantised or memory is short, "
        "and llama.cpp's choice on a GPU (default: auto)",
    )
    tuned: bool = flag(
        True,
        COMPUTE,
        constants={"--tune": True, "--no-tune": False},
        parse=boolean,
        env="LLAMA_ARG_TUNE",
        help="use what 'python -m weft tune' has measured for this model on this machine, or ignore it (default: use it)",
    )
    max_token_gap_ms: float | None = flag(
        None,
        COMPUTE,
        "--max-token-gap",
        metavar="MS",
        parse=number(above=0),
        env="LLAMA_ARG_MAX_TOKEN_GAP",
        help="99th percentile of the pauses in a running answer that a new prompt may cause, in milliseconds "
        "(default: 200, or twice what the answers take without it)",
    )

    n_predict: int | None = flag(
        None,
        SAMPLING,
        "-n",
        "--predict",
        "--n-predict",
        parse=unset_at(-1, whole(0)),
        env="LLAMA_ARG_N_PREDICT",
        help="most tokens of a completion (default: -1, until the context is full)",
    )
    seed: int | None = flag(
        None,
        SAMPLING,
        "-s",
        "--seed",
        metavar="SEED",
        parse=unset_at(-1, whole(0, 2**32 - 1)),
        env="LLAMA_ARG_SEED",
        help="seed of the random numbers (default: -1, a new one for each request)",
    )
    temperature: float = flag(
        0.8,
        SAMPLING,
        "--temp",
        "--temperature",
        parse=number(),
        env="LLAMA_ARG_TEMPERATURE",
        help="temperature; 0 takes the most likely token (default: 0.8)",
    )
    top_k: int = flag(
        40,
        SAMPLING,
        "--top-k",
        parse=whole(-(2**31)),
        env="LLAMA_ARG_TOP_K",
        help="keep the k most likely tokens; 0 keeps all (default: 40)",
    )
    top_p: float = flag(
        0.95,
        SAMPLING,
        "--top-p",
        parse=number(),
        env="LLAMA_ARG_TOP_P",
        help="keep the most likely tokens whose probabilities sum to this; 1 keeps all (default: 0.95)",
    )
    min_p: float = flag(
        0.05,
        SAMPLING,
        "--min-p",
        parse=number(),
        env="LLAMA_ARG_MIN_P",
        help="keep tokens at least this fraction as likely as the likeliest; 0 keeps all (default: 0.05)",
    )
    repeat_penalty: float = flag(
        1.0,
        SAMPLING,
        "--repeat-penalty",
        parse=number(above=0),
        env="LLAMA_ARG_REPEAT_PENALTY",
        help="penalty for tokens that were seen; 1 is off (default: 1.0)",
    )
    repeat_last_n: int = flag(
        64,
        SAMPLING,
        "--repeat-last-n",
        parse=whole(-1),
        env="LLAMA_ARG_REPEAT_LAST_N",
        help="how many last tokens the penalties look at; 0 is off, -1 the whole context (default: 64)",
    )
    presence_penalty: float = flag(
        0.0,
        SAMPLING,
        "--presence-penalty",
        parse=number(),
        env="LLAMA_ARG_PRESENCE_PENALTY",
        help="subtracted once from the logit of a token that was seen (default: 0)",
    )
    frequency_penalty: float = flag(
        0.0,
        SAMPLING,
        "--frequency-penalty",
        parse=number(),
        env="LLAMA_ARG_FREQUENCY_PENALTY",
        help="subtracted from the logit of a token each time it was seen (default: 0)",
    )
    ignore_eos: bool = flag(
        False,
        SAMPLING,
        constants={"--ignore-eos": True},
        parse=boolean,
        env="LLAMA_ARG_IGNORE_EOS",
        help="never end a completion with an end token",
    )

    host: str = flag(
        "127.0.0.1",
        SERVER,
        "--host",
        metavar="HOST",
        env="LLAMA_ARG_HOST",
        help="address to listen on (default: 127.0.0.1)",
    )
    port: int = flag(
        8080,
        SERVER,
        "--port",
        metavar="PORT",
        parse=whole(1, 65535),
        env="LLAMA_ARG_PORT",
        help="port to listen on (default: 8080)",
    )
    metrics: bool = flag(
        False,
        SERVER,
        constants={"--metrics": True},
        parse=boolean,
        env="LLAMA_ARG_ENDPOINT_METRICS",
        help="serve counters for Prometheus at /metrics",
    )
    ping_s: float | None = flag(
        30,
        SERVER,
        "--sse-ping-interval",
        metavar="S",
        parse=unset_at(-1, whole(1)),
        env="LLAMA_ARG_SSE_PING_INTERVAL",
        help="seconds of silence after which a stream carries a comment; -1 is never (default: 30)",
    )

    verbosity: int = flag(
        3,
        LOG,
        "-lv",
        "--verbosity",
        "--log-verbosity",
        parse=at_most(5, whole(0)),
        env="LLAMA_ARG_LOG_VERBOSITY",
        constants={"-v": 5, "--verbose": 5, "--log-verbose": 5},
        help="what is logged: 0 and 1 errors, 2 warnings too, 3 and 4 what happens, 5 and more everything; -v is 5 (default: 3)",
    )
