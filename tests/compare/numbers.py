"""Numbers that a llama-server has answered with: vectors, scores, and what models with adapters or pictures write.

    python -m tests.compare.numbers --llama-server /path/to/llama-server

writes them anew to numbers.json, which Weft's are held to without a llama-server. The models are small and always the same; but a
llama-server for other instructions rounds elsewhere.
"""

import argparse
import asyncio
import base64
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from tests.adapters import write_adapter
from tests.compare.servers import LlamaServer
from tests.engine.tiny_bidirectional import BIDIRECTIONAL, OTHERS, Bidirectional, Other, write_tiny_bidirectional
from tests.engine.tiny_encoders import ENCODERS, Encoder, write_tiny_encoder
from tests.engine.tiny_projectors import PROJECTORS, Projector, png_of, wav_of, write_tiny_projector
from weft.demo import DEMO_MODEL

__all__ = ["NUMBERS", "TOYS", "Question", "Toy", "ask", "kept"]

NUMBERS = Path(__file__).parent / "numbers.json"

TIMEOUT_S = 60

Rows = list[list[float]]

_MARKER = "<__media__>"
"""Stands for a picture or a sound in a question; a server may have another one."""

_SMALL = ("-np", "1", "-c", "128", "-b", "128", "-ub", "128")
_LARGER = ("-np", "1", "-c", "512")

_RANKERS = ("reranker", "judge")

_DECODED = ("t5encoder", "t5")
"""Of these llama-server computes the decoder, or tokens that see none after them: it never calls llama.cpp's `llama_encode`."""


class Question(NamedTuple):
    """What is asked of a server."""

    path: str
    body: Mapping[str, Any]


class Toy(NamedTuple):
    """A model, and what is asked of it."""

    write: Callable[[Path], Sequence[str]]
    """Writes it into a folder; returns what a server of it is started with."""
    questions: Sequence[Question]


def _encoder(kind: Encoder, folder: Path) -> Sequence[str]:
    path = folder / f"{kind}.gguf"
    write_tiny_encoder(kind, path)
    return "-m", str(path), *_SMALL, "--reranking" if kind in _RANKERS else "--embeddings"


def _bidirectional(kind: Bidirectional | Other, folder: Path) -> Sequence[str]:
    path = folder / f"{kind}.gguf"
    write_tiny_bidirectional(kind, path)
    return "-m", str(path), *_SMALL, "--embeddings"


def _adapters(folder: Path) -> Sequence[str]:
    files = [str(write_adapter(folder / f"adapter-{seed}.gguf", seed=seed)) for seed in (1, 2)]
    return "-m", DEMO_MODEL, *_LARGER, "--lora", ",".join(files), "--lora-init-without-apply"


def _projector(projector: Projector, folder: Path) -> Sequence[str]:
    model, mmproj = write_tiny_projector(projector, folder)
    return "-m", str(model), "--mmproj", str(mmproj), *_LARGER


def _vectors() -> Question:
    draw = random.Random(1)
    texts = [[draw.randrange(5, 50) for _ in range(n)] for n in (1, 2, 7, 31, 64, 100)]
    return Question("/embeddings", {"content": texts, "embd_normalize": -1})


def _ranked(query: str) -> Question:
    return Question("/rerank", {"query": query, "documents": ["c d", "e f g h", "a b c", "the fox hid the bread"]})


_GREEDY = {"n_predict": 8, "temperature": 0, "top_k": 1, "n_probs": 1, "ignore_eos": True, "cache_prompt": False}

_LETTERS = {"grammar": "root ::= [a-z]+"}
"""Of a piece that is no whole letter llama-server tells no probability."""


def _adapted(*scales: float) -> Question:
    lora = [{"id": number, "scale": scale} for number, scale in enumerate(scales)]
    return Question("/completion", {**_GREEDY, "prompt": "Once upon a time, there was a little", "lora": lora})


def _shown(file: bytes) -> Question:
    data = base64.b64encode(file).decode()
    prompt = {"prompt_string": f"Look: {_MARKER} What is it?", "multimodal_data": [data]}
    return Question("/completion", {**_GREEDY, **_LETTERS, "prompt": prompt})


_RANKINGS = [_ranked("a b c"), _ranked("who hid it")]
_SCALES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.5, -0.5))
_PICTURES = [png_of(3), png_of(2, width=64, height=48)]
_SOUNDS = [wav_of(1), wav_of(2)]

TOYS: Mapping[str, Toy] = {
    **{kind: Toy(partial(_encoder, kind), _RANKINGS if kind in _RANKERS else [_vectors()]) for kind in ENCODERS},
    **{kind: Toy(partial(_bidirectional, kind), [_vectors()]) for kind in (*BIDIRECTIONAL, *OTHERS) if kind not in _DECODED},
    "adapters": Toy(_adapters, [_adapted(*scales) for scales in _SCALES]),
    **{
        projector: Toy(
            partial(_projector, projector), [_shown(file) for file in (_SOUNDS if projector == "ultravox" else _PICTURES)]
        )
        for projector in PROJECTORS
    },
}
"""By their names."""


async def ask(client: httpx.AsyncClient, question: Question) -> Rows:
    """The numbers of an answer: vectors, the scores of all documents, or the ids of tokens and their log-probabilities."""
    body = dict(question.body)
    if isinstance(body.get("prompt"), dict):
        marker = (await client.get("/props")).json()["media_marker"]
        body["prompt"] = body["prompt"] | {"prompt_string": body["prompt"]["prompt_string"].replace(_MARKER, marker)}
    answer = (await client.post(question.path, json=body)).raise_for_status().json()
    match question.path:
        case "/embeddings":
            return [row for item in sorted(answer, key=lambda item: item["index"]) for row in item["embedding"]]
        case "/rerank":
            results = sorted(answer["results"], key=lambda result: result["index"])
            return [[result["relevance_score"] for result in results]]
        case _:
            drawn = answer["completion_probabilities"]
            return [[token["id"] for token in drawn], [token["logprob"] for token in drawn]]


def kept() -> dict[str, list[Rows]]:
    """By the names of the toys, the numbers of each question."""
    file: dict[str, list[Rows]] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return file


def _written(numbers: Mapping[str, Sequence[Rows]]) -> str:
    """The file: seven digits of each number, a row a line."""
    rounded = {
        name: [[[float(f"{number:.7g}") for number in row] for row in rows] for rows in questions]
        for name, questions in numbers.items()
    }
    text = json.dumps(rounded, separators=(",", ":"))
    return text.replace("],[", "],\n[").replace(']]],"', ']]],\n"') + "\n"


async def _asked(program: Path, folder: Path) -> dict[str, list[Rows]]:
    numbers = {}
    for name, toy in TOYS.items():
        with LlamaServer(program, folder / f"{name}.log", *toy.write(folder)) as server:
            await server.ready()
            async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) as client:
                numbers[name] = [await ask(client, question) for question in toy.questions]
        print(f"{name}: {len(toy.questions)} answers")
    return numbers


def main() -> int:
    """Asks, and writes what was answered."""
    parser = argparse.ArgumentParser(description=f"Writes what a llama-server computes to {NUMBERS.name}.")
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PROGRAM")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        numbers = asyncio.run(_asked(given.llama_server, Path(folder)))
    NUMBERS.write_text(_written(numbers), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
