"""What agents compute again: traces of their chats, played over HTTP, against what had to be computed.

Each trace is a chat of a system message with its tools and of many turns, as an agent sends it: all of it again, and one
message more. Then comes what agents do beside going on: a turn that is edited in the middle of the chat, one that is asked for
again, and four chats at once that share seven thousand tokens and end differently. The models are toys, one for each kind of
memory, and the demo model, whose tokenizer may cut answers otherwise than they were written.

What had to be computed is counted on token ids, without any cache: of each prompt what comes after the longest beginning that it
has in common with anything that was sent or written before, and its last token at least. Each line says how many tokens were
computed, how many had to be, and the first over the second. Start it in the repository's root as `python -m benches.turns`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.start import serving
from benches.streaming import post
from benches.traces import REPLAYED, TRACES, play_elsewhere
from benches.traces import play as play_trace
from tests.engine.tiny_models import KINDS, write_tiny_model
from weft.settings.volatile import PRESETS

FLAGS = ("-np", "4", "-c", "65536", "--kv-unified", "-t", "2", "--chat-template", "chatml")

CHECKPOINTS = ("--no-cache-idle-slots", "--ctx-checkpoints", "256", "--checkpoint-min-step", "0")

ELSEWHERE: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention": ((), ("--no-cache-idle-slots",), ("--no-cache-idle-slots", "-sps", "0.5")),
    "window": (
        (),
        ("--no-cache-idle-slots", "--swa-full"),
        CHECKPOINTS,
        (*CHECKPOINTS, "-ub", "1024"),
        (*CHECKPOINTS, "-ub", "2048"),
        (*CHECKPOINTS, "-ub", "2048", "-sps", "0.5"),
    ),
    "recurrent": (
        (),
        CHECKPOINTS,
        (*CHECKPOINTS, "-ub", "1024"),
        (*CHECKPOINTS, "-ub", "2048"),
        (*CHECKPOINTS, "-ub", "2048", "-sps", "0.5"),
    ),
}
ELSEWHERE["hybrid"] = ELSEWHERE["recurrent"]
ELSEWHERE["demo"] = ELSEWHERE["attention"]
"""What a llama-server is told besides: nothing, and what has it compute least of one trace or another. It keeps a state or a
window as many tokens before the end of a prompt as `-ub` says."""

ARCHITECTURES = {"attention": "llama", "window": "gemma3", "recurrent": "mamba", "hybrid": "lfm2", "demo": "llama"}
"""Their contexts are as long as the pool, whatever they were made for: nobody reads what they write."""

PATIENCE_S = 300.0
N_ANSWER = 40
AIM = 1.02

WORDS = ("the", "dog", "cat", "bird", "saw", "a", "red", "ball", "and", "ran", "to", "big", "house", "old", "friend", "happy")

ANSWER = "root ::= [a-z ]{30,60}"
"""Whatever a toy writes is text that comes back as it was."""

Message = dict[str, str]


@dataclass
class Counted:
    """Tokens of prompts."""

    computed: int = 0
    had_to: int = 0

    @property
    def ratio(self) -> float:
        """How much more was computed than had to be."""
        return self.computed / max(self.had_to, 1)


@dataclass
class Trace:
    """A server, and all that it was sent and has written."""

    port: int
    known: list[list[int]] = field(default_factory=list)
    counts: dict[str, Counted] = field(default_factory=dict)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        return post(self.port, path, body, PATIENCE_S)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The prompt of a chat, as the tokenizer makes it."""
        prompt = self.post("/apply-template", {"messages": messages})["prompt"]
        tokens: list[int] = self.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
        return tokens

    def had_to(self, tokens: Sequence[int]) -> int:
        """How many of the tokens are after all that was known."""
        return len(tokens) - min(max((_common(tokens, known) for known in self.known), default=0), len(tokens) - 1)

    def ask(self, phase: str, *chats: Sequence[Message]) -> list[str]:
        """Asks for answers to all these chats at once."""
        prompts = [self.tokens(chat) for chat in chats]
        counted = self.counts.setdefault(phase, Counted())
        for tokens in prompts:
            counted.had_to += self.had_to(tokens)
            # Of those that are asked for at once, the later ones wait for what they share.
            self.known.append(tokens)
        with ThreadPoolExecutor(len(chats)) as pool:
            answers = list(pool.map(self._answer, chats))
        for tokens, (_, written, n_computed) in zip(prompts, answers, strict=True):
            counted.computed += n_computed
            self.known.append([*tokens, *written])
        return [text for text, _, _ in answers]

    def _answer(self, messages: Sequence[Message]) -> tuple[str, list[int], int]:
        body = {"messages": messages, "max_tokens": N_ANSWER, "temperature": 1.0, "seed": len(messages), "grammar": ANSWER}
        told = self.post("/v1/chat/completions", body | {"verbose": True, "return_tokens": True})
        text = told["choices"][0]["message"]["content"]
        return text, told["__verbose"]["tokens"], told["timings"]["prompt_n"]


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    n = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        n += 1
    return n


def _text(draw: random.Random, n: int) -> str:
    """A text of about `n` characters."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < n:
        words.append(draw.choice(WORDS))
    return " ".join(words)


def play(trace: Trace, seed: int, n_turns: int) -> None:
    """One agent's chat, and what it does beside going on."""
    draw = random.Random(seed)
    tools = "".join(f'{{"name": "tool{n}", "description": "{_text(draw, 150)}"}}\n' for n in range(8))
    chat: list[Message] = [{"role": "system", "content": f"You are agent {seed}. {_text(draw, 600)}\nTools:\n{tools}"}]
    for turn in range(n_turns):
        chat.append({"role": "user", "content": f"Result {turn}: {_text(draw, draw.choice((80, 200, 500)))}"})
        [answer] = trace.ask("turns", chat)
        chat.append({"role": "assistant", "content": answer})
    edited = n_turns // 2 * 2
    chat = [*chat[: edited + 1], {"role": "user", "content": f"Instead: {_text(draw, 200)}"}]
    [answer] = trace.ask("an edited turn", chat)
    trace.ask("the same turn again", chat)
    chat.append({"role": "assistant", "content": answer})
    chat.append({"role": "user", "content": f"Read this: {_text(draw, 7000)}"})
    [answer] = trace.ask("a long turn", chat)
    chat.append({"role": "assistant", "content": answer})
    trace.ask("four at once", *([*chat, {"role": "user", "content": f"Part {n}: {_text(draw, 120)}"}] for n in range(4)))


def measure(name: str, flags: Sequence[str], n_chats: int, n_turns: int) -> bool:
    """Plays the traces against one model; whether what was computed is about what had to be."""
    with serving([*FLAGS, *flags]) as (port, _):
        trace = Trace(port)
        for seed in range(n_chats):
            play(trace, seed, n_turns)
    total = Counted()
    for phase, counted in trace.counts.items():
        total = Counted(total.computed + counted.computed, total.had_to + counted.had_to)
        print(f"{name:<10} {phase:<20} {counted.computed:>8} {counted.had_to:>8} {counted.ratio:>7.3f}")
    print(f"{name:<10} {'all':<20} {total.computed:>8} {total.had_to:>8} {total.ratio:>7.3f}", flush=True)
    return total.ratio <= AIM


def replay(name: str, flags: Sequence[str], toy: Sequence[str], other: Path | None) -> bool:
    """Plays the traces of clients to one model; whether what Weft computed is about what had to be."""
    is_met = True
    for client in TRACES:
        for rule in (None, *([client] if client in PRESETS else [])):
            told = play_trace(client, [*flags, *toy, *(["--volatile-prompt-lines", rule] if rule else [])])
            ratio = told.computed / told.had_to
            what = f"{client}{', its lines moved' if rule else ''}"
            print(
                f"{name:<10} {what:<32} {told.computed:>8} {told.had_to:>8} {ratio:>7.3f} {told.n_requests} requests", flush=True
            )
            is_met &= ratio <= AIM
            if other is not None:
                for own in ELSEWHERE[name]:
                    n = play_elsewhere(other, told.prompts, [*flags, *toy, *own])
                    by = " ".join(("llama-server", *own))
                    print(f"{name:<10} {what:<32} {n:>8} {told.had_to:>8} {n / told.had_to:>7.3f} {by}", flush=True)
    return is_met


def main() -> int:
    """Measures every kind of memory, or those that are named."""
    parser = argparse.ArgumentParser(description="what agents' chats compute, against what had to be computed")
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, "demo", []], help="kinds of memory (default: all)")
    parser.add_argument("--chats", type=int, default=2)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--traces", action="store_true", help="play what clients that exist have sent, and nothing else")
    parser.add_argument("--llama-server", type=Path, help="a llama-server that is given the same prompts")
    args = parser.parse_args()
    print(f"{'model':<10} {'what':<20} {'computed':>8} {'had to':>8} {'ratio':>7}")
    is_met = True
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds or [*KINDS, "demo"]:
            flags = ["--override-kv", f"{ARCHITECTURES[kind]}.context_length=int:65536"]
            if kind != "demo":
                path = Path(folder) / f"{kind}.gguf"
                # Of its tokens each is a byte, so that the actor can say anything.
                write_tiny_model(kind, path, has_end=not args.traces)
                flags += ["-m", str(path)]
            if args.traces:
                is_met &= replay(kind, REPLAYED, flags, args.llama_server)
            else:
                is_met &= measure(kind, flags, args.chats, args.turns)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
