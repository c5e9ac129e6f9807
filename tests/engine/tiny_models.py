"""Models of some ten thousand random weights, one for each kind of memory that llama.cpp has.

Their architectures are public ones at toy sizes. What they write is noise, but what they remember of a text, and how, is that of
any model of their kind. The vocabulary is the 256 bytes, after three control tokens.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import gguf
import numpy as np

__all__ = ["KINDS", "N_CONTROL", "N_POSITIONS", "N_VOCAB", "N_WINDOW", "Kind", "write_tiny_model"]

Kind = Literal["attention", "window", "recurrent", "hybrid", "positions", "grid", "hybrid-grid"]
"""What a model keeps of a text.

"attention": cells for all of it (Llama). "window": the same, but the first layer sees `N_WINDOW` tokens alone (Gemma 3).
"recurrent": a state (Mamba). "hybrid": a state in the first layer, cells in the second (LFM2).

"positions" is as "attention", with a weight for each of `N_POSITIONS` positions: there are no others (GPT-2).
"grid" is as "attention", with positions in time, row and column (Qwen2-VL). "hybrid-grid" is as "hybrid", with such positions
(Qwen3.5).
"""

KINDS: tuple[Kind, ...] = ("attention", "window", "recurrent", "hybrid")
"""One for each kind of memory."""

N_POSITIONS = 64

N_WINDOW = 16
"""How many tokens a sliding window sees, the newest included."""

N_CONTROL = 3
"""The tokens below this one are no bytes."""

N_VOCAB = N_CONTROL + 256

_N_EMBD = 64
_N_FF = 128
_N_LAYERS = 2
_N_HEADS = 2
_N_STATE = 16
_N_STEP = 4

_N_DELTA_HEADS = 2
_N_DELTA = 32
"""Numbers of a key and of a value of a head whose state is a matrix (gated delta net)."""

_HEAD = 32
"""Elements of one head: a whole block of a quantised cache."""

_ARCHITECTURES = {
    "attention": "llama",
    "window": "gemma3",
    "recurrent": "mamba",
    "hybrid": "lfm2",
    "positions": "gpt2",
    "grid": "qwen2vl",
    "hybrid-grid": "qwen35",
}


def write_tiny_model(
    kind: Kind,
    path: Path,
    *,
    seed: int = 0,
    matrices: gguf.GGMLQuantizationType | None = None,
    has_end: bool = True,
    splitter: str | None = None,
    gap_tokens: Mapping[str, int] | None = None,
    scaling: tuple[gguf.RopeScalingType, float] | None = None,
) -> None:
    """Writes the model of this kind, the same for the same seed, the matrices of its layers in this format, else in f32.

    Without `has_end` no token ends a text. With a `splitter`, words are found by what llama.cpp has under this name. `gap_tokens`
    are those of a text with a gap, by llama.cpp's names for them. `scaling` is how its positions are scaled, for texts that are
    longer by this factor.
    """
    writer = gguf.GGUFWriter(str(path), _ARCHITECTURES[kind])
    _add_shape(writer, kind)
    if scaling is not None:
        writer.add_rope_scaling_type(scaling[0])
        writer.add_rope_scaling_factor(scaling[1])
    if splitter is None:
        _add_vocabulary(writer, has_end=has_end)
    else:
        _add_words(writer, splitter)
    for name, token in (gap_tokens or {}).items():
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    draw = np.random.default_rng(seed)
    for name, shape in _tensors(kind):
        weights = _weights(draw, name, shape)
        if matrices is not None and name.startswith("blk.") and len(shape) == 2:
            writer.add_tensor(name, gguf.quants.quantize(weights, matrices), raw_dtype=matrices)
        else:
            writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, kind: Kind) -> None:
    writer.add_context_length(N_POSITIONS if kind == "positions" else 4096)
    writer.add_embedding_length(_N_EMBD)
    writer.add_block_count(_N_LAYERS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_layer_norm_eps(1e-6)
    if kind == "recurrent":
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * _N_EMBD)
        writer.add_ssm_state_size(_N_STATE)
        writer.add_ssm_time_step_rank(_N_STEP)
        return
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEADS)
    if kind == "positions":
        return
    writer.add_head_count_kv([0, 1] if kind == "hybrid" else 1)
    writer.add_key_length(_HEAD)
    writer.add_value_length(_HEAD)
    if kind in ("grid", "hybrid-grid"):
        writer.add_rope_dimension_sections([4, 6, 6, 0])
    if kind == "hybrid-grid":
        writer.add_full_attention_interval(2)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(_N_DELTA_HEADS * _N_DELTA)
        writer.add_ssm_state_size(_N_DELTA)
        writer.add_ssm_time_step_rank(_N_DELTA_HEADS)
        writer.add_ssm_group_count(1)
    elif kind == "hybrid":
        writer.add_shortconv_l_cache(3)
    elif kind == "window":
        writer.add_sliding_window(N_WINDOW)
        writer.add_sliding_window_pattern([True, False])


def _add_vocabulary(writer: gguf.GGUFWriter, *, has_end: bool) -> None:
    if not has_end:
        # Of llama.cpp's kinds of vocabularies, RWKV's has no special token unless it is told of one.
        writer.add_tokenizer_model("rwkv")
        writer.add_token_list(["<0>", "<1>", "<2>", *(f"\\x{byte:02x}" for byte in range(256))])
        writer.add_token_types([*[gguf.TokenType.CONTROL] * N_CONTROL, *[gguf.TokenType.NORMAL] * 256])
        return
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * N_VOCAB)
    writer.add_token_types(types)


def _add_words(writer: gguf.GGUFWriter, splitter: str) -> None:
    # As GPT-2 spells bytes: those that are no visible characters move to 256 and on.
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = (chr(256 + place) for place in range(256 - len(visible)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitter)
    writer.add_token_list(["<unk>", "<s>", "</s>", *(chr(byte) if byte in visible else next(moved) for byte in range(256))])
    writer.add_token_types([*[gguf.TokenType.CONTROL] * N_CONTROL, *[gguf.TokenType.NORMAL] * 256])
    writer.add_token_merges(["a a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _tensors(kind: Kind) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes, rows first."""
    yield "token_embd.weight", (N_VOCAB, _N_EMBD)
    # Of its own, or the likeliest token would be the last one again.
    yield "output.weight", (N_VOCAB, _N_EMBD)
    yield "token_embd_norm.weight" if kind == "hybrid" else "output_norm.weight", (_N_EMBD,)
    if kind == "positions":
        yield "position_embd.weight", (N_POSITIONS, _N_EMBD)
        yield "output_norm.bias", (_N_EMBD,)
    for layer in range(_N_LAYERS):
        for name, shape in _layer_tensors(kind, layer):
            yield f"blk.{layer}.{name}", shape


def _layer_tensors(kind: Kind, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "attn_norm.weight", (_N_EMBD,)
    if kind == "positions":
        shapes = {"attn_qkv": (3 * _N_EMBD, _N_EMBD), "attn_output": (_N_EMBD, _N_EMBD), "ffn_up": (_N_FF, _N_EMBD)}
        for name, shape in (shapes | {"ffn_down": (_N_EMBD, _N_FF)}).items():
            yield f"{name}.weight", shape
            yield f"{name}.bias", shape[:1]
        yield "attn_norm.bias", (_N_EMBD,)
        yield "ffn_norm.weight", (_N_EMBD,)
        yield "ffn_norm.bias", (_N_EMBD,)
        return
    if kind == "recurrent":
        inner = 2 * _N_EMBD
        yield "ssm_in.weight", (2 * inner, _N_EMBD)
        yield "ssm_conv1d.weight", (inner, 4)
        yield "ssm_conv1d.bias", (inner,)
        yield "ssm_x.weight", (_N_STEP + 2 * _N_STATE, inner)
        yield "ssm_dt.weight", (inner, _N_STEP)
        yield "ssm_dt.bias", (inner,)
        yield "ssm_a", (inner, _N_STATE)
        yield "ssm_d", (inner,)
        yield "ssm_out.weight", (_N_EMBD, inner)
        return
    if kind == "hybrid-grid" and layer == 0:
        n_values = _N_DELTA_HEADS * _N_DELTA
        yield "attn_qkv.weight", (2 * _N_DELTA + n_values, _N_EMBD)
        yield "attn_gate.weight", (n_values, _N_EMBD)
        yield "ssm_conv1d.weight", (2 * _N_DELTA + n_values, 4)
        yield "ssm_dt.bias", (_N_DELTA_HEADS,)
        yield "ssm_a", (_N_DELTA_HEADS,)
        yield "ssm_beta.weight", (_N_DELTA_HEADS, _N_EMBD)
        yield "ssm_alpha.weight", (_N_DELTA_HEADS, _N_EMBD)
        yield "ssm_norm.weight", (_N_DELTA,)
        yield "ssm_out.weight", (_N_EMBD, n_values)
    elif kind == "hybrid" and layer == 0:
        yield "shortconv.conv.weight", (_N_EMBD, 3)
        yield "shortconv.in_proj.weight", (3 * _N_EMBD, _N_EMBD)
        yield "shortconv.out_proj.weight", (_N_EMBD, _N_EMBD)
    else:
        # Qwen3.5's queries have a gate each.
        yield "attn_q.weight", ((1 + (kind == "hybrid-grid")) * _N_HEADS * _HEAD, _N_EMBD)
        yield "attn_k.weight", (_HEAD, _N_EMBD)
        yield "attn_v.weight", (_HEAD, _N_EMBD)
        yield "attn_output.weight", (_N_EMBD, _N_HEADS * _HEAD)
        if kind == "grid":
            yield "attn_q.bias", (_N_HEADS * _HEAD,)
            yield "attn_k.bias", (_HEAD,)
            yield "attn_v.bias", (_HEAD,)
        elif kind != "attention":
            yield "attn_q_norm.weight", (_HEAD,)
            yield "attn_k_norm.weight", (_HEAD,)
    if kind in ("window", "hybrid-grid"):
        yield "post_attention_norm.weight", (_N_EMBD,)
    if kind == "window":
        yield "post_ffw_norm.weight", (_N_EMBD,)
    if kind != "hybrid-grid":
        yield "ffn_norm.weight", (_N_EMBD,)
    yield "ffn_gate.weight", (_N_FF, _N_EMBD)
    yield "ffn_up.weight", (_N_FF, _N_EMBD)
    yield "ffn_down.weight", (_N_EMBD, _N_FF)


def _weights(draw: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Noise, such that every token of a text that can be seen has a say in what follows."""
    if name.endswith("norm.weight"):
        weights = np.ones(shape)
    elif name.endswith("ssm_a"):
        # Rates of decay: the state must not forget.
        weights = -0.01 * draw.random(shape)
    elif name.endswith(("attn_q.weight", "attn_k.weight")):
        # Attention looks at many tokens, not at one.
        weights = draw.normal(scale=0.1, size=shape)
    elif name.endswith(("attn_v.weight", "attn_output.weight")):
        weights = draw.normal(scale=0.5, size=shape)
    else:
        weights = draw.normal(scale=0.25, size=shape)
    return weights.astype(np.float32)
