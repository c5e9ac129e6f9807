"""A server whose model plays a part: it says what a skilled model would, so that clients can be tried whole.

It is Weft itself with the demo model. What a chat is answered with is made up from its prompt, and a grammar holds the model to
that text, letter by letter; everything else, from tokens to streams, is as it always is. Prompts that are no chats are continued
by the model alone.

    python -m tests.clients.actor --port 8080
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec

import weft
from tests.engine.tiny_models import write_tiny_model
from tests.engine.tiny_projectors import Size, write_projector
from weft.cli.main import main

__all__ = ["ActorEngine", "flags", "line"]

N_EMBD = 192
"""Numbers of a vector of the demo model."""

N_CTX = 65_536
"""Tokens of the context. The demo model was trained on fewer, but need not understand what it sees."""

N_CTX_TOY = 1 << 20
"""The same of the toy, whose tokens are bytes."""

TEMPLATE = Path(__file__).with_name("hermes.jinja")

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_CALL = re.compile(r"(\w+)\((\{.*?\})\)")
_TWO_PLACES = re.compile(r"\bin ([A-Z]\w*) and in ([A-Z]\w*)")
_STEP = re.compile(r"^Step \d+: (.*)$", re.MULTILINE)

Json = Any


def flags(folder: Path | None, *, is_toy: bool = False) -> list[str]:
    """What the server is started with, besides what is given.

    `folder` is for a projector, which sees nothing, of the demo model; or for a toy in its place, which reads long prompts fast.
    """
    told = [*("--chat-template-file", str(TEMPLATE)), "--kv-unified"]
    if folder is not None and is_toy:
        toy = folder / "toy.gguf"
        write_tiny_model("recurrent", toy, has_end=False)
        return [*told, "-m", str(toy), "-c", str(N_CTX_TOY), "--override-kv", f"mamba.context_length=int:{N_CTX_TOY}"]
    told += ["-c", str(N_CTX), "--override-kv", f"llama.context_length=int:{N_CTX}"]
    if folder is not None:
        projector = folder / "mmproj.gguf"
        write_projector(projector, "llava", size=Size(n_text=N_EMBD))
        told += ["--mmproj", str(projector)]
    return told


class Scene(msgspec.Struct):
    """What is there when the model is to speak."""

    prompt: str
    """All that was said before."""
    role: str
    """Who spoke last."""
    text: str
    """What was said last."""
    asked: str
    """What the user said last."""
    tools: list[Json]
    """The functions that may be called."""
    n_answers: int
    """How often the model has spoken since."""
    schema: str | None
    """What the answer must be."""
    must_call: bool
    """Whether it must be a call."""


def line(prompt: str, schema: str | None, grammar: str | None) -> str | None:
    """What is to be said after a prompt, within what the request holds it to; None where it is no chat."""
    before, mark, opening = prompt.rpartition("<|im_start|>assistant\n")
    if not mark:
        return None
    turns: list[tuple[str, str]] = _TURN.findall(before)
    role, text = turns[-1] if turns else ("user", "")
    asked_at = max((nth for nth, (by, _) in enumerate(turns) if by == "user"), default=0)
    asked = turns[asked_at][1] if turns else ""
    n_answers = sum(by == "assistant" for by, _ in turns[asked_at:])
    tools = [tool["function"] for tool in _tools(before)]
    # A grammar that has some of the tools in it, and nothing else, is that of the tools which may be chosen.
    must_call = grammar is not None and bool(tools)
    if must_call:
        tools = [tool for tool in tools if tool["name"] in (grammar or "")] or tools
    scene = Scene(before, role, text, asked, tools, n_answers, schema, must_call)
    thinks = not opening.endswith("</think>\n\n") and "think" in asked.lower().split()
    return ("<think>\nFirst I think it over.\n</think>\n\n" if thinks else "") + _said(scene)


def _said(scene: Scene) -> str:
    asked = scene.asked
    if scene.tools and (steps := _STEP.findall(asked.replace('\\"', '"'))):
        told = "\n".join(_spelt(steps[scene.n_answers], scene.tools)) if scene.n_answers < len(steps) else ""
        return told or f"All {len(steps)} steps are done."
    if scene.role == "tool" and not scene.must_call:
        last = [tool for tool in scene.tools if tool["name"].startswith("final_result")]
        if last:
            return _call(last[0]["name"], _value(last[0]["parameters"], _Hints(asked)))
        if scene.schema is not None:
            return _written(scene.schema, asked)
        return f"The tool said: {scene.text.removeprefix('<tool_response>').removesuffix('</tool_response>').strip()}"
    if calls := _calls(scene):
        return "\n".join(calls)
    found = _schema_in(scene.prompt)
    if scene.schema is not None:
        is_any = json.loads(scene.schema).get("properties") is None
        return _written(json.dumps(found) if is_any and found is not None else scene.schema, asked)
    if found is not None:
        return f"```json\n{_written(json.dumps(found), asked)}\n```"
    return _worked(scene)


def _worked(scene: Scene) -> str:
    """What a program that works by texts reads; where there is none, what was said."""
    if "SEARCH/REPLACE" in scene.prompt:
        return "hello.py\n```python\n<<<<<<< SEARCH\nprint('hello')\n=======\nprint('goodbye')\n>>>>>>> REPLACE\n```\n"
    if "file listing" in scene.prompt:
        return "hello.py\n```\nprint('goodbye')\n```\n"
    if named := re.search(r"Run this: `(.*)`", scene.asked):
        return f"I run it.\n\n```mswea_bash_command\n{named[1]}\n```"
    return f"You said: {scene.asked.strip()[-200:]}"


def _tools(prompt: str) -> Iterator[Json]:
    _, _, rest = prompt.partition("<tools>\n")
    if rest:
        for told in rest.partition("</tools>")[0].splitlines():
            yield json.loads(told)


def _calls(scene: Scene) -> list[str]:
    """The calls that a question leads to: those that it spells, else one of the tool that it has most words in common with."""
    by_name = {tool["name"]: tool for tool in scene.tools}
    # Some programs quote what they are asked.
    if spelt := _spelt(scene.asked.replace('\\"', '"'), scene.tools):
        return spelt
    words = _words(scene.asked)
    best = max(by_name, key=lambda name: len(words & _words(name)), default=None)
    if best is None:
        return []
    is_meant = words & (_words(best) | {"tool", "tools", "call"}) or best.startswith("final_result")
    if not is_meant and not scene.must_call:
        return []
    # A question about two places leads to two parallel calls.
    two = _TWO_PLACES.search(scene.asked)
    questions = [f"in {place}" for place in two.groups()] if two else [scene.asked]
    return [_call(best, _value(by_name[best].get("parameters") or {}, _Hints(question))) for question in questions]


def _spelt(text: str, tools: list[Json]) -> list[str]:
    """The calls of these tools that a text spells."""
    names = {tool["name"] for tool in tools}
    return [_call(name, json.loads(given)) for name, given in _CALL.findall(text) if name in names]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", text.lower().replace("_", " ")))


def _call(name: str, arguments: Json) -> str:
    told = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{told}\n</tool_call>"


def _schema_in(prompt: str) -> Json | None:
    """The JSON schema that stands in a prompt, where its writer asks for JSON in words."""
    for place in re.finditer(r"\{\s*\"", prompt):
        try:
            told, _ = json.JSONDecoder().raw_decode(prompt, place.start())
        except ValueError:
            continue
        if "properties" in told and "<tools>" not in prompt:
            return told
    if named := re.search(r"JSON with '(\w+)' and\s+'(\w+)' keys", prompt):
        return {"properties": {name: {"type": "string"} for name in named.groups()}}
    return None


class _Hints:
    """Numbers and strings that a question has, to be told again."""

    def __init__(self, asked: str) -> None:
        self.asked = asked
        self._numbers = iter(re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", asked))
        place = re.search(r"\bin ([A-Z]\w*(?: [A-Z]\w*)*)", asked)
        self._texts = iter([*re.findall(r"[\"']([^\"']+)[\"']", asked), *([place[1]] if place else [])])

    def number(self) -> float:
        return float(next(self._numbers, 1))

    def text(self) -> str:
        return next(self._texts, "some words")


def _written(schema: str, asked: str) -> str:
    return json.dumps(_value(json.loads(schema), _Hints(asked)), ensure_ascii=False)


def _value(schema: Json, hints: _Hints, root: Json = None) -> Json:
    """A value that a schema describes."""
    root = schema if root is None else root
    match schema:
        case {"$ref": str(reference)}:
            found = root
            for name in reference.removeprefix("#/").split("/"):
                found = found[name]
            return _value(found, hints, root)
        case {"const": only}:
            return only
        case {"enum": choices}:
            return next((one for one in choices if str(one).lower() in hints.asked.lower()), choices[0])
        case {"anyOf": several} | {"oneOf": several} | {"allOf": several}:
            return _value(next(one for one in several if one.get("type") != "null"), hints, root)
        case {"type": [kind, *_]} | {"type": str(kind)}:
            return _of_type(kind, schema, hints, root)
        case {"properties": _}:
            return _of_type("object", schema, hints, root)
    return hints.text()


def _of_type(kind: str, schema: Json, hints: _Hints, root: Json) -> Json:
    match kind:
        case "object":
            return {name: _value(one, hints, root) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [_value(schema.get("items", {}), hints, root) for _ in range(max(schema.get("minItems", 1), 1))]
        case "integer" | "number":
            number = max(hints.number(), schema.get("minimum", -(2**31)))
            return int(number) if kind == "integer" else number
        case "string":
            return hints.text()[: schema.get("maxLength", 100)]
    return {"boolean": True}.get(kind)


def _grammar(text: str) -> str:
    return "root ::= " + json.dumps(text, ensure_ascii=False)


_UNHELD = {"json_schema": None, "grammar_lazy": False, "grammar_triggers": (), "reasoning": None}
"""What a request may be held to besides, each at none."""


def _with_answer(engine: weft.Engine, request: weft.Request, prompts: Path | None) -> weft.Request:
    """Returns the request with a grammar that only the actor's answer matches, or unchanged if it is no chat.

    Appends the prompt and the answer to `prompts`, one line of JSON each.
    """
    if isinstance(request.prompt, str):
        return request
    tokens = cast("list[int]", request.prompt)
    text = engine.detokenize(tokens)
    # A lazy grammar does not constrain an answer that has none of its triggers.
    is_held = not request.grammar_lazy
    said = line(text, request.schema if is_held else None, request.grammar if is_held else None)
    if said is None:
        return request
    if prompts is not None:
        with prompts.open("ab") as file:
            file.write(msgspec.json.encode({"tokens": list(tokens), "text": text, "said": said}) + b"\n")
    free = {name: default for name, default in _UNHELD.items() if hasattr(request, name)}
    return msgspec.structs.replace(request, grammar=_grammar(said), temperature=0.0, **free)


class ActorEngine(weft.Engine):
    """Engine of the demo model whose chats the actor answers, in this process."""

    def __init__(self) -> None:
        super().__init__(n_slots=4, n_ctx=N_CTX, kv_unified=True, n_threads=1, kv_overrides=[("llama.context_length", N_CTX)])

    async def stream_chat(self, messages: Any, **options: Any) -> weft.ChatStream:  # noqa: ANN401 (as the method it extends)
        """`Engine.stream_chat` with the actor's template."""
        return await super().stream_chat(messages, chat_template=TEMPLATE.read_text(encoding="utf-8"), **options)

    def _submit(self, request: weft.Request) -> weft.Stream:
        return super()._submit(_with_answer(self, request, None))


def _play(prompts: Path | None) -> None:
    """Makes the server's engine generate the actor's answers."""
    submit = weft.Engine._submit

    def played(self: weft.Engine, request: weft.Request) -> weft.Stream:
        return submit(self, _with_answer(self, request, prompts))

    weft.Engine._submit = played  # type: ignore[method-assign]


def _main() -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--prompts", type=Path, help="a file for what the model was asked, and said")
    parser.add_argument("--without-projector", action="store_true", help="pictures are refused; for other models than the demo's")
    parser.add_argument("--toy", action="store_true", help="a toy in place of the demo model; it reads long prompts fast")
    given, rest = parser.parse_known_args()
    _play(given.prompts)
    with TemporaryDirectory() as folder:
        main([*flags(None if given.without_projector else Path(folder), is_toy=given.toy), *rest])


if __name__ == "__main__":
    _main()
