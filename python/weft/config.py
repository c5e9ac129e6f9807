"""How an engine is to be: the one list of its settings.

`weft.Engine` takes them as keywords or whole, the command line and its file give them by llama-server's spellings, and the
compiled engine gets them as they are. Their names are those of llama.cpp's own parameters, which bindings for Python have too,
and `Engine.limits` answers in the same words.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from weft.errors import InvalidConfig
from weft.fields.about import About, described, wrong

__all__ = ["EngineConfig", "EngineOptions", "Kernels", "KvType", "Pooling", "RopeScaling"]

MAX_SLOTS = 254
MAX_THREADS = 512
MAX_NUMBER = 2**31 - 1
MAX_IMAGE_TOKENS = 65_536
MAX_TOKENS = MAX_NUMBER // 256 * 256

Kernels = Literal["auto", "weft", "llama.cpp"]
"""Whose kernels compute on the CPU."""

KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
"""A number format of the cache."""

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""What becomes of the vectors of a text's tokens."""

RopeScaling = Literal["none", "linear", "yarn"]
"""How the frequencies of positions are scaled."""

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
}
"""What a setting is called elsewhere: on the command line and in other bindings. A message says what it is here."""


@described
class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine is to be; `None` leaves a choice to it.

    A value of the wrong type or out of range is refused when it is made, with `InvalidConfig`; what depends on the model, the
    memory or the machine is checked at the start.
    """

    n_slots: Annotated[
        int | None, About("sequences that run at once; None is 8, each of which may use the whole context", 1, MAX_SLOTS)
    ] = None
    n_ctx: Annotated[
        int | None,
        About(
            "tokens that fit in the KV cache, over all slots; None or 0 lets the model and the free memory decide", 0, MAX_TOKENS
        ),
    ] = None
    kv_unified: Annotated[
        bool | None,
        About("whether one slot may use the whole cache, or n_ctx / n_slots of it; None is the former where n_slots is None"),
    ] = None
    n_batch: Annotated[int, About("most tokens that llama.cpp takes in one call", 1, MAX_NUMBER)] = 2048
    n_ubatch: Annotated[
        int | None, About("most tokens of one decode; None is 512, or fewer where the memory is short", 1, MAX_NUMBER)
    ] = None
    grp_attn_n: Annotated[
        int,
        About(
            "tokens that share a position in a text that outgrows grp_attn_w (self-extend), so that it may be about so many times"
            " as long as the model was trained for; 1 groups none",
            1,
            MAX_NUMBER,
        ),
    ] = 1
    grp_attn_w: Annotated[
        int, About("tokens that are grouped at once where grp_attn_n is not 1: a multiple of that", 1, MAX_NUMBER)
    ] = 512
    n_threads: Annotated[
        int | None,
        About(
            "threads of a decode without rows of prompts, never more than there are processors; None is as tuned, else one for "
            "each physical core",
            1,
            MAX_THREADS,
        ),
    ] = None
    n_threads_batch: Annotated[
        int | None,
        About(
            "threads of a decode with rows of prompts, never more than there are processors; None is the same as n_threads, if "
            "that is given, else as tuned",
            1,
            MAX_THREADS,
        ),
    ] = None
    n_gpu_layers: Annotated[int | None, About("layers that go to the GPU; None is as many as there are", 0, MAX_NUMBER)] = None
    kernels: Annotated[
        Kernels,
        About(
            'whose kernels compute on the CPU: "weft" is Weft\'s own wherever they can, "auto" wherever they are the faster ones,'
            ' "llama.cpp" none of them; Engine.compute says what was chosen, and why'
        ),
    ] = "auto"
    flash_attention: Annotated[
        Literal["auto", "on", "off"],
        About(
            "llama.cpp's attention as one fused kernel, or without it; \"auto\" is Weft's own on a CPU and llama.cpp's choice on"
            " a GPU, and where Weft's does not apply, it is as tuned, else off unless V is quantised or the memory is short"
        ),
    ] = "auto"
    tuned: Annotated[bool, About("whether to use what `python -m weft tune` has measured for this model on this machine")] = True
    pooling: Annotated[
        Pooling | None,
        About(
            'what becomes of the vectors of a text\'s tokens: "mean" is their mean, "cls" the first, "last" the last one, "none"'
            ' keeps all of them, "rank" scores texts by a reranker; None is as the model says, else the mean'
        ),
    ] = None
    type_k: Annotated[KvType, About("number format of the keys in the cache")] = "f16"
    type_v: Annotated[
        KvType, About("number format of the values in the cache; a quantised one cannot be with flash attention off")
    ] = "f16"
    cache_ram: Annotated[
        int | None,
        About(
            "most MiB of host memory for what is cached and does not run; -1 is no limit, 0 keeps nothing outside of the KV"
            " cache, None is 8,192 or a quarter of the machine's memory, whichever is less",
            -1,
            2**44 - 1,
        ),
    ] = None
    max_queue: Annotated[
        int, About("requests that may wait for a slot before further ones are refused with QueueFull", 1, MAX_NUMBER)
    ] = 1024
    max_token_gap_ms: Annotated[
        float | None,
        About(
            "99th percentile, in milliseconds, of the pauses between two tokens of a running stream that a prompt being computed"
            " beside it may cause; None is ten times what the streams take for a token without it, from 8 to 200, or twice"
            " that time where it is more",
            0,
        ),
    ] = None
    ctx_checkpoints: Annotated[
        int,
        About(
            "most states that are kept along the prompt of a recurrent or hybrid model, or windows of one that sees through a"
            " sliding window, so that one which parts from it there computes little again, in an eighth of cache_ram at most; 0"
            " keeps them at the ends of prompts, turns and answers alone. Other models go on from anywhere",
            0,
            MAX_NUMBER,
        ),
    ] = 32
    checkpoint_min_step: Annotated[
        int,
        About(
            "fewest tokens from one of them to the next, on average, since they stand where lines end: a prompt is computed in"
            " pieces between them",
            1,
            MAX_NUMBER,
        ),
    ] = 48
    use_mmap: Annotated[bool, About("maps the file instead of reading it")] = True
    use_mlock: Annotated[bool, About("keeps the weights from being swapped out")] = False
    direct_io: Annotated[
        bool,
        About(
            "reads the file past the operating system's cache where that is possible; then use_mmap and use_mlock do not count"
        ),
    ] = False
    check_tensors: Annotated[bool, About("refuses a file with weights that are no numbers")] = False
    devices: Annotated[
        tuple[str, ...] | None,
        About("devices beside the CPU that take part, by ggml's names (CUDA0); None is all there are, an empty sequence is none"),
    ] = None
    split_mode: Annotated[
        Literal["layer", "row", "none"],
        About('what each of several GPUs holds: layers, or rows of every tensor, or with "none" one GPU all'),
    ] = "layer"
    main_gpu: Annotated[
        int, About("the GPU that holds all where nothing is split, and small tensors where rows are; from 0", 0, MAX_NUMBER)
    ] = 0
    tensor_split: Annotated[
        tuple[float, ...],
        About("each GPU's share, in proportion to their sum; empty leaves the shares to llama.cpp", 0),
    ] = ()
    numa: Annotated[
        Literal["distribute", "isolate", "numactl"] | None,
        About("how threads are bound on a machine with several nodes of memory, once for the whole process; None is not at all"),
    ] = None
    repack: Annotated[
        bool | None,
        About(
            "whether llama.cpp rearranges weights of some formats as its own products want them; None is where these"
            " are to compute"
        ),
    ] = None
    lora: Annotated[
        tuple[tuple[str, float], ...],
        About(
            "adapters (LoRA) that are loaded beside the model, as pairs of a GGUF file and a scale, at most 64; a file alone has"
            " a scale of 1, and one with a scale of 0 is off. A request may name them by their places here, with other scales"
        ),
    ] = ()
    mmproj: Annotated[
        str | None,
        About("the projector (GGUF) that reads pictures and sounds for the model; None is none: then it reads texts alone"),
    ] = None
    mmproj_offload: Annotated[bool, About("whether a GPU computes with the projector, where there is one")] = True
    image_min_tokens: Annotated[
        int | None,
        About(
            "the fewest places that a picture takes, of models that leave a choice; None is what the projector says",
            1,
            MAX_IMAGE_TOKENS,
        ),
    ] = None
    image_max_tokens: Annotated[
        int | None,
        About(
            "the most places that a picture takes, of models that leave a choice; None is what the projector says",
            1,
            MAX_IMAGE_TOKENS,
        ),
    ] = None
    kv_overrides: Annotated[
        tuple[tuple[str, bool | int | float | str], ...],
        About(
            "values of the file's metadata that are others than it says, as pairs of a key and a value or as a mapping: whole"
            " and finite numbers of 32 bits, True or False, and texts; keys and texts of at most 127 bytes"
        ),
    ] = ()
    tensor_overrides: Annotated[
        tuple[tuple[str, str], ...],
        About(
            "tensors that go elsewhere than the others, as pairs of a pattern, which is searched in their names, and the name of"
            " a memory (CPU, CUDA0); the first pattern that is found counts"
        ),
    ] = ()
    cpu_moe: Annotated[bool, About("keeps the experts of every layer in the CPU's memory")] = False
    n_cpu_moe: Annotated[int, About("layers, from the first one on, whose experts stay in the CPU's memory", 0, MAX_NUMBER)] = 0
    n_cpu_ffn: Annotated[
        int,
        About("layers, from the first one on, whose dense feed-forward weights stay in the CPU's memory", 0, MAX_NUMBER),
    ] = 0
    no_host: Annotated[
        bool,
        About("keeps weights of the CPU out of memory that a GPU reads faster, so that llama.cpp may rearrange them"),
    ] = False
    offload_kqv: Annotated[bool, About("whether the cache is on the GPU that has its layer, or else in the machine's memory")] = (
        True
    )
    op_offload: Annotated[bool, About("whether a GPU computes large products with weights that are in the machine's memory")] = (
        True
    )
    rope_scaling_type: Annotated[
        RopeScaling | None, About("how the frequencies of positions are scaled; None is as the model's file says")
    ] = None
    rope_freq_base: Annotated[float | None, About("base of those frequencies; None is as the model's file says", 2, 1e12)] = None
    rope_freq_scale: Annotated[
        float | None,
        About(
            "what positions are multiplied by: 0.25 makes room for texts four times as long as those that the model was trained"
            " on; None is as the model's file says",
            1e-4,
            1e4,
        ),
    ] = None
    yarn_orig_ctx: Annotated[
        int | None, About("YaRN: tokens of context that the model was trained on; None is as its file says", 1, MAX_NUMBER)
    ] = None
    yarn_ext_factor: Annotated[
        float | None, About("YaRN: how much is extrapolated; 0 interpolates alone, None is as the model's file says", 0, 1e6)
    ] = None
    yarn_attn_factor: Annotated[
        float | None,
        About(
            "YaRN: what the lengths of queries and keys are multiplied by where nothing is extrapolated; otherwise it follows"
            " the scale. None is as the model's file says",
            0,
            1e6,
        ),
    ] = None
    yarn_beta_slow: Annotated[
        float | None,
        About("YaRN: turns within the context below which a frequency is interpolated; None is as the model's file says", 0, 1e6),
    ] = None
    yarn_beta_fast: Annotated[
        float | None,
        About("YaRN: turns within the context above which a frequency stays as it is; None is as the model's file says", 0, 1e6),
    ] = None
    cpus: Annotated[
        tuple[int, ...],
        About(
            "processors, by the system's numbers, that threads compute on; empty is all that the process may use. Those that"
            " there are not are left out",
            0,
            MAX_THREADS - 1,
        ),
    ] = ()
    cpus_batch: Annotated[
        tuple[int, ...] | None, About("the same of threads that compute prompts; None is cpus", 0, MAX_THREADS - 1)
    ] = None
    strict_cpu: Annotated[
        bool,
        About(
            "whether each thread is kept on one of those processors, in turn; otherwise each is where they are as many as the"
            " threads, or as their cores are"
        ),
    ] = False
    strict_cpu_batch: Annotated[bool | None, About("the same of threads that compute prompts; None is strict_cpu")] = None
    prio: Annotated[
        int,
        About(
            "who goes first where others want a processor: -1 (low), 0 (normal), 1 (medium), 2 (high) or 3 (realtime); above"
            " normal it takes a right that the system gives (CAP_SYS_NICE or ulimit -r), else the log warns. Threads that make"
            " vectors stay behind the others",
            -1,
            3,
        ),
    ] = 0
    prio_batch: Annotated[int | None, About("the same of threads that compute prompts; None is prio", -1, 3)] = None
    poll: Annotated[
        int | None,
        About(
            "how long threads wait for work at full speed before they sleep: 0 is not at all, 1 some milliseconds, 100 the"
            " longest; None is 1, and 0 for vectors",
            0,
            100,
        ),
    ] = None
    poll_batch: Annotated[int | None, About("the same of threads that compute prompts; None is poll", 0, 100)] = None

    def __post_init__(self) -> None:
        # A list is as good as a tuple.
        for name in ("devices", "tensor_split", "cpus", "cpus_batch"):
            if isinstance(given := getattr(self, name), list):
                msgspec.structs.force_setattr(self, name, tuple(given))
        for name in ("kv_overrides", "tensor_overrides"):
            given = getattr(self, name)
            pairs = list(given.items()) if isinstance(given, Mapping) else given
            if isinstance(pairs, list | tuple):
                whole = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in pairs)
                msgspec.structs.force_setattr(self, name, whole)
        if isinstance(self.lora, list | tuple):
            msgspec.structs.force_setattr(self, "lora", tuple(map(_adapter, self.lora)))
        mmproj: object = self.mmproj
        if isinstance(mmproj, os.PathLike):
            msgspec.structs.force_setattr(self, "mmproj", os.fspath(mmproj))
        for name, message in wrong(self):
            raise InvalidConfig(name, message)

    @classmethod
    def of(cls, config: "EngineConfig | None", options: dict[str, Any]) -> "EngineConfig":
        """A config, or the default, with some settings in place of its own.

        Raises:
            TypeError: There is no setting of that name; the message has the nearest.
            InvalidConfig: A value has the wrong type or is out of range.
        """
        for name in options:
            if name not in cls.__struct_fields__:
                raise TypeError(f"there is no setting {name!r}; {_advice(name, cls.__struct_fields__)}")
        if config is None:
            return cls(**options)
        if not isinstance(config, cls):
            raise TypeError(f"config is of the type {type(config).__name__}; it must be an EngineConfig")
        return msgspec.structs.replace(config, **options) if options else config


def _adapter(given: Any) -> Any:  # noqa: ANN401 (what is wrong is found later)
    """A file and its scale."""
    if isinstance(given, str | os.PathLike):
        return (os.fspath(given), 1.0)
    if isinstance(given, list | tuple) and given and isinstance(given[0], os.PathLike):
        return (os.fspath(given[0]), *given[1:])
    return tuple(given) if isinstance(given, list) else given


def _advice(name: str, names: Iterable[str]) -> str:
    """What was most likely meant by a name that there is not."""
    import difflib  # noqa: PLC0415 (most names are right)

    near = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, names, n=1)), None)
    return f"did you mean {near}?" if near else f"there are {', '.join(names)}"


class EngineOptions(TypedDict, total=False):
    """The fields of `EngineConfig` as keywords of `Engine`."""

    n_slots: int | None
    n_ctx: int | None
    kv_unified: bool | None
    n_batch: int
    n_ubatch: int | None
    grp_attn_n: int
    grp_attn_w: int
    n_threads: int | None
    n_threads_batch: int | None
    n_gpu_layers: int | None
    kernels: Kernels
    flash_attention: Literal["auto", "on", "off"]
    tuned: bool
    pooling: Pooling | None
    type_k: KvType
    type_v: KvType
    cache_ram: int | None
    max_queue: int
    max_token_gap_ms: float | None
    ctx_checkpoints: int
    checkpoint_min_step: int
    use_mmap: bool
    use_mlock: bool
    direct_io: bool
    check_tensors: bool
    devices: Sequence[str] | None
    split_mode: Literal["layer", "row", "none"]
    main_gpu: int
    tensor_split: Sequence[float]
    numa: Literal["distribute", "isolate", "numactl"] | None
    repack: bool | None
    lora: Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]]
    mmproj: str | os.PathLike[str] | None
    mmproj_offload: bool
    image_min_tokens: int | None
    image_max_tokens: int | None
    kv_overrides: Mapping[str, bool | int | float | str] | Sequence[tuple[str, bool | int | float | str]]
    tensor_overrides: Mapping[str, str] | Sequence[tuple[str, str]]
    cpu_moe: bool
    n_cpu_moe: int
    n_cpu_ffn: int
    no_host: bool
    offload_kqv: bool
    op_offload: bool
    rope_scaling_type: RopeScaling | None
    rope_freq_base: float | None
    rope_freq_scale: float | None
    yarn_orig_ctx: int | None
    yarn_ext_factor: float | None
    yarn_attn_factor: float | None
    yarn_beta_slow: float | None
    yarn_beta_fast: float | None
    cpus: Sequence[int]
    cpus_batch: Sequence[int] | None
    strict_cpu: bool
    strict_cpu_batch: bool | None
    prio: int
    prio_batch: int | None
    poll: int | None
    poll_batch: int | None
