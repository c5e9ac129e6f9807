"""Trains the storyteller on a corpus, for a given time, and writes it as GGUF in f16.

Needs torch, sentencepiece, numpy and gguf. Writes tokenizer.model, tokens.npy, model.pt and demo-f16.gguf to the output folder,
the last two every 400 steps.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name.
from torch import nn

from examples.storyteller import document, tokenizer
from examples.storyteller.export import export
from examples.storyteller.model import CONTEXT, Model
from examples.storyteller.tokenizer import VOCABULARY, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENIZER_DOCUMENTS = 20_000
WARM_UP_STEPS = 100
SHORT_WINDOWS_UNTIL = 0.8
"""The share of the time in which windows are half as long: they train faster, and the long ones are needed only at the end."""


class Trainer:
    """The model, its optimizer and the text, with a budget of seconds."""

    def __init__(self, model: Model, tokens: NDArray[np.uint16], args: argparse.Namespace) -> None:
        self.model = model
        self.tokens = tokens
        self.limit_s = args.minutes * 60
        self.n_step_tokens = args.batch * CONTEXT
        self.peak_rate = args.lr
        self.order = np.random.default_rng(args.seed)
        self.forward = torch.compile(model, dynamic=False)
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        norms = [parameter for parameter in model.parameters() if parameter.dim() != 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.peak_rate, betas=(0.9, 0.95))

    def run(self, save: Path, tok: Tokenizer) -> int:
        """Trains until the time is over; returns the number of steps."""
        start, step, shown = time.time(), 0, 0.0
        while (gone := time.time() - start) < self.limit_s:
            share = gone / self.limit_s
            rate = self.rate(step, share)
            loss = self.step(self.windows(share), rate)
            shown = loss if step == 0 else 0.95 * shown + 0.05 * loss
            step += 1
            if step % 25 == 0:
                speed = step * self.n_step_tokens / (time.time() - start)
                print(f"step {step} loss {shown:.4f} rate {rate:.2e} {speed:.0f} tok/s {gone / 60:.1f} min", flush=True)
            if step % 400 == 0:
                write(self.model, tok, save)
        return step

    def rate(self, step: int, share: float) -> float:
        """The learning rate: a short climb, then half a cosine down to 5 % of the peak at the end of the time."""
        return self.peak_rate * min(1.0, (step + 1) / WARM_UP_STEPS) * (0.5 * (1 + math.cos(math.pi * share)) * 0.95 + 0.05)

    def windows(self, share: float) -> torch.Tensor:
        """Windows of the text from anywhere, each one token longer than what is predicted."""
        length = CONTEXT // 2 if share < SHORT_WINDOWS_UNTIL else CONTEXT
        starts = self.order.integers(0, len(self.tokens) - length - 1, self.n_step_tokens // length)
        return torch.from_numpy(np.stack([self.tokens[i : i + length + 1] for i in starts]).astype(np.int64))

    def step(self, windows: torch.Tensor, rate: float) -> float:
        """One step of the optimizer; returns the loss in nats per token."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.forward(windows[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, VOCABULARY), windows[:, 1:].reshape(-1))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.item())


def encoded(corpus: Path, out: Path, rng: random.Random) -> tuple[Tokenizer, NDArray[np.uint16]]:
    """The tokenizer and the corpus in tokens: read from `out`, or made and kept there."""
    documents = [document.from_json(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    pieces, tokens = out / "tokenizer.model", out / "tokens.npy"
    if not pieces.exists():
        tokenizer.train(documents[:TOKENIZER_DOCUMENTS], pieces)
    tok = Tokenizer(pieces)
    if not tokens.exists():
        np.save(tokens, np.concatenate([np.array(tok.encode(text, rng), dtype=np.uint16) for text in documents]))
    return tok, np.load(tokens)


def write(model: Model, tok: Tokenizer, out: Path) -> None:
    """Writes the weights twice: to go on from, and to run."""
    torch.save(model.state_dict(), out / "model.pt")
    export(model, tok, out / "demo-f16.gguf")


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, help="what examples.storyteller.corpus wrote")
    parser.add_argument("out", type=Path, help="the output folder")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batch", type=int, default=16, help="windows of the whole context in one step")
    parser.add_argument("--lr", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from model.pt in the output folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    tok, tokens = encoded(args.corpus, args.out, random.Random(args.seed))
    model = Model()
    if args.resume:
        model.load_state_dict(torch.load(args.out / "model.pt"))
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokens) / 1e6:.1f}M tokens, {n_parameters / 1e6:.2f}M parameters", flush=True)
    n_steps = Trainer(model, tokens, args).run(args.out, tok)
    write(model, tok, args.out)
    print(f"done: {n_steps} steps", flush=True)


if __name__ == "__main__":
    main()
