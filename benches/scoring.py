"""What a multiple-choice task costs, by each way in which evaluations ask for log-probabilities.

Each question stands behind examples that all questions share, and has four endings; the likeliest one is the answer. The ways:

- `echo, nothing cached`: lm-evaluation-harness's `local-completions`, which sends each ending behind its whole context to
  `/v1/completions` with `echo` and `logprobs`, while all of each prompt is computed (`cache_prompt: false`).
- `echo`: the same requests as the harness sends them.
- `score`: one request to `/score` for each question.
- `llama-server`, where `--llama-server` names one: it refuses `echo`. The nearest that it has is a request to `/completion` for
  each token of each ending, which is drawn by its bias; what it has cached of a prompt it uses.

All choose the same endings, up to ties within rounding. The demo model reads the questions, and a random one of 28 million
parameters says what computing costs. Start it in the repository's root as `python -m benches.scoring`.
"""

# ruff: noqa: T201  (a bench answers on the standard output)

import argparse
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import weft
from benches.start import serving
from benches.streaming import BenchError, free_port, is_ready, post

PATIENCE_S = 300.0

FLAGS = ("-np", "4", "-c", "8192", "-t", "1", "--metrics")
"""One thread: two that wait for each other many times in a step measure a busy machine."""

N_CONCURRENT = 4
"""Requests at once, as the harness's `num_concurrent` says."""

NAMES = ("Lily", "Tom", "Mia", "Ben", "Anna", "Sam")
THINGS = ("ball", "doll", "car", "book", "boat", "kite", "cake", "hat", "bird", "box", "cup", "cat")
BETWEEN = (
    "It was a sunny day, and the birds were singing in the trees.",
    "Mom said that it was time to go to the park with the other kids.",
    "They ran and laughed until the sun went down behind the big hill.",
    "Dad made some soup, and they all sat down to eat it together.",
)


@dataclass(frozen=True)
class Question:
    """A context with its endings, in tokens, and which of them is right."""

    context: list[int]
    endings: list[list[int]]
    right: int


@dataclass(frozen=True)
class Measured:
    """What a way costs, and which endings it chose."""

    chosen: list[int]
    n_computed: int
    n_requests: int
    took_s: float


@dataclass
class Server:
    """Somebody who answers."""

    port: int
    n_requests: int = 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        self.n_requests += 1
        return post(self.port, path, body, PATIENCE_S)

    def n_computed(self) -> int:
        """Prompt tokens that it has computed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S) as answer:
            found = re.search(r"^llamacpp:prompt_tokens_total (\d+)", answer.read().decode(), re.MULTILINE)
        assert found is not None, "it has that metric"
        return int(found[1])


Way = Callable[[Server, Question], list[float]]
"""The log-probability of each ending."""


def echo(server: Server, question: Question, **more: object) -> list[float]:
    """As `LocalCompletionsAPI` of lm-evaluation-harness 0.4 asks and sums."""
    scores = []
    for ending in question.endings:
        body: dict[str, Any] = {"model": "", "prompt": [*question.context, *ending], "temperature": 0, "max_tokens": 1}
        answer = server.post("/v1/completions", body | {"logprobs": 1, "seed": 1234, "echo": True} | more)
        scores.append(math.fsum(answer["choices"][0]["logprobs"]["token_logprobs"][len(question.context) : -1]))
    return scores


def echo_uncached(server: Server, question: Question) -> list[float]:
    """The same with nothing cached."""
    return echo(server, question, cache_prompt=False)


def score(server: Server, question: Question) -> list[float]:
    """One request for all endings."""
    answer = server.post("/score", {"prompt": question.context, "continuations": question.endings, "tokens": False})
    return [one["logprob"] for one in answer["scores"]]


def forced(server: Server, question: Question) -> list[float]:
    """A request for each token, which its bias has drawn: what is told of it is how likely it was without."""
    scores = []
    for ending in question.endings:
        told = []
        for place, token in enumerate(ending):
            body = {"prompt": [*question.context, *ending[:place]], "n_predict": 1, "temperature": 0, "n_probs": 1}
            answer = server.post("/completion", body | {"logit_bias": [[token, 1e6]], "cache_prompt": True})
            [probability] = answer["completion_probabilities"]
            assert probability["id"] == token, "nothing else can be drawn"
            told.append(probability["logprob"])
        scores.append(math.fsum(told))
    return scores


@dataclass(frozen=True)
class Story:
    """A story that lacks its end, behind some that are told to theirs, with four endings."""

    text: str
    endings: list[str]
    right: int


def stories(n: int, n_shots: int) -> list[Story]:
    """Stories that end with what they were about; the same for the same numbers."""
    draw = random.Random(7)

    def story() -> tuple[str, str, str]:
        name, thing = draw.choice(NAMES), draw.choice(THINGS)
        begun = f"One day, {name} got a new {thing}. {name} loved the {thing} very much. {draw.choice(BETWEEN)} "
        return name, thing, f"{begun}{draw.choice(BETWEEN)} In the evening, {name} went home with the"

    shots = ""
    for _ in range(n_shots):
        name, thing, text = story()
        shots += f"{text} {thing}. {name} was very happy.\n\n"
    made = []
    for _ in range(n):
        name, thing, text = story()
        things = [thing, *draw.sample([other for other in THINGS if other != thing], 3)]
        draw.shuffle(things)
        made.append(Story(shots + text, [f"{one}. {name} was very happy." for one in things], things.index(thing)))
    return made


def questions(made: Sequence[Story], tokenize: Callable[[str], list[int]]) -> list[Question]:
    """The stories in tokens, as the harness makes them: an ending is what its text adds to the context's tokens."""
    asked = []
    for story in made:
        context = tokenize(story.text)
        whole = [tokenize(f"{story.text} {ending}") for ending in story.endings]
        assert all(tokens[: len(context)] == context for tokens in whole), "a word begins with its space"
        asked.append(Question(context, [tokens[len(context) :] for tokens in whole], story.right))
    return asked


TASK = """\
task: weft_stories
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{text}}"
doc_to_choice: "{{endings}}"
doc_to_target: right
metric_list: [{metric: acc}, {metric: acc_norm}]
"""


def write_task(folder: Path, made: Sequence[Story]) -> None:
    """The stories as a task for lm-evaluation-harness's `--include_path`."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "stories.jsonl"
    data.write_text("".join(json.dumps(asdict(story)) + "\n" for story in made), encoding="utf-8")
    (folder / "weft_stories.yaml").write_text(TASK % data.absolute(), encoding="utf-8")


def measure(server: Server, way: Way, asked: Sequence[Question]) -> Measured:
    """Asks all questions, some at once."""
    n_before, n_requests, started = server.n_computed(), server.n_requests, time.perf_counter()
    with ThreadPoolExecutor(N_CONCURRENT) as pool:
        scores = list(pool.map(lambda question: way(server, question), asked))
    took_s = time.perf_counter() - started
    chosen = [max(range(len(each)), key=each.__getitem__) for each in scores]
    return Measured(chosen, server.n_computed() - n_before, server.n_requests - n_requests, took_s)


@contextmanager
def llama_server(path: str, model: Path, flags: Sequence[str] = (*FLAGS, "--kv-unified")) -> Iterator[int]:
    """A server of llama.cpp's own; yields its port."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([path, "-m", str(model), "--port", str(port), *flags], stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not is_ready(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise BenchError(f"llama-server did not start:\n{log.read()[-2_000:].decode(errors='replace')}")
                time.sleep(0.002)
            yield port
        finally:
            server.terminate()
            server.wait(10)


def write_model(path: Path, n_ctx: int = 8192, *, n_layers: int = 8, n_heads: int = 8) -> None:
    """A random model with the demo model's vocabulary, by default of 28 million parameters: what it says means nothing."""
    n_head = 64
    n_embd = n_heads * n_head
    n_ff = n_embd * 11 // 4
    reader = gguf.GGUFReader(weft.DEMO_MODEL)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_heads)
    writer.add_rope_dimension_count(n_head)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            sub_type = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].contents())
    draw = np.random.default_rng(0)
    wide = {"attn_q": n_embd, "attn_k": n_embd, "attn_v": n_embd, "attn_output": n_embd, "ffn_gate": n_ff, "ffn_up": n_ff}
    shapes = {"token_embd.weight": (n_vocab, n_embd), "output.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    for layer in range(n_layers):
        shapes |= {f"blk.{layer}.{name}.weight": (n, n_embd) for name, n in wide.items()}
        shapes |= {f"blk.{layer}.ffn_down.weight": (n_embd, n_ff)}
        shapes |= {f"blk.{layer}.{name}.weight": (n_embd,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        weights = draw.standard_normal(shape, np.float32) / np.float32(math.sqrt(shape[1]))
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def report(name: str, model: Path, made: Sequence[Story], other: str | None) -> None:
    """Asks each way, every one of a server that knows nothing yet."""
    flags = [*FLAGS, "--kv-unified", "-m", str(model), "--override-kv", "llama.context_length=int:8192"]
    ways: dict[str, Way] = {"echo, nothing cached": echo_uncached, "echo": echo, "score": score}
    first: Measured | None = None
    asked: list[Question] = []

    def tokenize(server: Server, text: str) -> list[int]:
        tokens: list[int] = server.post("/tokenize", {"content": text, "add_special": True})["tokens"]
        return tokens

    def row(way: str, measured: Measured, first: Measured) -> None:
        n_right = sum(one == question.right for one, question in zip(measured.chosen, asked, strict=True))
        n_same = sum(a == b for a, b in zip(measured.chosen, first.chosen, strict=True))
        print(
            f"{name:<10} {way:<22} {measured.n_requests:>8} {measured.n_computed:>9} {measured.took_s:>8.2f}"
            f" {first.took_s / measured.took_s:>7.1f} {n_right:>4}/{len(asked)} {n_same:>4}/{len(asked)}",
            flush=True,
        )

    for way, ask in ways.items():
        with serving(flags) as (port, _):
            server = Server(port)
            asked = asked or questions(made, partial(tokenize, server))
            measured = measure(server, ask, asked)
        first = first or measured
        row(way, measured, first)
    if other is not None and first is not None:
        with llama_server(other, model) as port:
            row("llama-server", measure(Server(port), forced, asked), first)
    n = len(asked)
    n_context = sum(len(question.context) for question in asked) // n
    n_ending = sum(len(ending) for question in asked for ending in question.endings) / n / 4
    print(f"{'':<10} {n} contexts of {n_context} tokens with 4 endings of {n_ending:.1f}")


def main() -> int:
    """Measures both models."""
    parser = argparse.ArgumentParser(description="what a multiple-choice task costs")
    parser.add_argument("models", nargs="*", help="GGUF files (default: the demo model, and a random one of 28 M)")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--llama-server", help="llama.cpp's server, to be asked too")
    parser.add_argument("--write-task", type=Path, help="only writes the questions, as a task of lm-evaluation-harness")
    args = parser.parse_args()
    made = stories(args.questions, args.shots)
    if args.write_task is not None:
        write_task(args.write_task, made)
        return 0
    print(f"{'model':<10} {'way':<22} {'requests':>8} {'computed':>9} {'seconds':>8} {'faster':>7} {'right':>7} {'same':>7}")
    with tempfile.TemporaryDirectory() as folder:
        models = {Path(model).stem[:10]: Path(model) for model in args.models}
        if not models:
            random_model = Path(folder) / "random.gguf"
            write_model(random_model)
            models = {"demo": Path(weft.DEMO_MODEL), "random": random_model}
        for name, model in models.items():
            report(name, model, made, args.llama_server)
    return 0


if __name__ == "__main__":
    sys.exit(main())
