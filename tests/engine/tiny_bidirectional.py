"""Encoders of some ten thousand random weights beyond BERT and nomic-bert, and what they compute, in NumPy.

Their architectures are public ones at toy sizes: Jina's second and third, ModernBERT, EmbeddingGemma, T5's encoder by itself, and
T5 as a whole, of which only the encoder is used. Each has two layers, and its tokens see those after them. So have EuroBERT,
NeoBERT, nomic-bert with experts, and Llama without its mask, whose numbers llama-server alone tells (`tests.compare.numbers`).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["BIDIRECTIONAL", "N_POSITIONS", "OTHERS", "Bidirectional", "Other", "vector", "write_tiny_bidirectional"]

Bidirectional = Literal["jina-bert-v2", "jina-bert-v3", "modern-bert", "gemma-embedding", "t5encoder", "t5"]
"""By llama.cpp's names of their architectures."""

BIDIRECTIONAL: tuple[Bidirectional, ...] = ("jina-bert-v2", "jina-bert-v3", "modern-bert", "gemma-embedding", "t5encoder", "t5")

Other = Literal["eurobert", "neo-bert", "nomic-bert-moe", "llama-embed"]
"""Those that are not computed here."""

OTHERS: tuple[Other, ...] = ("eurobert", "neo-bert", "nomic-bert-moe", "llama-embed")

N_POSITIONS = 200
"""The longest text, in tokens."""

_N_VOCAB = 3 + 256
_N_EMBD = 32
_N_FF = 48
_N_LAYERS = 2
_N_HEADS = 2
_HEAD = _N_EMBD // _N_HEADS
_EPSILON = 1e-6
_BASE, _BASE_OF_WINDOW = 10_000.0, 1_000.0
_WINDOW = 20
"""How many tokens a layer with a sliding window sees: half of them before a token, half after it."""
_N_BUCKETS = 32
_N_DENSE = 40
_FARTHEST = 128
_N_EXPERTS, _N_EXPERTS_USED = 4, 2

_T5 = ("t5encoder", "t5")

Array = NDArray[np.float32] | Any
"""Numbers; what becomes of them is not told apart."""


def write_tiny_bidirectional(
    kind: Bidirectional | Other, path: Path, *, n_buckets: int = _N_BUCKETS, without: Sequence[str] = ()
) -> None:
    """Writes the model of this kind, always the same, but for the tensors that it is to be `without`."""
    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_context_length(N_POSITIONS)
    writer.add_embedding_length(_N_EMBD)
    writer.add_block_count(_N_LAYERS)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEADS)
    writer.add_head_count_kv(_N_HEADS)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    if kind in _T5:
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_relative_attn_buckets_count(n_buckets)
        writer.add_layer_norm_rms_eps(_EPSILON)
    elif kind == "gemma-embedding":
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_layer_norm_rms_eps(_EPSILON)
        _add_window(writer)
        for nth, (n_in, n_out) in {2: (_N_EMBD, _N_DENSE), 3: (_N_DENSE, _N_EMBD)}.items():
            writer.add_dense_features_dims(f"dense_{nth}", n_in, n_out)
    else:
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(_EPSILON)
        writer.add_layer_norm_rms_eps(_EPSILON)
        writer.add_token_type_count(2)
        if kind == "modern-bert":
            _add_window(writer)
    if kind == "nomic-bert-moe":
        writer.add_moe_every_n_layers(2)
        writer.add_expert_count(_N_EXPERTS)
        writer.add_expert_used_count(_N_EXPERTS_USED)
    if kind == "t5":
        writer.add_decoder_start_token_id(1)
        writer.add_decoder_block_count(_N_LAYERS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * _N_VOCAB)
    writer.add_token_types([gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256])
    for name, weights in _weights(kind, n_buckets).items():
        if name not in without:
            writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_window(writer: gguf.GGUFWriter) -> None:
    """The second layer looks through a window."""
    writer.add_sliding_window(_WINDOW)
    writer.add_sliding_window_pattern([False, True])
    writer.add_rope_freq_base(_BASE)
    writer.add_rope_freq_base_swa(_BASE_OF_WINDOW)


def _weights(kind: Bidirectional | Other, n_buckets: int = _N_BUCKETS) -> dict[str, Array]:
    """Every tensor by its name, rows first."""
    draw = np.random.default_rng((*BIDIRECTIONAL, *OTHERS).index(kind))

    matrix, block = partial(_matrix, draw), partial(_layer, draw)
    if kind in OTHERS:
        return _weights_of_others(kind, draw)
    attention = ("attn_q", "attn_k", "attn_v", "attn_output")
    norms: tuple[str, ...]
    weights = {"token_embd.weight": matrix(_N_VOCAB, _N_EMBD)}
    match kind:
        case "t5encoder" | "t5":
            weights["enc.output_norm.weight"] = 1 + matrix(_N_EMBD)
            weights["enc.blk.0.attn_rel_b.weight"] = 4 * matrix(n_buckets, _N_HEADS)
            own = ("attn_q", "attn_k", "attn_v", "attn_o")
            for layer in range(_N_LAYERS):
                of = block(own, ("attn_norm", "ffn_norm"), _N_FF, has_gate=kind == "t5encoder", has_bias=False)
                weights |= {f"enc.blk.{layer}.{name}": value for name, value in of.items()}
            if kind == "t5":
                weights["dec.output_norm.weight"] = 1 + matrix(_N_EMBD)
                weights["dec.blk.0.attn_rel_b.weight"] = matrix(n_buckets, _N_HEADS)
                both = (*own, *(f"cross_{name}" for name in own))
                for layer in range(_N_LAYERS):
                    norms = ("attn_norm", "cross_attn_norm", "ffn_norm")
                    of = block(both, norms, _N_FF, has_gate=False, has_bias=False)
                    weights |= {f"dec.blk.{layer}.{name}": value for name, value in of.items()}
        case "gemma-embedding":
            weights["output_norm.weight"] = 1 + matrix(_N_EMBD)
            weights |= {"dense_2.weight": matrix(_N_DENSE, _N_EMBD), "dense_3.weight": matrix(_N_EMBD, _N_DENSE)}
            for layer in range(_N_LAYERS):
                norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
                of = block(attention, norms, _N_FF, has_gate=True, has_bias=False)
                of |= {f"attn_{name}_norm.weight": 1 + matrix(_HEAD) for name in "qk"}
                weights |= {f"blk.{layer}.{name}": value for name, value in of.items()}
        case "modern-bert":
            weights |= {f"{name}.weight": 1 + matrix(_N_EMBD) for name in ("token_embd_norm", "output_norm")}
            for layer in range(_N_LAYERS):
                norms = ("attn_norm", "ffn_norm") if layer > 0 else ("ffn_norm",)
                of = block(("attn_output",), norms, 2 * _N_FF, has_gate=False, has_bias=False)
                of["attn_qkv.weight"] = matrix(3 * _N_EMBD, _N_EMBD)
                weights |= {f"blk.{layer}.{name}": value for name, value in of.items()}
        case "jina-bert-v2" | "jina-bert-v3":
            weights["token_types.weight"] = matrix(2, _N_EMBD)
            weights |= {"token_embd_norm.weight": 1 + matrix(_N_EMBD), "token_embd_norm.bias": matrix(_N_EMBD)}
            for layer in range(_N_LAYERS):
                norms = ("attn_output_norm", "layer_output_norm")
                of = block(attention, norms, _N_FF, has_gate=kind == "jina-bert-v2", has_bias=True)
                weights |= {f"blk.{layer}.{name}": value for name, value in of.items()}
    return weights


def _matrix(draw: np.random.Generator, *shape: int) -> Array:
    return draw.normal(scale=0.25, size=shape).astype(np.float32)


def _layer(
    draw: np.random.Generator, names: Sequence[str], norms: Sequence[str], n_up: int, *, has_gate: bool, has_bias: bool
) -> dict[str, Array]:
    """Tensors of one layer: square ones of these names, norms, and those of a feed-forward network."""
    matrix = partial(_matrix, draw)
    tensors = {f"{name}.weight": matrix(_N_EMBD, _N_EMBD) for name in names}
    tensors |= {f"{name}.weight": 1 + matrix(_N_EMBD) for name in norms}
    tensors |= {"ffn_up.weight": matrix(n_up, _N_EMBD), "ffn_down.weight": matrix(_N_EMBD, _N_FF)}
    if has_gate:
        tensors["ffn_gate.weight"] = matrix(_N_FF, _N_EMBD)
    if has_bias:
        tensors |= {f"{name}.bias": matrix(_N_EMBD) for name in (*norms, "attn_output", "ffn_down")}
    return tensors


def _weights_of_others(kind: Bidirectional | Other, draw: np.random.Generator) -> dict[str, Array]:
    matrix, block = partial(_matrix, draw), partial(_layer, draw)
    attention = ("attn_q", "attn_k", "attn_v", "attn_output")
    weights = {"token_embd.weight": matrix(_N_VOCAB, _N_EMBD)}
    if kind == "nomic-bert-moe":
        weights["token_types.weight"] = matrix(2, _N_EMBD)
        weights |= {"token_embd_norm.weight": 1 + matrix(_N_EMBD), "token_embd_norm.bias": matrix(_N_EMBD)}
    else:
        weights[f"{'enc.' * (kind == 'neo-bert')}output_norm.weight"] = 1 + matrix(_N_EMBD)
    for layer in range(_N_LAYERS):
        match kind:
            case "neo-bert":
                of = block(("attn_output",), ("attn_norm", "ffn_norm"), 2 * _N_FF, has_gate=False, has_bias=False)
                of["attn_qkv.weight"] = matrix(3 * _N_EMBD, _N_EMBD)
            case "nomic-bert-moe":
                of = block(attention, ("attn_output_norm", "layer_output_norm"), _N_FF, has_gate=False, has_bias=True)
                if layer == 1:
                    of = {name: value for name, value in of.items() if not name.startswith("ffn_")}
                    of["ffn_gate_inp.weight"] = matrix(_N_EXPERTS, _N_EMBD)
                    of["ffn_up_exps.weight"] = matrix(_N_EXPERTS, _N_FF, _N_EMBD)
                    of["ffn_down_exps.weight"] = matrix(_N_EXPERTS, _N_EMBD, _N_FF)
            case _:
                of = block(attention, ("attn_norm", "ffn_norm"), _N_FF, has_gate=True, has_bias=False)
        weights |= {f"blk.{layer}.{name}": value for name, value in of.items()}
    return weights


def vector(kind: Bidirectional, tokens: Sequence[int]) -> Array:
    """What the model makes of one text: the mean of its tokens' vectors."""
    weights = _weights(kind)
    rows = weights["token_embd.weight"][list(tokens)]
    blocks = [_block(weights, f"{'enc.' * (kind in _T5)}blk.{layer}.") for layer in range(_N_LAYERS)]
    match kind:
        case "t5encoder" | "t5":
            return _t5(weights, blocks, rows).mean(axis=0)
        case "gemma-embedding":
            pooled = _gemma(weights, blocks, rows).mean(axis=0)
            return weights["dense_3.weight"] @ (weights["dense_2.weight"] @ pooled)
        case "modern-bert":
            return _modern(weights, blocks, rows).mean(axis=0)
        case "jina-bert-v2" | "jina-bert-v3":
            return _jina(kind, weights, blocks, rows).mean(axis=0)


def _block(weights: dict[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _t5(weights: dict[str, Array], blocks: Sequence[dict[str, Array]], rows: Array) -> Array:
    bias = _bias(weights["enc.blk.0.attn_rel_b.weight"], len(rows))
    for block in blocks:
        query, key, value = _heads(block, _rms_norm(rows, block["attn_norm.weight"]))
        rows = rows + _joined(_seen(query, key, value, bias)) @ block["attn_o.weight"].T
        normed = _rms_norm(rows, block["ffn_norm.weight"])
        up = normed @ block["ffn_up.weight"].T
        hidden = _gelu(normed @ block["ffn_gate.weight"].T) * up if "ffn_gate.weight" in block else np.maximum(up, 0)
        rows = rows + hidden @ block["ffn_down.weight"].T
    return _rms_norm(rows, weights["enc.output_norm.weight"])


def _bias(table: Array, n: int) -> Array:
    """What is added to each score for how far both tokens are apart: near distances have a bucket each, far ones share some."""
    apart = np.arange(n)[None, :] - np.arange(n)[:, None]
    n_half = _N_BUCKETS // 2
    n_exact = n_half // 2
    distance = np.abs(apart)
    far = n_exact + np.log(np.maximum(distance, 1) / n_exact) * (n_half - n_exact) / np.log(_FARTHEST / n_exact)
    buckets = np.where(distance < n_exact, distance, np.minimum(np.floor(far), n_half - 1)) + (apart > 0) * n_half
    return table[buckets.astype(int)].transpose(2, 0, 1)


def _gemma(weights: dict[str, Array], blocks: Sequence[dict[str, Array]], rows: Array) -> Array:
    rows = rows * np.sqrt(_N_EMBD)
    for layer, block in enumerate(blocks):
        query, key, value = _heads(block, _rms_norm(rows, block["attn_norm.weight"]))
        query, key = _rms_norm(query, block["attn_q_norm.weight"]), _rms_norm(key, block["attn_k_norm.weight"])
        base = _BASE_OF_WINDOW if layer == 1 else _BASE
        seen = _seen(_rotated(query, base) / np.sqrt(_HEAD), _rotated(key, base), value, _mask(layer, len(rows)))
        rows = rows + _rms_norm(_joined(seen) @ block["attn_output.weight"].T, block["post_attention_norm.weight"])
        normed = _rms_norm(rows, block["ffn_norm.weight"])
        hidden = _gelu(normed @ block["ffn_gate.weight"].T) * (normed @ block["ffn_up.weight"].T)
        rows = rows + _rms_norm(hidden @ block["ffn_down.weight"].T, block["post_ffw_norm.weight"])
    return _rms_norm(rows, weights["output_norm.weight"])


def _modern(weights: dict[str, Array], blocks: Sequence[dict[str, Array]], rows: Array) -> Array:
    rows = _layer_norm(rows, weights["token_embd_norm.weight"])
    for layer, block in enumerate(blocks):
        normed = _layer_norm(rows, block["attn_norm.weight"]) if "attn_norm.weight" in block else rows
        query, key, value = (_split(part) for part in np.split(normed @ block["attn_qkv.weight"].T, 3, axis=1))
        base = _BASE_OF_WINDOW if layer == 1 else _BASE
        seen = _seen(_rotated(query, base) / np.sqrt(_HEAD), _rotated(key, base), value, _mask(layer, len(rows)))
        rows = rows + _joined(seen) @ block["attn_output.weight"].T
        gate, up = np.split(_layer_norm(rows, block["ffn_norm.weight"]) @ block["ffn_up.weight"].T, 2, axis=1)
        rows = rows + (_gelu(gate) * up) @ block["ffn_down.weight"].T
    return _layer_norm(rows, weights["output_norm.weight"])


def _mask(layer: int, n: int) -> Array:
    apart = np.abs(np.arange(n)[None, :] - np.arange(n)[:, None])
    return np.where(apart > _WINDOW // 2, -np.inf, 0) if layer == 1 else np.zeros((n, n))


def _jina(kind: Bidirectional, weights: dict[str, Array], blocks: Sequence[dict[str, Array]], rows: Array) -> Array:
    rows = rows + weights["token_types.weight"][0]
    rows = _layer_norm(rows, weights["token_embd_norm.weight"], weights["token_embd_norm.bias"])
    apart = np.abs(np.arange(len(rows))[None, :] - np.arange(len(rows))[:, None])
    # ALiBi: the first half of the heads looks less far than the second (https://arxiv.org/abs/2108.12409).
    slopes = 2.0 ** (-8 / _N_HEADS * (1 + np.arange(_N_HEADS)))
    bias = -slopes[:, None, None] * apart if kind == "jina-bert-v2" else 0
    for block in blocks:
        query, key, value = _heads(block, rows)
        if kind == "jina-bert-v3":
            query, key = _rotated(query, _BASE), _rotated(key, _BASE)
        seen = _joined(_seen(query / np.sqrt(_HEAD), key, value, bias)) @ block["attn_output.weight"].T
        rows = rows + seen + block["attn_output.bias"]
        rows = _layer_norm(rows, block["attn_output_norm.weight"], block["attn_output_norm.bias"])
        up = rows @ block["ffn_up.weight"].T
        hidden = _gelu(rows @ block["ffn_gate.weight"].T) * up if "ffn_gate.weight" in block else _gelu(up)
        rows = rows + hidden @ block["ffn_down.weight"].T + block["ffn_down.bias"]
        rows = _layer_norm(rows, block["layer_output_norm.weight"], block["layer_output_norm.bias"])
    return rows


def _heads(block: dict[str, Array], rows: Array) -> tuple[Array, ...]:
    """Queries, keys and values of each head."""
    return tuple(_split(rows @ block[f"attn_{name}.weight"].T) for name in "qkv")


def _split(rows: Array) -> Array:
    return rows.reshape(len(rows), _N_HEADS, _HEAD).transpose(1, 0, 2)


def _joined(heads: Array) -> Array:
    return heads.transpose(1, 0, 2).reshape(-1, _N_EMBD)


def _seen(query: Array, key: Array, value: Array, bias: Array) -> Array:
    scores = query @ key.transpose(0, 2, 1) + bias
    parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (parts / parts.sum(axis=-1, keepdims=True)) @ value


def _rotated(heads: Array, base: float) -> Array:
    """Turns each head by its position, the first half of its numbers with the second."""
    half = _HEAD // 2
    angles = np.arange(heads.shape[1])[:, None] * base ** (-np.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


def _gelu(rows: Array) -> Array:
    return 0.5 * rows * (1 + np.tanh(np.sqrt(2 / np.pi) * (rows + 0.044715 * rows**3)))


def _layer_norm(rows: Array, weight: Array, bias: Array = 0) -> Array:
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON) * weight + bias


def _rms_norm(rows: Array, weight: Array) -> Array:
    return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + _EPSILON) * weight
