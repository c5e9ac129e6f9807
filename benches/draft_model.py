"""Trains a draft model for the demo model: one layer, on texts that the demo model generates.

The draft model has the vocabulary of the demo model, an embedding of 96 numbers and 0.3 million weights, a ninth of the demo
model's. Texts are generated first, and kept in a file; then the model is trained for some minutes, with numpy.
`cargo bench --bench speculation -- --part draft --draft FILE` measures the model. Start it in the repository's root as
`python -m benches.draft_model FILE`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

import weft
from weft.demo import DEMO_MODEL

N_EMBD = 96
N_FF = 256
N_HEADS = 3
N_HEAD = N_EMBD // N_HEADS
ROPE_BASE = 1e4
EPSILON = 1e-5
WINDOW = 256
"""Tokens of a training window."""
N_WINDOWS = 16
"""Windows of a training step."""
RATE = 4e-3
"""Highest learning rate."""
N_SLOTS = 64
N_TEXT = 400
"""Maximum tokens of a generated text."""
OPENINGS = (
    "",
    "Once upon a time,",
    "Long ago,",
    "One bright morning,",
    "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n",
)

Array = NDArray[np.float32]
Weights = dict[str, Array]


async def generate(n_tokens: int) -> NDArray[np.uint16]:
    """Generates texts as the demo model samples them, one after the other."""
    config = weft.EngineConfig(n_slots=N_SLOTS, n_ctx=N_SLOTS * 512, kv_unified=True, speculation="off", cache_ram=0)
    texts: list[int] = []
    async with weft.Engine(config=config) as engine:
        for seed in range(n_tokens):
            opening = engine.tokenize(OPENINGS[seed % len(OPENINGS)])
            completion = await engine.complete(
                opening, n=N_SLOTS, seed=seed, max_tokens=N_TEXT, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0
            )
            for choice in completion.choices:
                texts += [*opening, *choice.token_ids]
            if len(texts) >= n_tokens:
                break
    return np.array(texts[:n_tokens], dtype=np.uint16)


def shapes(n_vocab: int) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of each tensor, as stored: rows are outputs."""
    return {
        "token_embd": (n_vocab, N_EMBD),
        "output_norm": (N_EMBD,),
        "blk.0.attn_norm": (N_EMBD,),
        "blk.0.attn_q": (N_EMBD, N_EMBD),
        "blk.0.attn_k": (N_EMBD, N_EMBD),
        "blk.0.attn_v": (N_EMBD, N_EMBD),
        "blk.0.attn_output": (N_EMBD, N_EMBD),
        "blk.0.ffn_norm": (N_EMBD,),
        "blk.0.ffn_gate": (N_FF, N_EMBD),
        "blk.0.ffn_up": (N_FF, N_EMBD),
        "blk.0.ffn_down": (N_EMBD, N_FF),
    }


def normalize(x: Array, weight: Array) -> tuple[Array, Array]:
    """Returns the normalized rows, and the factor of each row."""
    factor = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)
    return x * factor * weight, factor


def normalize_backward(x: Array, factor: Array, weight: Array, grad: Array) -> tuple[Array, Array]:
    """Returns the gradients of the rows and of the weight."""
    scaled = x * factor
    weighted = grad * weight
    of_x = factor * (weighted - scaled * np.mean(weighted * scaled, axis=-1, keepdims=True))
    return of_x, np.sum(grad * scaled, axis=tuple(range(x.ndim - 1)))


def rotate(x: Array, angles: tuple[Array, Array]) -> Array:
    """Rotates pairs of neighbours by the angles of their positions, given as cosines and sines."""
    cos, sin = angles
    rotated = np.empty_like(x)
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated[..., 0::2] = even * cos - odd * sin
    rotated[..., 1::2] = even * sin + odd * cos
    return rotated


def split(x: Array) -> Array:
    """Splits rows of windows into heads: windows, heads, positions, numbers."""
    return x.reshape(N_WINDOWS, WINDOW, N_HEADS, N_HEAD).transpose(0, 2, 1, 3)


def join(x: Array) -> Array:
    """Joins the heads again."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(N_WINDOWS * WINDOW, N_EMBD)


def softmax(x: Array) -> Array:
    """Replaces rows by their softmax."""
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x


class Trainer:
    """Weights with the state of AdamW."""

    def __init__(self, n_vocab: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weights: Weights = {
            name: np.ones(shape, np.float32) if len(shape) == 1 else random.normal(0, 0.04, shape).astype(np.float32)
            for name, shape in shapes(n_vocab).items()
        }
        self._means: Weights = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self._squares: Weights = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        positions = np.arange(WINDOW, dtype=np.float32)[:, None]
        angles = positions * ROPE_BASE ** (-np.arange(0, N_HEAD, 2, dtype=np.float32) / N_HEAD)
        self._angles = np.cos(angles), np.sin(angles)
        self._future = np.triu(np.full((WINDOW, WINDOW), -np.inf, np.float32), 1)
        self.n_steps = 0

    def step(self, tokens: NDArray[np.int64], rate: float) -> float:
        """Trains on windows with one more token each; returns the mean loss before the step."""
        loss, gradients = self.gradients(tokens)
        norm = math.sqrt(sum(float(np.vdot(gradient, gradient)) for gradient in gradients.values()))
        self.n_steps += 1
        for name, unclipped in gradients.items():
            gradient = unclipped * np.float32(min(1.0, 1.0 / norm))
            mean, square, weight = self._means[name], self._squares[name], self.weights[name]
            mean += 0.1 * (gradient - mean)
            square += 0.05 * (gradient * gradient - square)
            change = mean / (1 - 0.9**self.n_steps) / (np.sqrt(square / (1 - 0.95**self.n_steps)) + 1e-8)
            weight -= rate * (change + (0.05 * weight if weight.ndim == 2 else 0.0))
        return loss

    def gradients(self, tokens: NDArray[np.int64]) -> tuple[float, Weights]:
        """Returns the mean loss and the gradient of each tensor."""
        w = {name.removeprefix("blk.0."): weight for name, weight in self.weights.items()}
        ids, targets = tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)
        n, (cos, sin) = ids.size, self._angles
        x0 = w["token_embd"][ids]
        normed, factor_attn = normalize(x0, w["attn_norm"])
        query, key = (rotate(split(normed @ w[f"attn_{name}"].T), self._angles) for name in "qk")
        value = split(normed @ w["attn_v"].T)
        scale = np.float32(1 / math.sqrt(N_HEAD))
        attention = softmax(query @ key.swapaxes(-1, -2) * scale + self._future)
        mixed = join(attention @ value)
        x1 = x0 + mixed @ w["attn_output"].T
        normed_ffn, factor_ffn = normalize(x1, w["ffn_norm"])
        gate, up = normed_ffn @ w["ffn_gate"].T, normed_ffn @ w["ffn_up"].T
        sigmoid = 1 / (1 + np.exp(-gate))
        hidden = gate * sigmoid * up
        x2 = x1 + hidden @ w["ffn_down"].T
        last, factor_last = normalize(x2, w["output_norm"])
        likely = softmax(last @ w["token_embd"].T)
        rows = np.arange(n)
        loss = -float(np.mean(np.log(likely[rows, targets] + 1e-20)))

        likely[rows, targets] -= 1
        likely /= n
        g: Weights = {"token_embd": likely.T @ last}
        d2, g["output_norm"] = normalize_backward(x2, factor_last, w["output_norm"], likely @ w["token_embd"])
        g["ffn_down"] = d2.T @ hidden
        d_hidden = d2 @ w["ffn_down"]
        d_up = d_hidden * gate * sigmoid
        d_gate = d_hidden * up * sigmoid * (1 + gate * (1 - sigmoid))
        g["ffn_gate"], g["ffn_up"] = d_gate.T @ normed_ffn, d_up.T @ normed_ffn
        d1, g["ffn_norm"] = normalize_backward(x1, factor_ffn, w["ffn_norm"], d_gate @ w["ffn_gate"] + d_up @ w["ffn_up"])
        d1 += d2
        g["attn_output"] = d1.T @ mixed
        d_mixed = split(d1 @ w["attn_output"])
        d_value = attention.swapaxes(-1, -2) @ d_mixed
        d_attention = d_mixed @ value.swapaxes(-1, -2)
        d_scores = attention * (d_attention - np.sum(d_attention * attention, axis=-1, keepdims=True)) * scale
        # The inverse rotation.
        back = cos, -sin
        d_query, d_key = rotate(d_scores @ key, back), rotate(d_scores.swapaxes(-1, -2) @ query, back)
        d_normed = np.zeros_like(normed)
        for name, gradient in (("attn_q", d_query), ("attn_k", d_key), ("attn_v", d_value)):
            joined = join(gradient)
            g[name] = joined.T @ normed
            d_normed += joined @ w[name]
        d0, g["attn_norm"] = normalize_backward(x0, factor_attn, w["attn_norm"], d_normed)
        np.add.at(g["token_embd"], ids, d0 + d1)
        return loss, {name: g[name.removeprefix("blk.0.")] for name in self.weights}


def train(texts: NDArray[np.uint16], n_vocab: int, minutes: float) -> Weights:
    """Trains for a time, with a learning rate that falls to a twentieth."""
    trainer, random = Trainer(n_vocab, 1), np.random.default_rng(1)
    started, recent = time.monotonic(), 0.0
    while (part := (time.monotonic() - started) / (60 * minutes)) < 1:
        starts = random.integers(0, texts.size - WINDOW - 1, N_WINDOWS)
        windows = np.stack([texts[start : start + WINDOW + 1] for start in starts]).astype(np.int64)
        rate = RATE * min(1.0, (trainer.n_steps + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * part)))
        loss = trainer.step(windows, rate)
        recent = loss if trainer.n_steps == 1 else 0.95 * recent + 0.05 * loss
        if trainer.n_steps % 50 == 0:
            print(f"step {trainer.n_steps}: loss {recent:.3f}, {part:.0%} of the time", flush=True)
    return trainer.weights


def write(path: Path, weights: Weights) -> None:
    """Writes the model, with the vocabulary of the demo model."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("Draft model of the storyteller")
    writer.add_context_length(1024)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_HEADS)
    writer.add_rope_dimension_count(N_HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    for name, field in gguf.GGUFReader(DEMO_MODEL).fields.items():
        if name.startswith("tokenizer."):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    quantized = gguf.GGMLQuantizationType.Q8_0
    for name, weight in weights.items():
        if weight.ndim == 1:
            writer.add_tensor(f"{name}.weight", weight)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weight, quantized), raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    """Generates the texts, if there is no file of them, trains the model and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="the GGUF file to write")
    parser.add_argument("--texts", type=Path, help="file of the generated tokens (default: the model's name with .npy)")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="number of tokens to generate (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="time to train; 0 only generates texts (default: %(default)s)")
    args = parser.parse_args()
    path = args.texts or args.model.with_suffix(".npy")
    if not path.exists():
        started = time.monotonic()
        np.save(path, asyncio.run(generate(args.tokens)))
        print(f"generated {args.tokens} tokens in {time.monotonic() - started:.0f} s", flush=True)
    if args.minutes > 0:
        vocabulary = gguf.GGUFReader(DEMO_MODEL).fields["tokenizer.ggml.tokens"]
        write(args.model, train(np.load(path), len(vocabulary.data), args.minutes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
