"""An engine for tests of the page: its tokens are words, its branches tell of animals, and a test may hold them.

`python -m tests.page.engine --documents FILE` serves the page with it, so that a page can be tried without a model.
"""

import argparse
import asyncio
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from granian.constants import Interfaces
from granian.server.embed import Server

import weft
from tests.server.scripted import ENDS, ScriptedEngine
from weft.server import create_app
from weft.settings import Settings

__all__ = ["ANIMALS", "WordEngine", "story"]

ANIMALS = ("fox", "owl", "hare", "mole", "crow", "toad", "wolf", "bear")

N_SENTENCES = 44
"""Length of a story that no limit of the request ends."""

LIKELY = (" red", " old", " small", " grey", " wise", " young", " tired", " quick", " shy")
"""Alternatives of every word, unless a test has others."""

_WORDS: list[str] = []
"""Words by their tokens; surrogates are bytes of incomplete characters, as of `surrogateescape`. All engines have the same, since
the documents of a server that was started again have its tokens."""

_IDS: dict[str, int] = {}
"""Tokens of words."""

Story = Callable[[str, int], str]
"""Returns the text of a branch by its prompt and index."""


def story(prompt: str, index: int) -> str:
    """Returns sentences of nine words about an animal of the branch's own."""
    animal = ANIMALS[index % len(ANIMALS)]
    return "".join(f" The {animal} found door {nth} and went through it." for nth in range(1, N_SENTENCES + 1))


class WordEngine(ScriptedEngine):
    """Writes stories of which a token is a word with the space before it. Answers every request."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__()
        self.step_s = step_s
        """Time between two words of a branch, in seconds."""
        self.prompts: list[str] = []
        """Prompts of all requests."""
        self.n_allowed: int | None = None
        """Words that each branch may write; None is no limit."""
        self.broken: Exception | None = None
        """Error with which all streams fail."""
        self.likely: Sequence[str] = LIKELY
        """Alternatives of every word."""
        self._answers: list[tuple[str, Story]] = []
        self._computed: list[list[int]] = []
        self._wakeup = asyncio.Event()
        self.model = SimpleNamespace(
            **vars(self.model)
            | {
                "name": "Scripted stories",
                "n_vocab": 1 << 20,
                "n_params": 1,
                "size_bytes": 1,
                "adds_bos": False,
                "tokenize": self.tokenize,
                "tokenize_on": self.tokenize,
                "metadata": dict,
            }
        )
        self.limits = SimpleNamespace(max_queue=64, n_slots=8, n_ctx=1 << 17, n_ctx_slot=1 << 16, forks_anywhere=True)

    def reset(self) -> None:
        """Forgets what a test has set, and all requests."""
        self.step_s = 0.0
        self.broken = None
        self.likely = LIKELY
        self._answers.clear()
        self.requests.clear()
        self.prompts.clear()
        self.release()

    def say(self, text: str | Story, when: str = "") -> None:
        """Lets branches write a text if their prompt contains the regular expression `when`; the last such text counts."""
        self._answers.insert(0, (when, text if callable(text) else lambda *_: text))

    def hold(self, n_words: int = 0) -> None:
        """Lets each branch write this many words, and then wait."""
        self.n_allowed = n_words
        self.wake()

    def release(self) -> None:
        """Lets all branches write to their ends."""
        self.n_allowed = None
        self.wake()

    def fail(self, error: Exception) -> None:
        """Ends all streams with an error."""
        self.broken = error
        self.wake()

    async def close(self) -> None:
        """Ends all streams with an error, as an engine that stops."""
        await super().close()
        self.fail(weft.EngineStoppedError())

    def wake(self) -> None:
        """Lets waiting streams check again whether they may write."""
        wakeup, self._wakeup = self._wakeup, asyncio.Event()
        wakeup.set()

    async def woken(self) -> None:
        """Waits for the next call of `wake`."""
        await self._wakeup.wait()

    def tokenize(self, text: str | bytes, **_: bool) -> list[int]:
        text = text if isinstance(text, str) else text.decode()
        return [self._id(word) for word in re.findall(r"\n|[^\S\n]*\S+|[^\S\n]+", text)]

    def detokenize(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self._token_bytes, tokens)).decode(errors="replace")

    def _token_bytes(self, token: int) -> bytes:
        return _WORDS[token].encode(errors="surrogateescape")

    def _pieces_json(self, tokens: Sequence[int]) -> bytes:
        return b",".join(msgspec.json.encode({"id": token, "piece": _WORDS[token]}) for token in tokens)

    def _id(self, word: str) -> int:
        if word not in _IDS:
            _IDS[word] = len(_WORDS)
            _WORDS.append(word)
        return _IDS[word]

    def n_cached(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens at the beginning of a prompt were computed before."""

        def n_common(computed: Sequence[int]) -> int:
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(computed, tokens, strict=False)))

        return max(map(n_common, self._computed), default=0)

    def remember(self, tokens: Sequence[int]) -> None:
        """Counts tokens as computed from now on."""
        self._computed.append(list(tokens))

    def text_of(self, prompt: str, index: int) -> str:
        """Returns what a branch writes."""
        return next((say for when, say in self._answers if re.search(when, prompt, re.DOTALL)), story)(prompt, index)

    def stream(self, request: weft.Request) -> Any:  # noqa: ANN401 (stands for a stream)
        self._check_length(request)
        self.requests.append(request)
        self.prompts.append(self.detokenize(cast("Sequence[int]", request.prompt)))
        return WordStream(self, request, request_id=len(self.requests))


class WordStream:
    """Writes the words of its branches side by side, one word of each per step."""

    def __init__(self, engine: WordEngine, request: weft.Request, request_id: int) -> None:
        self._engine = engine
        self._prompt = list(cast("Sequence[int]", request.prompt))
        self._limits = [_option(request, index, "max_tokens") for index in range(request.n)]
        self._n_likely = [_option(request, index, "logprobs") or 0 for index in range(request.n)]
        self._words = [engine.tokenize(engine.text_of(engine.prompts[-1], index)) for index in range(request.n)]
        self._n_written = [0] * request.n
        self._running = set(range(request.n))
        self._cancelled: set[int] = set()
        self._n_computed = max(len(self._prompt) - engine.n_cached(self._prompt), 1)
        self.request_id = request_id
        self.n_prompt = len(self._prompt)
        self.seed = request.seed or 1
        self.explanation: weft.CacheExplanation | None = None
        engine.remember(self._prompt)

    def cancel(self, index: int) -> None:
        self._cancelled.add(index)
        self._engine.wake()

    def close(self) -> None:
        self._cancelled |= self._running
        self._engine.wake()

    async def readable(self) -> None:
        while self._running and not self._ready():
            await self._engine.woken()

    async def next_batch(self, *, compact: bool) -> Sequence[weft.Token | weft.Finished]:
        assert compact
        # Other tasks run between two steps, as they do while a model computes.
        await asyncio.sleep(self._engine.step_s)
        await self.readable()
        if self._engine.broken is not None:
            raise self._engine.broken
        return [self._step(index) for index in self._ready()]

    def _ready(self) -> list[int]:
        """Returns the branches that can write or end now."""
        if self._engine.broken is not None:
            return sorted(self._running)
        return [index for index in sorted(self._running) if self._reason(index) or not self._is_held(index)]

    def _is_held(self, index: int) -> bool:
        return self._engine.n_allowed is not None and self._n_written[index] >= self._engine.n_allowed

    def _reason(self, index: int) -> str:
        """Returns why a branch ends now; empty if it does not."""
        limit = self._limits[index]
        if index in self._cancelled:
            return "cancelled"
        if limit is not None and self._n_written[index] >= limit:
            return "length"
        return "end" if self._n_written[index] == len(self._words[index]) else ""

    def _step(self, index: int) -> weft.Token | weft.Finished:
        if reason := self._reason(index):
            return self._finish(index, reason)
        word = self._words[index][self._n_written[index]]
        self._n_written[index] += 1
        logprobs: Any = None
        if n_likely := self._n_likely[index]:
            others = (self._engine.tokenize(each)[0] for each in self._engine.likely)
            logprobs = WordLogprobs([word, *(each for each in others if each != word)][:n_likely])
        text = self._engine.detokenize([word])
        return weft.Token(index, word, text, index, self._n_written[index], logprobs)

    def _finish(self, index: int, reason: str) -> weft.Finished:
        self._running.remove(index)
        n_written = self._n_written[index]
        self._engine.remember([*self._prompt, *self._words[index][:n_written]])
        # The prompt is computed once, and the branch that ends first reports it.
        n_computed, self._n_computed = self._n_computed, 0
        usage = weft.Usage(
            n_computed=n_computed,
            n_cached=self.n_prompt - n_computed,
            n_predicted=n_written,
            n_context=self.n_prompt + n_written,
            prompt_ms=1.0,
            predicted_ms=1.0,
        )
        finish_reason, stop_reason, is_full = ENDS[reason]
        return weft.Finished(index, cast("Any", finish_reason), usage, index, stop_reason, "", is_full)


class WordLogprobs:
    """Log-probabilities of a word, which is the likeliest, and of others: 60 %, 22 %, 8 %, …"""

    def __init__(self, likely: Sequence[int]) -> None:
        self._pairs = [(word, -0.51 - nth) for nth, word in enumerate(likely)]

    def pairs(self) -> list[tuple[int, float]]:
        return [self._pairs[0], *self._pairs]

    def __len__(self) -> int:
        return len(self._pairs)


def _option(request: weft.Request, index: int, name: str) -> Any:  # noqa: ANN401 (values of any option)
    own: Any = request.branches[index] if request.branches else {}
    return own.get(name, getattr(request, name))


async def serve(port: int, documents: Path, step_s: float) -> None:
    """Serves until it is stopped."""
    engine = WordEngine(step_s)
    engine.loaded.set()
    app = create_app(engine.as_engine(), Settings(alias="scripted", documents_path=str(documents)))
    await Server(app, address="127.0.0.1", port=port, interface=Interfaces.ASGI).serve()


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.03, help="seconds between two words of a branch")
    given = parser.parse_args()
    asyncio.run(serve(given.port, given.documents, given.step_s))


if __name__ == "__main__":
    main()
