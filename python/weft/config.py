"""Engine configuration: the single list of its settings.

`weft.Engine` accepts them as keywords or as an `EngineConfig`; the command line and the configuration file use llama-server's
spellings; the compiled engine receives the struct unchanged. The names are llama.cpp's own parameter names, as in its Python
bindings, and `Engine.limits` uses the same names.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from weft.errors import InvalidConfigError
from weft.fields.meta import Range, Unset, described, invalid_fields

__all__ = ["DraftType", "EngineConfig", "Kernels", "KvType", "Pooling", "RopeScaling"]

MAX_SLOTS = 254
MAX_THREADS = 512
MAX_NUMBER = 2**31 - 1
MAX_DRAFT = 64
MAX_IMAGE_TOKENS = 65_536
MAX_TOKENS = MAX_NUMBER // 256 * 256

Kernels = Literal["auto", "weft", "llama.cpp"]
"""CPU kernel implementation."""

KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
"""Number format of cached keys or values."""

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""Pooling of a text's token embeddings."""

DraftType = Literal["draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"]
"""Type of a draft model."""

RopeScaling = Literal["none", "linear", "yarn"]
"""RoPE scaling method."""

OTHER_NAMES = {
    "ctx_size": "n_ctx",
    "context_length": "n_ctx",
    "slots": "n_slots",
    "parallel": "n_slots",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "gpu_layers": "n_gpu_layers",
    "flash_attn": "flash_attention",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
    "max_token_gap": "max_token_gap_ms",
    "pooling_type": "pooling",
    "rope_scaling": "rope_scaling_type",
    "override_kv": "kv_overrides",
    "override_tensor": "tensor_overrides",
    "tensor_buft_overrides": "tensor_overrides",
    "kv_offload": "offload_kqv",
    "cpu_strict": "strict_cpu",
    "spec_type": "speculation",
    "spec_draft_n_max": "max_draft",
    "model_draft": "draft_model",
    "spec_draft_model": "draft_model",
}
"""Names of settings on the command line and in other bindings. An error message suggests the name that is used here."""


@described
class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine. `None` leaves a choice to the engine.

    The constructor raises `InvalidConfigError` for a value of the wrong type or out of range. Conditions that depend on the
    model, the memory or the machine are checked when the engine starts. `Engine.compute` reports the chosen kernels, and why.
    """

    n_slots: Annotated[
        int | None, "sequences that run concurrently", Range(1, MAX_SLOTS), Unset("8, each of which may use the whole context")
    ] = None
    n_ctx: Annotated[
        int | None,
        "size of the KV cache in tokens, shared by all slots",
        Range(0, MAX_TOKENS),
        Unset("0, which derives it from the model, the slots and the free memory"),
    ] = None
    kv_unified: Annotated[
        bool | None,
        "let a slot use the whole cache, or only its share (`n_ctx` / `n_slots`)",
        Unset("the whole if `n_slots` is unset, else its share"),
    ] = None
    n_batch: Annotated[int, "maximum tokens of one llama.cpp call, the logical batch", Range(1, MAX_NUMBER)] = 2048
    n_ubatch: Annotated[
        int | None,
        "maximum tokens of one decode, the physical batch",
        Range(1, MAX_NUMBER),
        Unset("512, or less if memory is short"),
    ] = None
    grp_attn_n: Annotated[
        int,
        "self-extend: tokens that share a position in a text longer than `grp_attn_w`, which extends the usable context"
        " by about this factor; 1 disables it",
        Range(1, MAX_NUMBER),
    ] = 1
    grp_attn_w: Annotated[
        int, "self-extend: tokens per group; a multiple of `grp_attn_n` unless that is 1", Range(1, MAX_NUMBER)
    ] = 512
    n_threads: Annotated[
        int | None,
        "threads of steps without prompt tokens (generation), at most the number of processors",
        Range(1, MAX_THREADS),
        Unset("the tuned value, else one per physical core"),
    ] = None
    n_threads_batch: Annotated[
        int | None,
        "threads of steps with prompt tokens (prefill), at most the number of processors",
        Range(1, MAX_THREADS),
        Unset("`n_threads` if that is set, else the tuned value"),
    ] = None
    n_gpu_layers: Annotated[int | None, "number of layers to keep in GPU memory", Range(0, MAX_NUMBER), Unset("all")] = None
    kernels: Annotated[
        Kernels, "CPU kernels: weft uses Weft's own where they support the model, auto where they are faster, llama.cpp never"
    ] = "auto"
    flash_attention: Annotated[
        Literal["auto", "on", "off"],
        "llama.cpp's fused attention kernel (on) or separate products (off); auto uses Weft's own kernel on a CPU where"
        " it applies and llama.cpp's choice on a GPU, elsewhere the tuned value, else off unless V is quantized or memory"
        " is short",
    ] = "auto"
    tuned: Annotated[bool, "use the measurements of `python -m weft tune` for this model on this machine"] = True
    pooling: Annotated[
        Pooling | None,
        "pooling of token embeddings: none (one embedding per token), mean, cls (first token), last (last token) or rank"
        " (reranker score)",
        Unset("the model's own, else mean"),
    ] = None
    type_k: Annotated[KvType, "number format of cached keys"] = "f16"
    type_v: Annotated[KvType, "number format of cached values; quantized formats require flash attention"] = "f16"
    cache_ram: Annotated[
        int | None,
        "host cache limit in MiB, for cached prefixes that are not in use; -1 is no limit, 0 disables the host cache",
        Range(-1, 2**44 - 1),
        Unset("8192, or a quarter of the machine's memory if that is less"),
    ] = None
    max_queue: Annotated[
        int,
        "maximum requests that wait for a slot; further requests are rejected (QueueFullError, HTTP 429)",
        Range(1, MAX_NUMBER),
    ] = 1024
    max_token_gap_ms: Annotated[
        float | None,
        "target for the 99th percentile, in milliseconds, of the gap between two tokens of a running stream while a"
        " prompt is computed concurrently",
        Range(0),
        Unset("ten times the streams' own time per token, from 8 to 200, or twice that time if that is more"),
    ] = None
    ctx_checkpoints: Annotated[
        int,
        "maximum checkpoints along the prompt of a recurrent, hybrid or sliding-window model, from which a prompt that"
        " diverges there can continue; they use at most an eighth of `cache_ram`. 0 keeps them only at the ends of"
        " prompts, turns and answers",
        Range(0, MAX_NUMBER),
    ] = 32
    checkpoint_min_step: Annotated[
        int, "minimum tokens between two checkpoints, on average, since checkpoints are placed at line ends", Range(1, MAX_NUMBER)
    ] = 48
    speculation: Annotated[
        Literal["auto", "on", "off"],
        "speculative decoding: draft likely tokens from earlier text and from constraints, and verify several in one step. auto"
        " uses it where the generated text stays the same, bit by bit (`Engine.is_repeatable`), on wherever the model allows it,"
        " off never",
    ] = "auto"
    max_draft: Annotated[
        int | None,
        "maximum drafted tokens of a sequence in one step",
        Range(0, MAX_DRAFT),
        Unset("16; 4 for draft models of the types draft-eagle3 and draft-mtp"),
    ] = None
    min_draft_match: Annotated[
        int,
        "number of last tokens that must occur in an earlier text before a draft continues it; lengths above 32 count as 32",
        Range(1, 1024),
    ] = 1
    draft_model: Annotated[
        str | None,
        "draft model (GGUF) for speculative decoding: a smaller model with the same vocabulary, or one that reads hidden states"
        " of this model (EAGLE-3, MTP, DFlash, DSpark)",
        Unset("drafts come from text and constraints only"),
    ] = None
    draft_type: Annotated[
        DraftType | None,
        "type of the draft model; draft-mtp without `draft_model` uses the layers in the model's own file that predict further"
        " tokens",
        Unset("as its file says"),
    ] = None
    draft_min_p: Annotated[float, "minimum probability of a token that the draft model drafts", Range(0, 1)] = 0.0
    draft_type_k: Annotated[KvType, "number format of the draft model's cached keys"] = "f16"
    draft_type_v: Annotated[KvType, "number format of the draft model's cached values"] = "f16"
    draft_n_gpu_layers: Annotated[
        int | None, "number of layers of the draft model to keep in GPU memory", Range(0, MAX_NUMBER), Unset("all")
    ] = None
    draft_devices: Annotated[
        tuple[str, ...] | None, "devices of the draft model in addition to the CPU, as in `devices`", Unset("all")
    ] = None
    draft_tensor_overrides: Annotated[
        tuple[tuple[str, str], ...], "overrides of the memory of the draft model's tensors, as in `tensor_overrides`"
    ] = ()
    draft_cpu_moe: Annotated[bool, "keep the experts of the draft model in CPU memory"] = False
    draft_n_cpu_moe: Annotated[
        int, "number of layers of the draft model, from the first, whose experts stay in CPU memory", Range(0, MAX_NUMBER)
    ] = 0
    use_mmap: Annotated[bool, "memory-map the model file instead of reading it"] = True
    use_mlock: Annotated[bool, "lock the weights in memory, so that they are never swapped out"] = False
    direct_io: Annotated[
        bool, "read the file with direct I/O, bypassing the page cache, where supported; use_mmap and use_mlock are then ignored"
    ] = False
    check_tensors: Annotated[bool, "reject a file that has weights that are not finite numbers"] = False
    devices: Annotated[
        tuple[str, ...] | None,
        "devices to use in addition to the CPU, by ggml name (CUDA0); an empty sequence is none",
        Unset("all"),
    ] = None
    split_mode: Annotated[
        Literal["layer", "row", "none"],
        "how to split the model across GPUs: by layer, by row of each tensor, or none for a single GPU",
    ] = "layer"
    main_gpu: Annotated[
        int, "GPU for the whole model with `split_mode` none, or for small tensors with row; from 0", Range(0, MAX_NUMBER)
    ] = 0
    tensor_split: Annotated[
        tuple[float, ...], "proportion of the model on each GPU; empty leaves the split to llama.cpp", Range(0)
    ] = ()
    numa: Annotated[
        Literal["distribute", "isolate", "numactl"] | None,
        "thread placement on a machine with several NUMA nodes, for the whole process: distribute spreads threads evenly,"
        " isolate keeps them on one node, numactl uses the CPU map of numactl",
        Unset("left to the system"),
    ] = None
    repack: Annotated[
        bool | None,
        "repack weights of some formats for llama.cpp's own kernels, which cannot be memory-mapped then, or keep them in"
        " their on-disk layout",
        Unset("repacking where llama.cpp's kernels compute them"),
    ] = None
    lora: Annotated[
        tuple[tuple[str, float], ...],
        "LoRA adapters to load, as pairs of a GGUF file and a scale, at most 64; a file alone has scale 1, scale 0"
        " disables an adapter. A request may select them by their index in this list, with other scales",
    ] = ()
    mmproj: Annotated[str | None, "multimodal projector (GGUF) for images and audio", Unset("text only")] = None
    mmproj_offload: Annotated[bool, "run the projector on a GPU if there is one"] = True
    image_min_tokens: Annotated[
        int | None,
        "minimum tokens per image, for models with dynamic resolution",
        Range(1, MAX_IMAGE_TOKENS),
        Unset("the projector's own"),
    ] = None
    image_max_tokens: Annotated[
        int | None,
        "maximum tokens per image, for models with dynamic resolution",
        Range(1, MAX_IMAGE_TOKENS),
        Unset("the projector's own"),
    ] = None
    kv_overrides: Annotated[
        tuple[tuple[str, bool | int | float | str], ...],
        "overrides of the file's metadata, as pairs of key and value or as a mapping: 32-bit integers, finite numbers,"
        " True or False, and strings; keys and strings of at most 127 bytes",
    ] = ()
    tensor_overrides: Annotated[
        tuple[tuple[str, str], ...],
        "overrides of tensor placement, as pairs of a regular expression, searched in tensor names, and a buffer type"
        " (CPU, CUDA0); the first match applies",
    ] = ()
    cpu_moe: Annotated[bool, "keep the experts of all layers in CPU memory"] = False
    n_cpu_moe: Annotated[int, "number of layers, from the first, whose experts stay in CPU memory", Range(0, MAX_NUMBER)] = 0
    n_cpu_ffn: Annotated[
        int, "number of layers, from the first, whose dense feed-forward weights stay in CPU memory", Range(0, MAX_NUMBER)
    ] = 0
    no_host: Annotated[bool, "do not use host buffers (pinned memory) for CPU weights, which allows llama.cpp to repack them"] = (
        False
    )
    offload_kqv: Annotated[bool, "keep the KV cache of each layer on that layer's GPU, not in host memory"] = True
    op_offload: Annotated[bool, "compute large products with weights in host memory on a GPU"] = True
    rope_scaling_type: Annotated[RopeScaling | None, "RoPE scaling method", Unset("the model's own, else linear")] = None
    rope_freq_base: Annotated[float | None, "RoPE base frequency", Range(2, 1e12), Unset("the model's own")] = None
    rope_freq_scale: Annotated[
        float | None,
        "RoPE frequency scale: 0.25 extends the context to four times the training length",
        Range(1e-4, 1e4),
        Unset("the model's own"),
    ] = None
    yarn_orig_ctx: Annotated[
        int | None, "YaRN: original context size of the model in tokens", Range(1, MAX_NUMBER), Unset("the model's own")
    ] = None
    yarn_ext_factor: Annotated[
        float | None, "YaRN: extrapolation mix factor; 0 is full interpolation", Range(0, 1e6), Unset("the model's own")
    ] = None
    yarn_attn_factor: Annotated[
        float | None,
        "YaRN: factor for the magnitude of queries and keys when nothing is extrapolated; otherwise derived from the scale",
        Range(0, 1e6),
        Unset("the model's own"),
    ] = None
    yarn_beta_slow: Annotated[
        float | None,
        "YaRN: rotations per context below which a frequency is interpolated",
        Range(0, 1e6),
        Unset("the model's own"),
    ] = None
    yarn_beta_fast: Annotated[
        float | None, "YaRN: rotations per context above which a frequency is unchanged", Range(0, 1e6), Unset("the model's own")
    ] = None
    cpus: Annotated[
        tuple[int, ...],
        "CPU affinity of compute threads, as processor numbers; empty is every processor that the process may use."
        " Numbers without a processor are ignored",
        Range(0, MAX_THREADS - 1),
    ] = ()
    cpus_batch: Annotated[
        tuple[int, ...] | None, "CPU affinity of threads that compute prompts", Range(0, MAX_THREADS - 1), Unset("`cpus`")
    ] = None
    strict_cpu: Annotated[
        bool,
        "pin each thread to one of those processors, round-robin; otherwise threads are pinned only if there are as many"
        " as processors, or as cores",
    ] = False
    strict_cpu_batch: Annotated[bool | None, "`strict_cpu` of threads that compute prompts", Unset("`strict_cpu`")] = None
    prio: Annotated[
        int,
        "thread scheduling priority: -1 (low), 0 (normal), 1 (medium), 2 (high) or 3 (realtime). Above normal requires"
        " CAP_SYS_NICE or ulimit -r; without it, a warning is logged. Threads that compute embeddings have a lower"
        " priority",
        Range(-1, 3),
    ] = 0
    prio_batch: Annotated[int | None, "`prio` of threads that compute prompts", Range(-1, 3), Unset("`prio`")] = None
    poll: Annotated[
        int | None,
        "busy-waiting of idle threads before they sleep: 0 disables it, 1 is a few milliseconds, 100 the longest",
        Range(0, 100),
        Unset("1, and 0 for embeddings"),
    ] = None
    poll_batch: Annotated[int | None, "`poll` of threads that compute prompts", Range(0, 100), Unset("`poll`")] = None

    def __post_init__(self) -> None:
        # Lists are accepted, and stored as tuples.
        for name in ("devices", "draft_devices", "tensor_split", "cpus", "cpus_batch"):
            if isinstance(given := getattr(self, name), list):
                msgspec.structs.force_setattr(self, name, tuple(given))
        for name in ("kv_overrides", "tensor_overrides", "draft_tensor_overrides"):
            given = getattr(self, name)
            pairs = list(given.items()) if isinstance(given, Mapping) else given
            if isinstance(pairs, list | tuple):
                whole = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in pairs)
                msgspec.structs.force_setattr(self, name, whole)
        if isinstance(self.lora, list | tuple):
            msgspec.structs.force_setattr(self, "lora", tuple(map(_adapter, self.lora)))
        for name in ("mmproj", "draft_model"):
            if isinstance(path := getattr(self, name), os.PathLike):
                msgspec.structs.force_setattr(self, name, os.fspath(path))
        for name, message in invalid_fields(self):
            raise InvalidConfigError(name, message)

    @classmethod
    def of(cls, config: "EngineConfig | None", options: dict[str, Any]) -> "EngineConfig":
        """Returns `config`, or the default, with some settings replaced.

        Raises:
            TypeError: There is no setting of that name; the message suggests the nearest.
            InvalidConfigError: A value has the wrong type or is out of range.
        """
        for name in options:
            if name not in cls.__struct_fields__:
                raise TypeError(f"unknown setting {name!r}; {_advice(name, cls.__struct_fields__)}")
        if config is None:
            return cls(**options)
        if not isinstance(config, cls):
            raise TypeError(f"config is of the type {type(config).__name__}; it must be an EngineConfig")
        return msgspec.structs.replace(config, **options) if options else config


def _adapter(given: Any) -> Any:  # noqa: ANN401 (validated later)
    """Returns a pair of file and scale."""
    if isinstance(given, str | os.PathLike):
        return (os.fspath(given), 1.0)
    if isinstance(given, list | tuple) and given and isinstance(given[0], os.PathLike):
        return (os.fspath(given[0]), *given[1:])
    return tuple(given) if isinstance(given, list) else given


def _advice(name: str, names: Iterable[str]) -> str:
    """Returns a hint for an unknown name: its equivalent, the nearest name, or all names."""
    import difflib  # noqa: PLC0415 (needed only for an error message)

    near = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, names, n=1)), None)
    return f"did you mean {near}?" if near else f"the settings are {', '.join(names)}"
