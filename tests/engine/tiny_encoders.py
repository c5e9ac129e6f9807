"""Models of some ten thousand random weights that make vectors, and what they compute, in NumPy.

Their architectures are public ones at toy sizes: BERT, nomic-bert, Qwen 3 with the last token's vector, as its embedding models
have it, BERT with a classifier, as rerankers have it, and Qwen 3 with one ("judge"), which reads query and text by a template.
The vocabulary of the encoders is of words, each a letter.
"""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["CLS", "ENCODERS", "N_POSITIONS", "SEP", "TEMPLATE", "Encoder", "vector", "write_tiny_encoder"]

Encoder = Literal["bert", "nomic", "qwen", "reranker", "judge"]

ENCODERS: tuple[Encoder, ...] = ("bert", "nomic", "qwen", "reranker", "judge")

N_POSITIONS = 128
"""The longest text, in tokens."""

CLS, SEP = 2, 3
"""The tokens before and after a text of an encoder."""

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"\u2581{letter}" for letter in ascii_lowercase), *ascii_lowercase]
_N_BYTES = 3 + 256
_N_EMBD = 32
_N_FF = 48
_N_LAYERS = 2
_N_HEADS = 2
_HEAD = _N_EMBD // _N_HEADS
_EPSILON = 1e-6
_BASE = 10_000.0

_CAUSAL = ("qwen", "judge")
_ARCHITECTURES = {"bert": "bert", "nomic": "nomic-bert", "qwen": "qwen3", "reranker": "bert", "judge": "qwen3"}
_POOLING = {
    "bert": gguf.PoolingType.CLS,
    "nomic": gguf.PoolingType.MEAN,
    "qwen": gguf.PoolingType.LAST,
    "reranker": gguf.PoolingType.RANK,
    "judge": gguf.PoolingType.RANK,
}

TEMPLATE = "Does the text answer the query? {query} / {document} !"
"""How the judge reads both."""

Array = NDArray[np.float32] | Any
"""Numbers; what becomes of them is not told apart."""


def write_tiny_encoder(kind: Encoder, path: Path) -> None:
    """Writes the model of this kind, always the same."""
    writer = gguf.GGUFWriter(str(path), _ARCHITECTURES[kind])
    writer.add_context_length(N_POSITIONS)
    writer.add_embedding_length(_N_EMBD)
    writer.add_block_count(_N_LAYERS)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEADS)
    writer.add_pooling_type(_POOLING[kind])
    if kind in _CAUSAL:
        writer.add_head_count_kv(_N_HEADS)
        writer.add_key_length(_HEAD)
        writer.add_value_length(_HEAD)
        writer.add_layer_norm_rms_eps(_EPSILON)
        _add_bytes(writer)
    else:
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(_EPSILON)
        _add_words(writer)
    if kind == "reranker":
        writer.add_classifier_output_labels(["score"])
    if kind == "judge":
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_string("tokenizer.chat_template.rerank", TEMPLATE)
    for name, weights in _weights(kind).items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_words(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    writer.add_token_list(_WORDS)
    writer.add_token_types([*[gguf.TokenType.CONTROL] * 5, *[gguf.TokenType.NORMAL] * (len(_WORDS) - 5)])
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(CLS)
    writer.add_eos_token_id(SEP)
    writer.add_sep_token_id(SEP)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)


def _add_bytes(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    writer.add_token_scores([0.0] * _N_BYTES)
    writer.add_token_types([gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256])


def _weights(kind: Encoder) -> dict[str, Array]:
    """Every tensor by its name, rows first."""
    draw = np.random.default_rng(ENCODERS.index(kind))

    def matrix(*shape: int) -> Array:
        return draw.normal(scale=0.25, size=shape).astype(np.float32)

    is_causal = kind in _CAUSAL
    has_gate = is_causal or kind == "nomic"
    weights = {"token_embd.weight": matrix(_N_BYTES if is_causal else len(_WORDS), _N_EMBD)}
    if is_causal:
        weights["output_norm.weight"] = 1 + matrix(_N_EMBD)
    else:
        weights |= {
            "token_types.weight": matrix(2, _N_EMBD),
            "token_embd_norm.weight": 1 + matrix(_N_EMBD),
            "token_embd_norm.bias": matrix(_N_EMBD),
        }
    if kind in ("bert", "reranker"):
        weights["position_embd.weight"] = matrix(N_POSITIONS, _N_EMBD)
    norms = ("attn_norm", "ffn_norm") if is_causal else ("attn_output_norm", "layer_output_norm")
    for layer in range(_N_LAYERS):
        block = {f"{name}.weight": matrix(_N_EMBD, _N_EMBD) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        block |= {f"{name}.weight": 1 + matrix(_N_EMBD) for name in norms}
        block |= {"ffn_up.weight": matrix(_N_FF, _N_EMBD), "ffn_down.weight": matrix(_N_EMBD, _N_FF)}
        if has_gate:
            block["ffn_gate.weight"] = matrix(_N_FF, _N_EMBD)
        if is_causal:
            block |= {"attn_q_norm.weight": 1 + matrix(_HEAD), "attn_k_norm.weight": 1 + matrix(_HEAD)}
        else:
            block |= {f"{name}.bias": matrix(_N_EMBD) for name in norms}
        weights |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    if kind == "judge":
        weights["cls.output.weight"] = matrix(2, _N_EMBD)
    if kind == "reranker":
        weights |= {
            "cls.weight": matrix(_N_EMBD, _N_EMBD),
            "cls.bias": matrix(_N_EMBD),
            "cls.output.weight": matrix(1, _N_EMBD),
            "cls.output.bias": matrix(1),
        }
    return weights


def vector(kind: Encoder, tokens: Sequence[int]) -> Array:
    """What the model makes of one text: a vector, or a score."""
    weights = _weights(kind)
    rows = _rows(kind, weights, tokens)
    match kind:
        case "nomic":
            return rows.mean(axis=0)
        case "qwen":
            return rows[-1]
        case "bert":
            return rows[0]
        case "judge":
            parts = np.exp(weights["cls.output.weight"] @ rows[-1])
            return parts[:1] / parts.sum()
        case "reranker":
            hidden = np.tanh(weights["cls.weight"] @ rows[0] + weights["cls.bias"])
            return weights["cls.output.weight"] @ hidden + weights["cls.output.bias"]


def _rows(kind: Encoder, weights: dict[str, Array], tokens: Sequence[int]) -> Array:
    """The vector of each token."""
    is_causal = kind in _CAUSAL
    rows = weights["token_embd.weight"][list(tokens)]
    if not is_causal:
        rows = rows + weights["token_types.weight"][0]
        if "position_embd.weight" in weights:
            rows = rows + weights["position_embd.weight"][: len(tokens)]
        rows = _layer_norm(rows, weights["token_embd_norm.weight"], weights["token_embd_norm.bias"])
    for layer in range(_N_LAYERS):
        block = {name.removeprefix(f"blk.{layer}."): value for name, value in weights.items() if name.startswith(f"blk.{layer}.")}
        if is_causal:
            rows = rows + _attention(kind, block, _rms_norm(rows, block["attn_norm.weight"]))
            rows = rows + _feed_forward(block, _rms_norm(rows, block["ffn_norm.weight"]))
        else:
            rows = rows + _attention(kind, block, rows)
            rows = _layer_norm(rows, block["attn_output_norm.weight"], block["attn_output_norm.bias"])
            rows = rows + _feed_forward(block, rows)
            rows = _layer_norm(rows, block["layer_output_norm.weight"], block["layer_output_norm.bias"])
    return _rms_norm(rows, weights["output_norm.weight"]) if is_causal else rows


def _attention(kind: Encoder, block: dict[str, Array], rows: Array) -> Array:
    n = len(rows)
    query, key, value = ((rows @ block[f"attn_{name}.weight"].T).reshape(n, _N_HEADS, _HEAD).transpose(1, 0, 2) for name in "qkv")
    if kind in _CAUSAL:
        query, key = _rms_norm(query, block["attn_q_norm.weight"]), _rms_norm(key, block["attn_k_norm.weight"])
    if kind == "nomic" or kind in _CAUSAL:
        query, key = _rotated(query), _rotated(key)
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(_HEAD)
    if kind in _CAUSAL:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
    seen = (parts / parts.sum(axis=-1, keepdims=True)) @ value
    return seen.transpose(1, 0, 2).reshape(n, _N_EMBD) @ block["attn_output.weight"].T


def _rotated(heads: Array) -> Array:
    """Turns each head by its position, the first half of its numbers with the second."""
    half = _HEAD // 2
    angles = np.arange(heads.shape[1])[:, None] * _BASE ** (-np.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


def _feed_forward(block: dict[str, Array], rows: Array) -> Array:
    up = rows @ block["ffn_up.weight"].T
    if "ffn_gate.weight" in block:
        gate = rows @ block["ffn_gate.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * up
    else:
        hidden = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
    return hidden @ block["ffn_down.weight"].T


def _layer_norm(rows: Array, weight: Array, bias: Array) -> Array:
    centred = rows - rows.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON) * weight + bias


def _rms_norm(rows: Array, weight: Array) -> Array:
    return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + _EPSILON) * weight
