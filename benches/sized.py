"""Random models of the sizes that people run: what they say means nothing, and what they cost is what a real one costs.

Weights repeat after some millions, which no kernel notices, so that a file is written as fast as the disk takes it. Pieces of the
vocabulary are made up too; those that are bytes, and the end, are never among the likeliest.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

N_DRAWN = 65_537
"""Blocks of 256 weights that are drawn: an odd number, so that rows differ."""
N_SPECIAL = 259
"""Pieces that are never likely: the unknown, begin, end, and bytes."""


@dataclass(frozen=True)
class Size:
    """A model's shape."""

    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    n_ff: int
    n_vocab: int
    rope_base: float
    kind: gguf.GGMLQuantizationType
    """Format of the weights of its layers."""
    kind_outside: gguf.GGMLQuantizationType
    """Format of its first and last tensor."""


SIZES = {
    "1.1b-f16": Size(22, 2048, 32, 4, 5632, 32_000, 1e4, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F16),
    "8b-q4_k": Size(32, 4096, 32, 8, 14336, 128_256, 5e5, gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q8_0),
    "tiny-q4_k": Size(2, 256, 4, 2, 512, 4_000, 1e4, gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q8_0),
}
"""As TinyLlama, as Llama 3 of 8 billion, and one that a CPU computes at once."""


def write_sized(path: Path, size: Size, n_ctx: int = 131_072) -> None:
    """Writes a model of this size."""
    writer = gguf.GGUFWriter(str(path), "llama")
    n_head = size.n_embd // size.n_heads
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(size.n_embd)
    writer.add_block_count(size.n_layers)
    writer.add_feed_forward_length(size.n_ff)
    writer.add_head_count(size.n_heads)
    writer.add_head_count_kv(size.n_kv_heads)
    writer.add_rope_dimension_count(n_head)
    writer.add_rope_freq_base(size.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(size.n_vocab)
    writer.add_tokenizer_model("llama")
    ordinary = [f"▁w{n}" for n in range(size.n_vocab - N_SPECIAL)]
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *ordinary])
    writer.add_token_scores([-float(n) for n in range(size.n_vocab)])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(ordinary)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    of_kv = n_head * size.n_kv_heads
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (size.n_vocab, size.n_embd),
        "output.weight": (size.n_vocab, size.n_embd),
    }
    shapes["output_norm.weight"] = (size.n_embd,)
    wide = {
        "attn_q": size.n_embd,
        "attn_k": of_kv,
        "attn_v": of_kv,
        "attn_output": size.n_embd,
        "ffn_gate": size.n_ff,
        "ffn_up": size.n_ff,
    }
    for layer in range(size.n_layers):
        shapes |= {f"blk.{layer}.{name}.weight": (n, size.n_embd) for name, n in wide.items()}
        shapes |= {f"blk.{layer}.ffn_down.weight": (size.n_embd, size.n_ff)}
        shapes |= {f"blk.{layer}.{name}.weight": (size.n_embd,) for name in ("attn_norm", "ffn_norm")}
    kinds = {name: kind_of(size, name, shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        n_bytes = n_bytes_of(kinds[name], math.prod(shape))
        writer.add_tensor_info(name, byte_shape(kinds[name], shape), np.dtype(np.uint8), n_bytes, kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    drawn: dict[tuple[gguf.GGMLQuantizationType, int], NDArray[np.uint8]] = {}
    for name, shape in shapes.items():
        kind, n_in = kinds[name], shape[-1]
        if len(shape) == 1:
            written = np.ones(shape, np.float32).view(np.uint8)
        else:
            if (kind, n_in) not in drawn:
                drawn[kind, n_in] = draw(kind, 1 / math.sqrt(n_in))
            written = np.resize(drawn[kind, n_in], n_bytes_of(kind, math.prod(shape)))
            if name == "output.weight":
                written[: n_bytes_of(kind, N_SPECIAL * n_in)] = 0
        writer.write_tensor_data(written)
    writer.close()


def kind_of(size: Size, name: str, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
    """The format of a tensor."""
    if len(shape) == 1:
        return gguf.GGMLQuantizationType.F32
    return size.kind if name.startswith("blk.") else size.kind_outside


def n_bytes_of(kind: gguf.GGMLQuantizationType, n_weights: int) -> int:
    """What so many weights take."""
    n_block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    return n_weights // n_block * n_bytes


def byte_shape(kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in bytes, as the writer wants it."""
    return (*shape[:-1], n_bytes_of(kind, shape[-1]))


def draw(kind: gguf.GGMLQuantizationType, deviation: float) -> NDArray[np.uint8]:
    """The bytes of weights with this standard deviation."""
    source = np.random.default_rng(0)
    if kind == gguf.GGMLQuantizationType.Q4_K:
        blocks = source.integers(0, 256, (N_DRAWN, 144), np.uint8)
        # A weight is d × scale × 0…15 − least × offset, with scales and offsets of 0 to 63: 165 d around nothing.
        d = np.float16(deviation / 165)
        blocks[:, :4] = np.array([d, np.float16(7.5 * float(d))], np.float16).view(np.uint8)
        return blocks.reshape(-1)
    if kind == gguf.GGMLQuantizationType.Q8_0:
        # A weight is d × −128…127: 74 d around nothing.
        blocks = source.integers(0, 256, (N_DRAWN, 8, 34), np.uint8)
        blocks[..., :2] = np.array([deviation / 74], np.float16).view(np.uint8)
        return blocks.reshape(-1)
    weights = source.standard_normal(N_DRAWN * 256, np.float32) * np.float32(deviation)
    return weights.astype(np.float16).view(np.uint8)
