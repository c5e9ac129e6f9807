"""The storyteller itself: a llama of 2.76 million parameters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name.
from torch import nn

from examples.storyteller.tokenizer import VOCABULARY

WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 192, 6, 6, 2, 512, 1024
HEAD_WIDTH = WIDTH // HEADS
ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-5


class Block(nn.Module):
    """One layer: attention with shared KV heads, then a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(WIDTH, eps=NORM_EPSILON)
        self.q = nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * HEAD_WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * HEAD_WIDTH, bias=False)
        self.o = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)
        self.ffn_norm = nn.RMSNorm(WIDTH, eps=NORM_EPSILON)
        self.gate = nn.Linear(WIDTH, FEED_FORWARD, bias=False)
        self.up = nn.Linear(WIDTH, FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """`x` is batch × tokens × width, and so is the answer."""
        batch, length, _ = x.shape
        h = self.attn_norm(x)
        q = rotate(self.q(h).view(batch, length, HEADS, HEAD_WIDTH), cos, sin).transpose(1, 2)
        k = rotate(self.k(h).view(batch, length, KV_HEADS, HEAD_WIDTH), cos, sin).transpose(1, 2)
        v = self.v(h).view(batch, length, KV_HEADS, HEAD_WIDTH).transpose(1, 2)
        k, v = (heads.repeat_interleave(HEADS // KV_HEADS, dim=1) for heads in (k, v))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.o(h)
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions on neighbouring pairs, as GGUF's llama has them (https://arxiv.org/abs/2104.09864)."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cos[: x.shape[1], None], sin[: x.shape[1], None]
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2).to(x.dtype)


class Model(nn.Module):
    """Token ids to logits; the embedding is the output matrix too."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=NORM_EPSILON)
        frequency = ROPE_BASE ** (-torch.arange(0, HEAD_WIDTH, 2).float() / HEAD_WIDTH)
        angle = torch.outer(torch.arange(CONTEXT).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the residual stream starts smaller, so that its variance does not grow with the layers.
                is_added = name.endswith(("o.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if is_added else 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` is batch × tokens; the answer has a row of logits for each."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embed.weight)
