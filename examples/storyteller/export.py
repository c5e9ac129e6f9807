"""Writes the trained model as GGUF, in f16; llama.cpp's `llama-quantize` makes Q8_0 of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

from examples.storyteller.model import (
    CONTEXT,
    FEED_FORWARD,
    HEAD_WIDTH,
    HEADS,
    KV_HEADS,
    LAYERS,
    NORM_EPSILON,
    ROPE_BASE,
    WIDTH,
)
from examples.storyteller.tokenizer import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, IM_END, SPECIAL, VOCABULARY

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from examples.storyteller.model import Model
    from examples.storyteller.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def export(model: Model, tokenizer: Tokenizer, path: Path) -> None:
    """Writes model and vocabulary to `path`."""
    writer = gguf.GGUFWriter(str(path), "llama")
    add_shape(writer)
    add_vocabulary(writer, tokenizer)
    add_tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter) -> None:
    """Adds name and dimensions."""
    writer.add_name("Demo storyteller")
    writer.add_description("A tiny storyteller trained on generated text: for trying the server and for its tests.")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_WIDTH)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Adds the pieces, the ids of the special ones, and the chat template."""
    pieces = tokenizer.pieces
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(i).encode() for i in range(VOCABULARY)])
    writer.add_token_scores([pieces.get_score(i) for i in range(VOCABULARY)])
    writer.add_token_types([token_type(tokenizer, i) for i in range(VOCABULARY)])
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())
    writer.add_eot_token_id(tokenizer.special[IM_END])
    writer.add_uint32("tokenizer.ggml.fim_pre_token_id", tokenizer.special[FIM_PREFIX])
    writer.add_uint32("tokenizer.ggml.fim_suf_token_id", tokenizer.special[FIM_SUFFIX])
    writer.add_uint32("tokenizer.ggml.fim_mid_token_id", tokenizer.special[FIM_MIDDLE])
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def token_type(tokenizer: Tokenizer, token: int) -> gguf.TokenType:
    """What kind of piece a token is; the marks are control tokens, though SentencePiece calls them normal."""
    pieces = tokenizer.pieces
    if pieces.is_unknown(token):
        return gguf.TokenType.UNKNOWN
    if pieces.is_control(token) or pieces.id_to_piece(token) in SPECIAL:
        return gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if pieces.is_byte(token) else gguf.TokenType.NORMAL


def add_tensors(writer: gguf.GGUFWriter, model: Model) -> None:
    """Adds the weights: matrices in f16, norms in f32."""

    def add(name: str, tensor: torch.Tensor) -> None:
        dtype = np.float16 if tensor.dim() == 2 else np.float32
        writer.add_tensor(f"{name}.weight", tensor.detach().float().numpy().astype(dtype))

    add("token_embd", model.embed.weight)
    add("output_norm", model.norm.weight)
    for i, block in enumerate(model.blocks):
        add(f"blk.{i}.attn_norm", block.attn_norm.weight)
        add(f"blk.{i}.ffn_norm", block.ffn_norm.weight)
        add(f"blk.{i}.attn_q", block.q.weight)
        add(f"blk.{i}.attn_k", block.k.weight)
        add(f"blk.{i}.attn_v", block.v.weight)
        add(f"blk.{i}.attn_output", block.o.weight)
        add(f"blk.{i}.ffn_gate", block.gate.weight)
        add(f"blk.{i}.ffn_up", block.up.weight)
        add(f"blk.{i}.ffn_down", block.down.weight)
