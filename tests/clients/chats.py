"""What SillyTavern and Open WebUI send while somebody chats: traces as `trace.py` writes them, made by what their sources do.

A chat of many turns, in which an answer is asked for again, and a turn is changed in the middle and what came after it is gone.
SillyTavern writes its prompts itself, and may have a note stand four turns before the end; Open WebUI asks after each answer what
might be asked next, and at first for a title and tags, all with the chat in a prompt of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.clients.trace import words

__all__ = ["CHATS"]

N_TURNS = 14
AGAIN_AT = (4, 9)
"""Turns whose answer is asked for again."""
CHANGED_AT = 10
"""At this turn the one that came five before it is changed."""

N_RULES = 2_400
"""Characters of the system's message: a card of a figure, or what a model is there for."""

Turn = tuple[str, str]
"""Who speaks, and what is said."""


def _answer(asked: str) -> str:
    """What the actor says to this."""
    return f"You said: {asked.strip()[-200:]}"


@dataclass
class _Trace:
    requests: list[Any] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def at_once(self, path: str, *bodies: Any) -> None:  # noqa: ANN401 (any JSON)
        numbers = range(len(self.requests), len(self.requests) + len(bodies))
        self.requests += [{"path": path, "body": body} for body in bodies]
        self.order += [*numbers, *(-1 - number for number in numbers)]

    def told(self, client: str) -> dict[str, Any]:
        return {"client": client, "lines": [], "parts": [], "requests": self.requests, "order": self.order}


def _chats() -> Iterator[list[Turn]]:
    """What has been said each time that an answer is asked for."""
    said: list[Turn] = [("system", words(0, N_RULES))]
    for turn in range(N_TURNS):
        if turn == CHANGED_AT:
            del said[-10:]
            said.append(("user", f"No. {words(1_000 + turn, 90)}"))
        else:
            said.append(("user", words(100 + turn, 40 + 35 * (turn % 4))))
        yield list(said)
        if turn in AGAIN_AT:
            yield list(said)
        said.append(("assistant", _answer(said[-1][1])))


def _sillytavern(*, has_note: bool = False) -> dict[str, Any]:
    trace = _Trace()
    options = {"stream": True, "cache_prompt": True, "n_predict": 300, "temperature": 0.75, "top_p": 0.9, "top_k": 30, "seed": 42}
    for chat in _chats():
        # An author's note stands so many turns before the end, and moves with it.
        noted = [*chat[:-4], ("system", "Keep to what was said."), *chat[-4:]] if has_note and len(chat) > 5 else chat
        prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in noted)
        trace.at_once("/completion", {"prompt": f"{prompt}<|im_start|>assistant\n", "stop": ["<|im_end|>"], **options})
    return trace.told("SillyTavern")


def _open_webui() -> dict[str, Any]:
    trace = _Trace()
    for chat in _chats():
        asked = {"stream": True, "model": "weft", "messages": _messages(chat), "stream_options": {"include_usage": True}}
        trace.at_once("/v1/chat/completions", asked)
        said = [*chat, ("assistant", _answer(chat[-1][1]))]
        tasks = ["what might be asked next", *(["a title", "tags"] if len(said) == 3 else [])]
        prompts = [f"### Task\n{words(nth, 300)}\nTell {task}.\n### Chat\n{_history(said)}" for nth, task in enumerate(tasks)]
        bodies = [{"model": "weft", "messages": [{"role": "user", "content": prompt}], "stream": False} for prompt in prompts]
        trace.at_once("/v1/chat/completions", *bodies)
    return trace.told("Open WebUI")


def _messages(chat: Sequence[Turn]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in chat]


def _history(chat: Sequence[Turn]) -> str:
    """The last turns, as they stand in such a prompt."""
    return "\n".join(f"{role.upper()}: {text}" for role, text in chat[1:][-6:])


CHATS: dict[str, Callable[[], dict[str, Any]]] = {
    "SillyTavern": _sillytavern,
    "SillyTavern with a note": partial(_sillytavern, has_note=True),
    "Open WebUI": _open_webui,
}
"""The trace of each client, by its name."""
