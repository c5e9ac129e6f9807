"""A server whose model plays a part: it says what a skilled model would, so that clients can be tried whole.

It is Weft itself with the demo model. What a chat is answered with is made up from its prompt, and a grammar holds the model to
that text, letter by letter; everything else, from tokens to streams, is as it always is. Prompts that are no chats are continued
by the model alone.

    python -m tests.clients.actor --port 8080
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

import weft
from tests.engine.tiny_projectors import Size, write_projector
from weft.cli.main import main

__all__ = ["flags", "line"]

N_EMBD = 192
"""Numbers of a vector of the demo model."""

N_CTX = 65_536
"""Tokens of the context. The demo model was trained on fewer, but need not understand what it sees."""

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_CALL = re.compile(r"(\w+)\((\{.*?\})\)")

Json = Any


def flags(folder: Path) -> list[str]:
    """What the server is started with, besides what is given; `folder` is for a projector, which sees nothing."""
    projector = folder / "mmproj.gguf"
    write_projector(projector, "llava", size=Size(n_text=N_EMBD))
    return [
        *("--chat-template-file", str(Path(__file__).with_name("hermes.jinja"))),
        *("-c", str(N_CTX), "--kv-unified", "--override-kv", f"llama.context_length=int:{N_CTX}"),
        *("--mmproj", str(projector)),
    ]


def line(prompt: str, schema: str | None) -> str | None:
    """What is to be said after a prompt; None where it is no chat."""
    before, mark, opening = prompt.rpartition("<|im_start|>assistant\n")
    if not mark:
        return None
    turns: list[tuple[str, str]] = _TURN.findall(before)
    role, text = turns[-1] if turns else ("user", "")
    asked = next((said for by, said in reversed(turns) if by == "user"), "")
    tools = [tool["function"] for tool in _tools(before)]
    if opening.removesuffix("</think>\n\n") == opening and "think" in asked.lower().split():
        thought = "<think>\nFirst I think it over.\n</think>\n\n"
    else:
        thought = ""
    return thought + _said(role, text, asked, tools, schema, before)


def _said(role: str, text: str, asked: str, tools: Sequence[Json], schema: str | None, prompt: str) -> str:
    if role == "tool":
        last = [tool for tool in tools if tool["name"].startswith("final_result")]
        if last:
            return _call(last[0]["name"], _value(last[0]["parameters"], _Hints(asked)))
        if schema is not None:
            return _written(schema, asked)
        return f"The tool said: {text.removeprefix('<tool_response>').removesuffix('</tool_response>').strip()}"
    if calls := _calls(asked, tools):
        return "\n".join(calls)
    if schema is not None:
        found = _schema_in(prompt) if json.loads(schema).get("properties") is None else None
        return _written(json.dumps(found) if found is not None else schema, asked)
    if (found := _schema_in(prompt)) is not None:
        return f"```json\n{_written(json.dumps(found), asked)}\n```"
    if "SEARCH/REPLACE" in prompt:
        return "hello.py\n```python\n<<<<<<< SEARCH\nprint('hello')\n=======\nprint('goodbye')\n>>>>>>> REPLACE\n```\n"
    if "file listing" in prompt:
        return "hello.py\n```\nprint('goodbye')\n```\n"
    if named := re.search(r"Run this: `(.*)`", asked):
        return f"I run it.\n\n```mswea_bash_command\n{named[1]}\n```"
    return f"You said: {asked.strip()[:200]}"


def _tools(prompt: str) -> Iterator[Json]:
    begun, _, rest = prompt.partition("<tools>\n")
    if rest:
        for told in rest.partition("</tools>")[0].splitlines():
            yield json.loads(told)


def _calls(asked: str, tools: Sequence[Json]) -> list[str]:
    """The calls that a question leads to: those that it spells, else one of the tool that it has most words in common with."""
    by_name = {tool["name"]: tool for tool in tools}
    if spelt := [(name, json.loads(given)) for name, given in _CALL.findall(asked) if name in by_name]:
        return [_call(name, arguments) for name, arguments in spelt]
    words = set(re.findall(r"[a-z]{3,}", asked.lower().replace("_", " ")))
    scores = {name: len(words & set(re.findall(r"[a-z]{3,}", name.lower().replace("_", " ")))) for name in by_name}
    best = max(scores, key=lambda name: scores[name], default=None)
    if best is None or (scores[best] == 0 and not (words & {"tool", "tools", "call"} or best.startswith("final_result"))):
        return []
    return [_call(best, _value(by_name[best].get("parameters") or {}, _Hints(asked)))]


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
        self._texts = iter([*re.findall(r"[\"'‘“]([^\"'‘’“”]+)[\"'’”]", asked), *([place[1]] if place else [])])

    def number(self) -> float:
        return float(next(self._numbers, 1))

    def text(self) -> str:
        return next(self._texts, "some words")


def _written(schema: str, asked: str) -> str:
    return json.dumps(_value(json.loads(schema), _Hints(asked)), ensure_ascii=False)


def _value(schema: Json, hints: _Hints, root: Json = None) -> Json:
    """A value that a schema describes."""
    root = schema if root is None else root
    if schema is True or schema == {}:
        return hints.text()
    if "$ref" in schema:
        found = root
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        return _value(found, hints, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return next((one for one in schema["enum"] if str(one).lower() in hints.asked.lower()), schema["enum"][0])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return _value(next(one for one in schema[several] if one.get("type") != "null"), hints, root)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind if isinstance(kind, str) else kind[0]:
        case "object":
            return {name: _value(one, hints, root) for name, one in schema.get("properties", {}).items()}
        case "array":
            return [_value(schema.get("items", {}), hints, root) for _ in range(max(schema.get("minItems", 1), 1))]
        case "integer":
            return int(max(hints.number(), schema.get("minimum", -(2**31))))
        case "number":
            return max(hints.number(), schema.get("minimum", -(2**31)))
        case "boolean":
            return True
        case "null":
            return None
    return hints.text()[: schema.get("maxLength", 100)]


def _grammar(text: str) -> str:
    return "root ::= " + json.dumps(text, ensure_ascii=False)


_generate = weft.Engine.generate


def _played(self: weft.Engine, prompt: Any, **options: Any) -> Any:  # noqa: ANN401 (as what it stands for)
    """[`weft.Engine.generate`], held to what is to be said."""
    if not isinstance(prompt, weft.Request) or options:
        return _generate(self, prompt, **options)
    said = line(self.detokenize(prompt.prompt), prompt.schema)
    if said is None:
        return _generate(self, prompt)
    return _generate(self, msgspec.structs.replace(prompt, grammar=_grammar(said), json_schema=None, temperature=0.0))


weft.Engine.generate = _played  # type: ignore[method-assign]

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        sys.argv[1:1] = flags(Path(folder))
        main()
