"""llama-server's flags that have no setting here: their effect is permanent, meaningless or unsupported.

Command lines for llama-server either work or are rejected with a reason. No flag that would change a response is ignored
silently: meaningless flags cause a warning at the start, unsupported ones an error.
"""

from collections.abc import Iterator
from enum import Enum

import msgspec

from weft.settings.values import boolean

__all__ = ["ACCEPTED", "Accepted", "Meaning"]


class Meaning(Enum):
    """Effect of a flag without a setting; the values are used in messages."""

    ALWAYS = "is always on"
    IDLE = "has no meaning here"
    MISSING = "is not supported"


class Accepted(msgspec.Struct, frozen=True):
    """A flag without a setting."""

    names: tuple[str, ...]
    meaning: Meaning
    why: str
    n_values: int = 0
    neutral: tuple[str, ...] = ()
    """Values that have no effect; include llama-server's default if it has one."""
    env: str | None = None
    env_asks: bool = True
    """Value of a switch's variable that corresponds to the flag: False for a flag that turns something off."""

    def verdict(self, value: str | None) -> Meaning:
        """Returns the effect of the flag with this value; None is the flag without a value."""
        return Meaning.ALWAYS if any(_is_same(value, neutral) for neutral in self.neutral) else self.meaning

    def is_asked_by(self, variable: str) -> bool:
        """Returns True if the value of its variable enables it; raises ValueError if it is invalid for a switch."""
        return self.n_values > 0 or boolean(variable) == self.env_asks


def _is_same(value: str | None, neutral: str) -> bool:
    """Returns True if two texts are equal, as strings or as numbers."""
    if value is None or value == neutral:
        return value == neutral
    try:
        return float(value) == float(neutral)
    except ValueError:
        return False


def _always(*names: str, why: str, env: str | None = None) -> Accepted:
    return Accepted(names, Meaning.ALWAYS, why, env=env)


def _off(*names: str, why: str, env: str | None = None) -> Accepted:
    """Returns a flag that would turn off something permanent."""
    return Accepted(names, Meaning.IDLE, why, env=env, env_asks=False)


def _idle(*names: str, why: str, n: int = 1, neutral: tuple[str, ...] = (), env: str | None = None) -> Accepted:
    return Accepted(names, Meaning.IDLE, why, n, neutral, env)


def _missing(*names: str, why: str, n: int = 1, neutral: tuple[str, ...] = (), env: str | None = None) -> Accepted:
    return Accepted(names, Meaning.MISSING, why, n, neutral, env)


def _switches() -> Iterator[Accepted]:
    """Yields features that llama-server can turn on and off."""
    why = "requests are always batched continuously"
    yield _always("-cb", "--cont-batching", why=why)
    yield _off("-nocb", "--no-cont-batching", why=why, env="LLAMA_ARG_CONT_BATCHING")
    why = "templates are always Jinja"
    yield _always("--jinja", why=why)
    yield _off("--no-jinja", why=why, env="LLAMA_ARG_JINJA")
    why = "a start always decodes two tokens, which probes the model's capabilities"
    yield _always("--warmup", why=why)
    yield _off("--no-warmup", why=why)
    why = "idle prefixes are always offloaded to the host cache, which --cache-ram limits"
    yield _always("--cache-idle-slots", why=why)
    yield _off("--no-cache-idle-slots", why=why, env="LLAMA_ARG_CACHE_IDLE_SLOTS")
    why = "responses and the log have the timings of each request; llama.cpp's own are not printed"
    yield _always("--no-perf", why=why)
    yield _idle("--perf", n=0, why=why, env="LLAMA_ARG_PERF")
    yield _always("-no-ag", "--no-agent", why="there are no built-in tools")
    yield _always("--no-ui-mcp-proxy", "--no-webui-mcp-proxy", why="there is no MCP proxy")
    why = "speculative decoding with a draft model is not supported"
    yield _always("--no-spec-draft-backend-sampling", why=why)
    yield _idle("--spec-draft-backend-sampling", n=0, why=why, env="LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING")


def _idle_values() -> Iterator[Accepted]:
    """Yields flags that change no response and nothing else here."""
    why = "the cache is compacted automatically"
    yield _idle("-dt", "--defrag-thold", env="LLAMA_ARG_DEFRAG_THOLD", why=why)
    why = "the engine decides which part of a sliding window stays cached, and computes the rest again"
    yield _idle("--swa-full", n=0, env="LLAMA_ARG_SWA_FULL", why=why)
    why = "a prompt reuses the longest cached prefix, whichever slot computed it"
    yield _idle("-sps", "--slot-prompt-similarity", why=why)
    why = "only prefixes are reused, which is exact; later parts of a prompt are computed"
    yield _idle("--cache-reuse", env="LLAMA_ARG_CACHE_REUSE", neutral=("0",), why=why)
    why = "a context and a batch without a configured size always depend on the free memory"
    yield _idle("-fit", "--fit", env="LLAMA_ARG_FIT", neutral=("on", "true", "1", "enabled"), why=why)
    yield _idle("-fitt", "--fit-target", env="LLAMA_ARG_FIT_TARGET", why=why)
    yield _idle("-fitc", "--fit-ctx", env="LLAMA_ARG_FIT_CTX", why=why)
    why = "llama.cpp chooses how weights are read"
    yield _idle("-lzm", "--lazy-mode", env="LLAMA_ARG_LAZY_MODE", neutral=("auto",), why=why)
    yield _idle("--moe-cache-mib", env="LLAMA_ARG_MOE_CACHE_MIB", neutral=("0",), why=why)
    why = "tokens are sampled on the CPU, from the same logits"
    yield _idle("-bs", "--backend-sampling", n=0, env="LLAMA_ARG_BACKEND_SAMPLING", why=why)
    yield _idle("--log-prompts-dir", why="prompts are not written to files")
    why = "the web page has no settings"
    yield _idle("--ui-config", "--webui-config", env="LLAMA_ARG_UI_CONFIG", why=why)
    yield _idle("--ui-config-file", "--webui-config-file", env="LLAMA_ARG_UI_CONFIG_FILE", why=why)


def _idle_without() -> Iterator[Accepted]:
    """Yields flags that only modify unsupported features."""
    why = "a server has one model"
    yield _idle("--models-max", env="LLAMA_ARG_MODELS_MAX", why=why)
    yield _idle("--models-autoload", n=0, env="LLAMA_ARG_MODELS_AUTOLOAD", why=why)
    yield _off("--no-models-autoload", env="LLAMA_ARG_MODELS_AUTOLOAD", why=why)
    yield _idle("--tools-runtime", env="LLAMA_ARG_TOOLS_RUNTIME", why="there are no built-in tools")
    yield _idle("--control-vector-layer-range", n=2, why="control vectors are not supported")
    why = "the projector encodes one image, or one tile, at a time"
    yield _idle("--mtmd-batch-max-tokens", env="LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", why=why)
    why = "video input is not supported"
    yield _idle("--video-fps", env="LLAMA_ARG_VIDEO_FPS", why=why)
    yield _idle("--video-timestamp-interval", env="LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", why=why)
    yield _idle("--video-ffmpeg-dir", env="LLAMA_ARG_VIDEO_FFMPEG_DIR", why=why)


def _drafts() -> Iterator[Accepted]:
    """Yields the flags that enable or modify speculative decoding."""
    why = "speculative decoding is not supported: the model computes every token itself"
    yield _missing("--spec-draft-model", "-md", "--model-draft", env="LLAMA_ARG_SPEC_DRAFT_MODEL", why=why)
    env = "LLAMA_ARG_SPEC_DRAFT_HF_REPO"
    yield _missing("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft", env=env, why=why)
    yield _missing("--spec-type", env="LLAMA_ARG_SPEC_TYPE", neutral=("none",), why=why)
    yield _missing("--spec-default", n=0, why=why)
    why = "speculative decoding with a draft model is not supported"
    yield _idle("-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic", why=why)
    for env, names in (
        ("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", ("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft")),
        ("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", ("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft")),
        (
            "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
            ("--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft"),
        ),
        ("LLAMA_ARG_SPEC_DRAFT_N_MAX", ("--spec-draft-n-max",)),
        ("LLAMA_ARG_SPEC_DRAFT_N_MIN", ("--spec-draft-n-min",)),
        ("LLAMA_ARG_SPEC_SYNTH_LEN", ("--spec-synth-len",)),
        ("LLAMA_ARG_SPEC_SYNTH_RATES", ("--spec-synth-rates",)),
        ("LLAMA_ARG_SPEC_DRAFT_P_SPLIT", ("--spec-draft-p-split", "--draft-p-split")),
        ("LLAMA_ARG_SPEC_DRAFT_P_MIN", ("--spec-draft-p-min", "--draft-p-min")),
        ("LLAMA_ARG_SPEC_DRAFT_SAMPLING", ("--spec-draft-sampling",)),
        ("LLAMA_ARG_N_GPU_LAYERS_DRAFT", ("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft")),
        ("LLAMA_ARG_DRAFT_MAX", ("--draft", "--draft-n", "--draft-max")),
        ("LLAMA_ARG_DRAFT_MIN", ("--draft-min", "--draft-n-min")),
    ):
        yield _idle(*names, env=env, why=why)
    env = "LLAMA_ARG_SPEC_DRAFT_CPU_MOE"
    yield _idle("--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft", n=0, env=env, why=why)
    yield _idle("--spec-draft-threads", "-td", "--threads-draft", why=why)
    yield _idle("--spec-draft-threads-batch", "-tbd", "--threads-batch-draft", why=why)
    yield _idle("--spec-draft-cpu-mask", "-Cd", "--cpu-mask-draft", why=why)
    yield _idle("--spec-draft-cpu-range", "-Crd", "--cpu-range-draft", why=why)
    yield _idle("--spec-draft-cpu-mask-batch", "-Cbd", "--cpu-mask-batch-draft", why=why)
    yield _idle("--spec-draft-override-tensor", "-otd", "--override-tensor-draft", why=why)
    yield _idle("--spec-draft-device", "-devd", "--device-draft", why=why)
    for name in ("cpu-strict", "prio", "poll"):
        yield _idle(f"--spec-draft-{name}", f"--{name}-draft", why=why)
        yield _idle(f"--spec-draft-{name}-batch", f"--{name}-batch-draft", why=why)
    for kind in ("mod-n-min", "mod-n-max", "mod-n-match", "size-n", "size-m", "min-hits"):
        yield _idle(f"--spec-ngram-{kind}", why=why)
    for kind in ("simple", "map-k", "map-k4v"):
        yield _idle(*(f"--spec-ngram-{kind}-{what}" for what in ("size-n", "size-m", "min-hits")), why=why)


def _missing_models() -> Iterator[Accepted]:
    """Yields flags for unsupported named models, and for several models."""
    why = "speculative decoding with a second model is not supported; use --fim-qwen-7b-default"
    yield _missing("--fim-qwen-7b-spec", "--fim-qwen-14b-spec", n=0, why=why)
    why = "a server has one model; name it with -m"
    yield _missing("--models-dir", env="LLAMA_ARG_MODELS_DIR", why=why)
    yield _missing("--models-preset", env="LLAMA_ARG_MODELS_PRESET", why=why)


def _missing_values() -> Iterator[Accepted]:
    """Yields unsupported flags that would change responses or the server's behaviour."""
    why = "GGUF adapters need no base model of their own; pass the adapter with --lora and its base model with -m"
    yield _missing("--lora-base", n=1, why=why)
    why = "control vectors are not supported; use a LoRA adapter with --lora"
    yield _missing("--control-vector", "--control-vector-scaled", why=why)
    why = "set -c to the number of slots times the share of a slot, with --no-kv-unified"
    yield _missing("--kv-unified-per-slot", env="LLAMA_ARG_KV_UNIFIED_PER_SLOT", why=why)

    yield _missing("--rpc", env="LLAMA_ARG_RPC", why="llama.cpp is built without RPC: one machine computes the whole model")
    yield _missing("-sp", "--special", n=0, why="special tokens are never part of the text")
    why = "there are no built-in tools"
    yield _missing("--tools", env="LLAMA_ARG_TOOLS", neutral=("",), why=why)
    yield _missing("--mcp-servers-config", env="LLAMA_ARG_MCP_SERVERS_CONFIG", neutral=("",), why=why)
    yield _missing("--mcp-servers-json", env="LLAMA_ARG_MCP_SERVERS_JSON", neutral=("",), why=why)
    yield _missing("-ag", "--agent", n=0, env="LLAMA_ARG_AGENT", why=why)
    yield _missing("--ui-mcp-proxy", "--webui-mcp-proxy", n=0, env="LLAMA_ARG_UI_MCP_PROXY", why="there is no MCP proxy")
    why = "the engine runs in this process; pass its flags to this command, or in --args"
    yield _missing("--engine", why=why)


ACCEPTED: tuple[Accepted, ...] = (
    *_switches(),
    *_idle_values(),
    *_idle_without(),
    *_drafts(),
    *_missing_models(),
    *_missing_values(),
)
"""All flags of llama-server without a setting here, including flags that only older versions have."""
