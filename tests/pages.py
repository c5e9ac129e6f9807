"""Code fences of documentation pages, each with the tag that states how it is tested.

A tag is a comment on the line before its fence:

    <!-- run -->                  Python, a program of its own; the demo model stands in for "model.gguf",
                                  and a tiny one for "reranker.gguf"
    <!-- run: await -->           Python with top-level `await`, after the page's earlier ones; `engine` and `weft` are defined
    <!-- run: await actor -->     the same, with an engine whose chats a scripted model answers (tests/clients/actor.py)
    <!-- run: session -->         Python after `>>>`, in order; the values that are shown are those of a new engine
    <!-- run: server FLAGS -->    a program or shell commands that call a server on port 8080, started with FLAGS
    <!-- run: actor -->           the same, against a model that answers as a skilled one would (tests/clients/actor.py)
    <!-- file: NAME -->           a file that the page's programs import or read
    <!-- check: commands -->      shell: make's goals, weft's flags, and scripts that are named exist
    <!-- check: KIND -->          a file of KIND: json, toml, yaml (of Kubernetes or Prometheus), caddy, nginx, promql, systemd (a
                                  unit, or a drop-in of ours); python and javascript are parsed
    <!-- output -->               what the fence before prints; not run
"""

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<tag>[^\n]*?) -->\n(?P=indent))?```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Fence(NamedTuple):
    """One code fence of a page."""

    page: str
    """Path of the page, from the root of the repository."""
    line: int
    language: str
    verb: str
    """`run`, `file`, `check` or `output`; empty where the fence has no tag."""
    argument: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def fences(page: Path) -> Iterator[Fence]:
    """Yields the fences of a page in order."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        verb, _, argument = (found["tag"] or "").partition(":")
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start()) + 1
        yield Fence(str(page.relative_to(ROOT)), line, found["language"], verb.strip(), argument.strip(), code)


def pages_with_tags() -> list[Path]:
    """The README and the pages whose fences are all tagged."""
    folders = ("start", "tutorials", "guides")
    return [ROOT / "README.md", *(page for folder in folders for page in sorted((ROOT / "docs" / folder).glob("*.md")))]


async def value_of(code: str, names: dict[str, object]) -> object:
    """Runs statements, or an expression for its value; both may await."""
    for mode in ("eval", "exec"):
        with contextlib.suppress(SyntaxError):
            compiled: CodeType = compile(code, "page", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            value = eval(compiled, names)
            return await value if inspect.iscoroutine(value) else value
    raise AssertionError(code)
