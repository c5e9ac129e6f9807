"""Toy adapters of the demo model: random changes of rank 4."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

__all__ = ["N_BYTES", "write_adapter", "write_changes"]

N_EMBD = 192
N_FF = 512
N_LAYERS = 3
"""Of the demo model; not all of its layers are changed."""

N_RANK = 4

N_BYTES = 4 * N_LAYERS * N_RANK * (2 * N_EMBD + N_FF + N_EMBD)
"""Of the numbers of an adapter."""


def write_adapter(
    path: Path,
    *,
    seed: int,
    architecture: str = "llama",
    n_embd: int = N_EMBD,
    task_name: str = "",
    invoked_by: list[int] | None = None,
) -> Path:
    """Writes an adapter that changes queries and what leaves the first layers; returns the path."""
    matrices = (("attn_q", n_embd), ("ffn_down", N_FF))
    shapes = {f"blk.{layer}.{name}.weight": (n_in, n_embd) for layer in range(N_LAYERS) for name, n_in in matrices}
    return write_changes(path, architecture, shapes, seed=seed, task_name=task_name, invoked_by=invoked_by)


def write_changes(
    path: Path,
    architecture: str,
    shapes: Mapping[str, tuple[int, int]],
    *,
    seed: int,
    task_name: str = "",
    invoked_by: list[int] | None = None,
) -> Path:
    """Writes an adapter that changes these matrices, of so many columns and rows; returns the path."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    if task_name:
        writer.add_string("adapter.lora.task_name", task_name)
    if invoked_by is not None:
        writer.add_key_value("adapter.alora.invocation_tokens", invoked_by, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    draw = np.random.default_rng(seed)
    for name, (n_in, n_out) in shapes.items():
        for half, shape in (("lora_a", (N_RANK, n_in)), ("lora_b", (n_out, N_RANK))):
            writer.add_tensor(f"{name}.{half}", draw.uniform(-0.25, 0.25, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
