"""Toy adapters of the demo model: random changes of rank 4."""

from pathlib import Path

import gguf
import numpy as np

__all__ = ["N_BYTES", "write_adapter"]

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
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    if task_name:
        writer.add_string("adapter.lora.task_name", task_name)
    if invoked_by is not None:
        writer.add_key_value("adapter.alora.invocation_tokens", invoked_by, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)
    draw = np.random.default_rng(seed)
    for layer in range(N_LAYERS):
        for name, n_in, n_out in (("attn_q", n_embd, n_embd), ("ffn_down", N_FF, n_embd)):
            for half, shape in (("lora_a", (N_RANK, n_in)), ("lora_b", (n_out, N_RANK))):
                weights = draw.uniform(-0.25, 0.25, shape).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.{name}.weight.{half}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
