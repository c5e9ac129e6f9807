# ruff: noqa: PYI021 - The reference is read from here.
# Written by scripts/option_stubs.py.

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from weft.config import DraftType, Kernels, KvType, Pooling, RopeScaling

class EngineOptions(TypedDict, total=False):
    """Fields of `EngineConfig` as keywords of `Engine`."""

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
    speculation: Literal["auto", "on", "off"]
    max_draft: int | None
    min_draft_match: int
    draft_model: str | os.PathLike[str] | None
    draft_type: DraftType | None
    draft_min_p: float
    draft_type_k: KvType
    draft_type_v: KvType
    draft_n_gpu_layers: int | None
    draft_devices: Sequence[str] | None
    draft_tensor_overrides: Mapping[str, str] | Sequence[tuple[str, str]]
    draft_cpu_moe: bool
    draft_n_cpu_moe: int
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
