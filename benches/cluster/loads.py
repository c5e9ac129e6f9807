"""What is asked of a cluster: chats behind shared system prompts, fan-outs, trees of agents, and published traces.

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
  as large as the cluster is of 96 replicas, at the times of the trace. Its synthetic trace (ibid.) has 17 minutes of 3,993
  questions about long documents, and chats, of public datasets: for 64 replicas, without ten prompts that no context holds.
- Bursts: the times between two beginnings are gamma-distributed, as BurstGPT (Wang et al. 2024,
  <https://arxiv.org/abs/2401.17644>) models them; that their standard deviation is twice their mean is our choice.
- Agents: an agent has a long prompt of tools, asks one of them after another, and begins others of its kind that know what it
  knows. Its numbers are our own: we know of none that were published.
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

__all__ = ["FULL", "LONGEST", "Chats", "FanOuts", "Session", "Tokens", "Turn", "agents", "chats", "fan_outs", "mooncake", "words"]

FULL = 96
"""Replicas that the whole of Mooncake's trace is sent to."""

LONGEST = 131_072
"""Tokens of the longest prompt of a trace that is sent; longer ones are left out."""

MOST_KNOWN = 20_000
"""Tokens after which an agent has no further turn: it would not fit soon."""

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
    begins: Sequence["Session"] = ()
    """Others that begin at its end, at times that count from there."""


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


def _times(draw: random.Random, per_s: float, *, in_bursts: bool) -> Iterator[float]:
    at = 0.0
    while True:
        at += draw.gammavariate(0.25, 4 / per_s) if in_bursts else draw.expovariate(per_s)
        yield at


@dataclass(frozen=True)
class Chats:
    """What chats are like."""

    exponent: float = 0.8
    """Of Zipf's law."""
    n_system: tuple[int, int] = (1_000, 3_000)
    """Tokens of a system prompt, at least and at most."""
    n_asked: float = 69.5
    """Tokens of a question, on average."""
    n_answered: float = 214.5
    """Those of an answer."""
    n_turns: float = 2.0
    """Turns of a chat, on average."""
    in_bursts: bool = False


LMSYS = Chats()


def chats(
    n_replicas: int, seconds: float, *, per_s: float, n_system_prompts: int, seed: int = 0, like: Chats = LMSYS
) -> Iterator[Session]:
    """Chats that begin so often in a second for each replica."""
    draw = random.Random(f"chats {seed}")
    system_prompt = _zipf(n_system_prompts, like.exponent)
    lengths = [random.Random(f"system {nth}").randint(*like.n_system) for nth in range(n_system_prompts)]
    times = _times(draw, n_replicas * per_s, in_bursts=like.in_bursts)
    for nth in range(round(n_replicas * seconds * per_s)):
        at = next(times)
        which = system_prompt(draw)
        text = words(f"system {which}", lengths[which])
        turns: list[Turn] = []
        is_last = False
        while not is_last:
            asked = words(f"chat {seed} {nth} asked {len(turns)}", 1 + round(draw.expovariate(1 / like.n_asked)))
            answer = words(f"chat {seed} {nth} answered {len(turns)}", 1 + round(draw.expovariate(1 / like.n_answered)))
            text = text + asked
            turns.append(Turn(lambda text=text: text, answer, len(answer), draw.expovariate(1 / 30)))  # type: ignore[misc]
            text = text + answer
            is_last = draw.random() < 1 / like.n_turns
        yield Session(at, turns, f"chat {nth}")


@dataclass(frozen=True)
class FanOuts:
    """What fan-outs are like."""

    n_shared: tuple[int, int] = (500, 1_500)
    """Tokens of the prompt that branches share: at least, and on average beside these."""
    n_branches: int = 40
    n_after: int = 8
    """Requests that go on from one branch."""
    in_bursts: bool = False


SELF_CONSISTENCY = FanOuts()


def fan_outs(
    n_replicas: int, seconds: float, *, per_s: float, seed: int = 0, like: FanOuts = SELF_CONSISTENCY
) -> Iterator[Session]:
    """Trees that begin so often in a second for each replica."""
    draw = random.Random(f"fan-outs {seed}")
    times = _times(draw, n_replicas * per_s, in_bursts=like.in_bursts)
    for nth in range(round(n_replicas * seconds * per_s)):
        at = next(times)
        least, more = like.n_shared
        stem = words(f"tree {seed} {nth}", least + round(draw.expovariate(1 / more)))
        for branch in range(like.n_branches):
            text = stem + words(f"tree {seed} {nth} {branch}", 20)
            answer = words(f"tree {seed} {nth} answered {branch}", 100)
            turns = [Turn(lambda text=text: text, answer, 100, 0.0)]  # type: ignore[misc]
            if branch == 0:
                text = text + answer
                turns += [_leaf(text, seed, nth, leaf) for leaf in range(like.n_after)]
            yield Session(at, turns, f"tree {nth}")


def agents(n_replicas: int, seconds: float, *, per_s: float, seed: int = 0) -> Iterator[Session]:
    """Trees of agents that begin so often in a second for each replica, in bursts.

    There are two sets of tools for each replica, of 3,000 to 12,000 tokens, used by Zipf's law with exponent 1. An agent has one
    of them, a task of 300 tokens on average, and eight turns, in each of which it writes 120 tokens and reads 500 of a tool's,
    five seconds later. After every fifth turn it begins two to four others, which know all that it knows, and have three turns.
    """
    draw = random.Random(f"agents {seed}")
    times = _times(draw, n_replicas * per_s, in_bursts=True)
    n_sets = 2 * n_replicas
    which_set = _zipf(n_sets, 1.0)
    lengths = [random.Random(f"tools {nth}").randint(3_000, 12_000) for nth in range(n_sets)]
    for nth in range(round(n_replicas * seconds * per_s)):
        which = which_set(draw)
        tools = words(f"tools {which}", lengths[which])
        yield _agent(draw, f"agent {seed} {nth}", next(times), tools, n_turns=8, begins=0.2)


def _agent(draw: random.Random, name: str, at_s: float, known: "array[int]", *, n_turns: int, begins: float) -> Session:
    text = known + words(f"{name} task", 1 + round(draw.expovariate(1 / 300)))
    turns: list[Turn] = []
    is_last = False
    while not is_last:
        answer = words(f"{name} writes {len(turns)}", 1 + round(draw.expovariate(1 / 120)))
        others: list[Session] = []
        if draw.random() < begins:
            others = [
                _agent(draw, f"{name} {len(turns)} {other}", 1.0, text + answer, n_turns=3, begins=0.0)
                for other in range(draw.randint(2, 4))
            ]
        turns.append(Turn(lambda text=text: text, answer, len(answer), draw.expovariate(1 / 5), others))  # type: ignore[misc]
        text = text + answer + words(f"{name} reads {len(turns)}", 1 + round(draw.expovariate(1 / 500)))
        is_last = draw.random() < 1 / n_turns or len(text) > MOST_KNOWN
    return Session(at_s, turns, name)


def _leaf(text: "array[int]", seed: int, nth: int, leaf: int) -> Turn:
    longer = text + words(f"tree {seed} {nth} leaf {leaf}", 20)
    return Turn(lambda: longer, words("", 0), 100, 1.0)


def mooncake(path: Path, n_replicas: int, seconds: float, *, part: int = 0, full: int = FULL) -> Iterator[Session]:
    """The part of a trace in Mooncake's format that so many replicas are sent. What is answered is not known, and not shared.

    Args:
        path: The trace.
        n_replicas: How many get it.
        seconds: So much of it from its beginning.
        part: Which of the parts, from 0 on, that have no conversation in common; -1 is the last one.
        full: Replicas that all of it is sent to.
    """
    first = n_replicas * part if part >= 0 else full + n_replicas * part
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            ids, n, at = row["hash_ids"], row["input_length"], row["timestamp"] / 1_000
            if at > seconds:
                return
            # All begin with the same block: what tells conversations apart is the second one.
            conversation = ids[min(1, len(ids) - 1)]
            if n > LONGEST:
                continue
            if first <= random.Random(conversation).random() * full < first + n_replicas:
                turn = Turn(lambda ids=ids, n=n: _expanded(ids, n), words("", 0), row["output_length"], 0.0)  # type: ignore[misc]
                yield Session(at, [turn], str(conversation))


def _expanded(ids: Sequence[int], n_tokens: int) -> "array[int]":
    tokens = array("i")
    for block in ids:
        tokens += words(str(block), 512)
    return tokens[:n_tokens]
