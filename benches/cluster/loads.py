"""What is asked of a cluster: chats behind shared system prompts, fan-outs, and a published trace.

The shapes, and where they are from:

- Chats: two turns on average, of 69.5 tokens, answered in 214.5: LMSYS-Chat-1M (Zheng et al. 2023,
  <https://arxiv.org/abs/2309.11998>, table 1). The number of turns is drawn from a geometric distribution, lengths from
  exponential ones; a person reads and types for 30 seconds on average, which no source tells.
- System prompts: how often each is used follows Zipf's law with exponent 0.8, as requests of web pages do (0.64 to 0.83; Breslau
  et al. 1999, <https://doi.org/10.1109/INFCOM.1999.749260>): nobody has published it of system prompts. They have 1,000 to 3,000
  tokens.
- Fan-outs: 40 requests at once that share a prompt and differ in their last tokens, as self-consistency samples (Wang et al.
  2022, <https://arxiv.org/abs/2203.11171>: up to 40 paths), and 8 more that go on from one of them, one after the other.
- Mooncake's conversation trace (Qin et al. 2025, FAST '25, <https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces>):
  an hour of 12,031 requests with their times, lengths, and the blocks of 512 tokens that they share. A part of the conversations,
  as large as the cluster is of 96 replicas, at the times of the trace.
"""

import json
import random
from array import array
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import shake_128
from itertools import accumulate
from pathlib import Path

__all__ = ["FULL", "Session", "Tokens", "Turn", "chats", "fan_outs", "mooncake", "words"]

FULL = 96
"""Replicas that the whole of Mooncake's trace is sent to."""

N_WORDS = 88
"""Tokens of the model that computes nothing, without those that end or halve something."""

_WORDS = bytes(4 + byte % N_WORDS for byte in range(256))

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a session."""

    prompt: Callable[[], Tokens]
    """Made when it is needed: all of a trace at once would take a machine's memory."""
    answer: Tokens
    """What is written after it, as far as somebody goes on from that."""
    n_answer: int
    after_s: float
    """How long after the end of the turn before it is asked."""


@dataclass(frozen=True, slots=True)
class Session:
    """Requests of which each is asked after the one before has ended."""

    at_s: float
    turns: Sequence[Turn]
    key: str


def words(name: str, n: int) -> "array[int]":
    """A text of so many tokens, the same for each name."""
    return array("i", list(shake_128(name.encode()).digest(n).translate(_WORDS)))


def _zipf(n: int, exponent: float) -> Callable[[random.Random], int]:
    sums = list(accumulate(1 / rank**exponent for rank in range(1, n + 1)))
    return lambda draw: bisect(sums, draw.random() * sums[-1])


def chats(n_replicas: int, seconds: float, *, per_s: float, n_system_prompts: int, seed: int = 0) -> Iterator[Session]:
    """Chats that begin so often in a second for each replica."""
    draw = random.Random(f"chats {seed}")
    system_prompt = _zipf(n_system_prompts, 0.8)
    lengths = [random.Random(f"system {nth}").randint(1_000, 3_000) for nth in range(n_system_prompts)]
    at = 0.0
    for nth in range(round(n_replicas * seconds * per_s)):
        at += draw.expovariate(n_replicas * per_s)
        which = system_prompt(draw)
        text = words(f"system {which}", lengths[which])
        turns: list[Turn] = []
        is_last = False
        while not is_last:
            asked = words(f"chat {seed} {nth} asked {len(turns)}", 1 + round(draw.expovariate(1 / 69.5)))
            answer = words(f"chat {seed} {nth} answered {len(turns)}", 1 + round(draw.expovariate(1 / 214.5)))
            text = text + asked
            turns.append(Turn(lambda text=text: text, answer, len(answer), draw.expovariate(1 / 30)))  # type: ignore[misc]
            text = text + answer
            is_last = draw.random() < 0.5
        yield Session(at, turns, f"chat {nth}")


def fan_outs(n_replicas: int, seconds: float, *, per_s: float, seed: int = 0) -> Iterator[Session]:
    """Trees that begin so often in a second for each replica."""
    draw = random.Random(f"fan-outs {seed}")
    at = 0.0
    for nth in range(round(n_replicas * seconds * per_s)):
        at += draw.expovariate(n_replicas * per_s)
        stem = words(f"tree {seed} {nth}", 500 + round(draw.expovariate(1 / 1_500)))
        for branch in range(40):
            text = stem + words(f"tree {seed} {nth} {branch}", 20)
            answer = words(f"tree {seed} {nth} answered {branch}", 100)
            turns = [Turn(lambda text=text: text, answer, 100, 0.0)]  # type: ignore[misc]
            if branch == 0:
                text = text + answer
                turns += [_leaf(text, seed, nth, leaf) for leaf in range(8)]
            yield Session(at, turns, f"tree {nth}")


def _leaf(text: "array[int]", seed: int, nth: int, leaf: int) -> Turn:
    longer = text + words(f"tree {seed} {nth} leaf {leaf}", 20)
    return Turn(lambda: longer, words("", 0), 100, 1.0)


def mooncake(path: Path, n_replicas: int, seconds: float) -> Iterator[Session]:
    """The part of a trace in Mooncake's format that so many replicas are sent. What is answered is not known, and not shared."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            ids, n, at = row["hash_ids"], row["input_length"], row["timestamp"] / 1_000
            if at > seconds:
                return
            # All begin with the same block: what tells conversations apart is the second one.
            conversation = ids[min(1, len(ids) - 1)]
            if random.Random(conversation).random() * FULL < n_replicas:
                turn = Turn(lambda ids=ids, n=n: _expanded(ids, n), words("", 0), row["output_length"], 0.0)  # type: ignore[misc]
                yield Session(at, [turn], str(conversation))


def _expanded(ids: Sequence[int], n_tokens: int) -> "array[int]":
    tokens = array("i")
    for block in ids:
        tokens += words(str(block), 512)
    return tokens[:n_tokens]
