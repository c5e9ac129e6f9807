"""A server whose model says what a script has it say: `python -m tests.scripted SCRIPT --port 8080`.

A script is JSON: `{"chat_template": "…", "answers": [{"when": "regular expression", "say": "text"}]}`. Of the answers whose
`when` is found in the prompt, as a text, the first is said, three characters to a token; without a `when` it fits always.
"""

import argparse
import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from granian.constants import Interfaces
from granian.server.embed import Server

import weft
from tests.server.scripted import ScriptedEngine, ScriptedStream, finished, token
from weft.server import create_app
from weft.settings import Settings

N_CHARACTERS = 3
"""Of one token."""


class Answer(msgspec.Struct):
    """What is said, and to which prompts."""

    say: str
    when: str = ""
    ends: str = "end"
    """Why it ends, as the engine tells it: `stop` is a stop string that follows it."""


class Script(msgspec.Struct):
    """How a model behaves."""

    answers: list[Answer]
    chat_template: str | None = None


class AnsweringEngine(ScriptedEngine):
    """Answers every prompt with what its script has for it, every branch with the same."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.model.chat_template = script.chat_template
        self.limits = SimpleNamespace(max_queue=64, n_slots=4, n_ctx=1 << 20, n_ctx_slot=1 << 18, forks_anywhere=True)
        self.prompts: list[str] = []
        """Every prompt, as a text."""

    def stream(self, request: weft.Request) -> ScriptedStream:
        """A stream of the answer, cut where `max_tokens` says so."""
        self.requests.append(request)
        self.prompts.append(_text(request.prompt))
        fitting = (answer for answer in self.script.answers if re.search(answer.when, self.prompts[-1], re.DOTALL))
        said, ends = next(((answer.say, answer.ends) for answer in fitting), ("", "end"))
        pieces = [said[start : start + N_CHARACTERS] for start in range(0, len(said), N_CHARACTERS)]
        kept = pieces[: request.max_tokens]
        reason = ends if len(kept) == len(pieces) else "length"
        return ScriptedStream(list(_steps(kept, request.n, reason)), request_id=len(self.requests))


def _steps(pieces: Sequence[str], n: int, reason: str) -> Iterator[Sequence[Any]]:
    for nth, piece in enumerate(pieces, 1):
        yield [token(index, piece, nth) for index in range(n)]
    yield [finished(index, reason=reason, n_predicted=len(pieces)) for index in range(n)]
    yield []


def _text(prompt: Any) -> str:  # noqa: ANN401 (any prompt)
    if isinstance(prompt, str):
        return prompt
    return "".join(chr(piece) if isinstance(piece, int) else str(piece) for piece in prompt)


async def serve(script: Script, port: int) -> None:
    """Serves until it is stopped."""
    engine = AnsweringEngine(script)
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(alias="scripted"))
    await Server(app, address="127.0.0.1", port=port, interface=Interfaces.ASGI).serve()


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    asyncio.run(serve(msgspec.json.decode(given.script.read_bytes(), type=Script), given.port))


if __name__ == "__main__":
    main()
