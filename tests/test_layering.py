"""Who may name whom: the layers hold because this test reads the sources."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from weft.engine import Engine

ROOT = Path(__file__).parent.parent


class Rule(NamedTuple):
    """`word`, a regular expression, stands in no file under `where` but those under `only_in`."""

    where: str
    word: str
    only_in: tuple[str, ...] = ()


RULES = {
    "only rust/llama names llama.cpp": Rule("rust", r"\bllama_cpp(_sys)?_2\b", ("rust/llama", "rust/benches")),
    "only llama depends on cargo features": Rule("rust", r"\bfeature\s*=", ("rust/lib.rs", "rust/llama", "rust/benches")),
    "only rust/python names pyo3": Rule("rust", r"\bpyo3\b", ("rust/python",)),
    "the engine depends on no model": Rule("rust/engine", r"\bllama::|\bfake_runner\b", ("rust/engine/tests",)),
    "the engine calls features only at hooks": Rule(
        "rust/engine", r"\bfeatures::(?!hooks\b|state\b)", ("rust/engine/features/", "rust/engine/tests/")
    ),
    "the cache depends only on sequence ids of the engine": Rule(
        "rust/cache", r"\bengine::(?!runner::KvSeqId\b)|\bllama::|\bpython::"
    ),
    "only cache/kinds distinguishes kinds of memory": Rule(
        "rust/cache", r"\bForkRule::", ("rust/cache/kinds", "rust/cache/tests")
    ),
    "sampling does not depend on the engine": Rule("rust/sampling", r"\bengine::|\bcache::|\bllama::|\bpython::"),
    "embeddings depend on no model": Rule(
        "rust/embedding", r"\bcrate::(?!embedding\b|cache\b|request\b|config\b|error\b|lock\b|worker_thread\b)"
    ),
    "grammars depend only on requests": Rule("rust/grammar", r"\bcrate::(?!grammar\b|request\b)"),
    "llama depends only on the runner trait of the engine": Rule(
        "rust/llama", r"\bengine::(?!runner\b)", ("rust/llama/tests", "rust/llama/start.rs")
    ),
    "kernels depend on no other part": Rule("rust/kernels", r"\bcrate::(?!kernels\b)"),
    "only llama and kernels are unsafe": Rule("rust", r"\bunsafe\b", ("rust/llama/", "rust/kernels/", "rust/benches/")),
    "requests depend only on settings and errors": Rule("rust/request", r"\bcrate::(?!request\b|config\b|error\b)"),
    "settings of the crate depend only on requests and errors": Rule(
        "rust/config/*.rs", r"\bcrate::(?!request\b|config\b|error\b)"
    ),
    "errors depend only on requests and settings": Rule("rust/error.rs", r"\bcrate::(?!request\b|config\b|error\b)"),
    "worker threads depend only on errors and locks": Rule("rust/worker_thread.rs", r"\bcrate::(?!error\b|lock\b)"),
    "locks depend on no other part": Rule("rust/lock.rs", r"\bcrate::"),
    "only the server names litestar": Rule("python/weft", r"\blitestar\b", ("python/weft/server",)),
    "only models by name need the hub's library": Rule(
        "python/weft", r"\bhuggingface_hub\b|\bhttpx2\b", ("python/weft/hub", "python/weft/serving/fetching.py")
    ),
    "the hub depends only on errors": Rule("python/weft/hub", r"\bweft\.(?!hub\b|errors\b)"),
    "only what serves names granian": Rule("python/weft", r"\bgranian\b", ("python/weft/serving",)),
    "what serves names no command line": Rule("python/weft/serving", r"\bweft\.cli\b"),
    "the server names of what serves only its log and its build": Rule(
        "python/weft/server", r"\bweft\.(cli\b|serving\b(?!\.(logs|build)\b))"
    ),
    "settings of an engine depend only on fields and errors": Rule("python/weft/config.py", r"\bweft\.(?!errors\b|fields\b)"),
    "the table of samplers depends only on fields": Rule("python/weft/sampling_fields.py", r"\bweft\.(?!fields\b)"),
    "settings do not depend on their readers": Rule("python/weft/settings", r"\bweft\.(cli|serving|server|chat|engine)\b"),
    "llama.cpp's dialect names no other": Rule(
        "python/weft/server/llamacpp", r"\bserver(\.| import .*\b)(anthropic|ollama|openai|responses|seeds)\b"
    ),
    "openai's dialect names no other": Rule(
        "python/weft/server/openai", r"\bserver(\.| import .*\b)(anthropic|llamacpp|ollama|responses|seeds)\b"
    ),
    "the dialect of responses names no other": Rule(
        "python/weft/server/responses", r"\bserver(\.| import .*\b)(anthropic|llamacpp|ollama|openai|seeds)\b"
    ),
    "anthropic's dialect names no other": Rule(
        "python/weft/server/anthropic", r"\bserver(\.| import .*\b)(llamacpp|ollama|openai|responses|seeds)\b"
    ),
    "ollama's dialect names no other": Rule(
        "python/weft/server/ollama", r"\bserver(\.| import .*\b)(anthropic|llamacpp|openai|responses|seeds)\b"
    ),
    "the seeds' dialects name no other": Rule(
        "python/weft/server/compat", r"\bserver(\.| import .*\b)(anthropic|llamacpp|ollama|openai|responses)\b"
    ),
    "the cache's routes name no dialect": Rule(
        "python/weft/server/cache_api", r"\bserver(\.| import .*\b)(anthropic|llamacpp|ollama|openai|responses|seeds)\b"
    ),
    "no dialect names the cache's routes": Rule(
        "python/weft/server/*", r"\bserver\.cache_api\b", ("python/weft/server/app.py", "python/weft/server/cache_api")
    ),
    "the routes to requests name no dialect": Rule(
        "python/weft/server/requests_api",
        r"\bserver(\.| import .*\b)(anthropic|cache_api|llamacpp|ollama|openai|responses|seeds)\b",
    ),
    "no dialect names the routes to requests": Rule(
        "python/weft/server/*", r"\bserver\.requests_api\b", ("python/weft/server/app.py", "python/weft/server/requests_api")
    ),
    "the routes for documents name no dialect": Rule(
        "python/weft/server/documents_api",
        r"\bserver(\.| import .*\b)(anthropic|cache_api|llamacpp|ollama|openai|requests_api|responses|compat)\b",
    ),
    "dialects of chats name only messages and parts of answers": Rule(
        "python/weft/server/*/*.py",
        r"\bweft\.chat\.(?!conversation\b|messages\b|answer\.(parts|parsed_message)\b)",
        (
            *(f"python/weft/server/{folder}/" for folder in ("inference", "model", "request_fields")),
            "python/weft/server/llamacpp/properties.py",
        ),
    ),
    "schemas name only what dialects share": Rule(
        "python/weft/server/*/schemas.py",
        r"\bweft\.(?!(infill|settings\.system_prompt|server\.(request_fields|response_fields))\b)",
    ),
    "pictures of trees name nobody": Rule("python/weft/drawing", r"\bweft\.(?!drawing\b)"),
    "documents know no HTTP": Rule("python/weft/documents", r"\bweft\.(server|serving|cli)\b"),
    "trees know no HTTP": Rule("python/weft/tree", r"\bweft\.(server|serving|cli)\b"),
    "what watches a server imports nothing of it": Rule("python/weft/cli/top", r"\bweft\.(?!cli\.top\b|drawing\b)"),
    "only commands for a terminal use rich": Rule("python/weft", r"\brich\b", ("python/weft/cli/top", "python/weft/cli/chat")),
    "a router knows only digests": Rule("python/weft/ray/prefix_routing.py", r"(?<!\.)\bray\b|\bweft\.(?!ray\.digest\b)"),
    "only what runs on Ray names it": Rule(
        "python/weft",
        r"^\s*(from|import)\s+(ray|pyarrow)\b",
        tuple(f"python/weft/ray/{name}.py" for name in ("application", "batch", "handles", "router")),
    ),
    "nobody names replicas": Rule("python/weft", r"\bweft\.ray\b", ("python/weft/ray",)),
    "chats know no HTTP": Rule("python/weft/chat", r"\bweft\.(server|serving|cli)\b"),
}


def violations(rule: Rule, root: Path = ROOT) -> Iterator[str]:
    """Lines of code that break the rule, as `file:line: text`. Comments and documentation may name what they like."""
    for top in root.glob(rule.where):
        for path in sorted([top] if top.is_file() else [*top.rglob("*.rs"), *top.rglob("*.py")]):
            name = path.relative_to(root).as_posix()
            if name.startswith(rule.only_in):
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                code = line.split("//" if path.suffix == ".rs" else "#", 1)[0]
                is_code = path.suffix == ".rs" or re.match(r"\s*(from|import)\s", code)
                if is_code and re.search(rule.word, code):
                    yield f"{name}:{number}: {line.strip()}"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_layer_names_only_what_it_may(rule: Rule) -> None:
    assert list(ROOT.glob(rule.where)), "the rule is about files that are gone"
    assert list(violations(rule)) == []


ENGINE_METHODS = {name for name in dir(Engine) if callable(getattr(Engine, name)) and name[0] != "_"}
DESCRIBING = {"openai/echo.py", "openai/models.py", "ollama/models.py"}
"""Modules that describe the model, or show a prompt."""


def engine_calls(source: str) -> Iterator[str]:
    """Expressions that name a method of the engine, a tokenizer, or the prompt or text that a template renders."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            is_engine = owner in ("engine", "_engine") and node.attr in ENGINE_METHODS
            is_template = ast.unparse(node).endswith(("service.chat.prompt", "service.chat.text", ".chat_prompt", ".chat_text"))
            if is_engine or is_template or node.attr in ("tokenize", "async_tokenize", "detokenize", "token_ids"):
                yield ast.unparse(node)


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "ollama", "responses"])
def test_dialect_decodes_and_encodes_only(dialect: str) -> None:
    folder = ROOT / "python" / "weft" / "server" / dialect
    found = {path.name: list(engine_calls(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.py"))}
    assert {name: calls for name, calls in found.items() if calls and f"{dialect}/{name}" not in DESCRIBING} == {}


@pytest.mark.parametrize("line", ["service.engine.stream(request)", "model.tokenize(text)", "service.chat.prompt(chat)"])
def test_dialect_that_does_more_is_found(line: str) -> None:
    assert list(engine_calls(line))


def engine_order(text: str) -> list[str]:
    """The engine's files in the order of the table in its `mod.rs`, as paths without `.rs`: each names only those before it."""
    rows = re.findall(r"^//! \| ((?:`[\w/]+` ?)+)\|", text, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([\w/]+)`", row)]


def module_of(path: str, order: list[str]) -> str | None:
    """The longest path of the table that `path` begins with."""
    parts = path.split("/")
    paths = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((path for path in paths if path in order), None)


def engine_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The engine's files outside tests, each with its path without `.rs` and `mod`."""
    for path in sorted(folder.rglob("*.rs")):
        inside = path.relative_to(folder).as_posix().removesuffix(".rs").removesuffix("/mod")
        if inside != "mod" and not re.search(r"^tests\b|/tests\b|/simulation$", inside):
            yield inside, path


SEAMS = {"features/hooks", "features/state"}


def engine_violations(folder: Path) -> Iterator[str]:
    """Lines of the engine's files that name a file which stands after their own, other than the hooks of the features."""
    order = engine_order((folder / "mod.rs").read_text(encoding="utf-8"))
    for inside, path in engine_files(folder):
        own = module_of(inside, order)
        later = order[order.index(own) + 1 :] if own else []
        lines = path.read_text(encoding="utf-8").split("#[cfg(test)]\nmod tests")[0].splitlines()
        for number, line in enumerate(lines, start=1):
            named = re.findall(r"\bcrate::engine::((?:\w+::)*\w+)", line.split("//", 1)[0])
            if {module_of(name.replace("::", "/"), order) for name in named} & (set(later) - SEAMS):
                yield f"{inside}:{number}: {line.strip()}"


def test_engine_files_name_only_those_before_them() -> None:
    folder = ROOT / "rust" / "engine"
    order = engine_order((folder / "mod.rs").read_text(encoding="utf-8"))
    files = {inside for inside, _ in engine_files(folder)}
    assert len(order) == len(set(order)), "the table in mod.rs names no file twice"
    assert set(order) <= files, "the table in mod.rs names files that exist"
    parts = {inside for inside in files if inside.startswith("scheduler/sequence/")}
    assert files - parts == set(order), "the table in mod.rs names every file"
    assert list(engine_violations(folder)) == []


def test_engine_file_that_names_a_later_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "mod.rs").write_text("//! | `parts/queue` | who starts |\n//! | `worker` | the loop |\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "worker.rs").write_text("use crate::engine::parts::queue::Queue;\n")
    assert list(engine_violations(tmp_path)) == []
    (tmp_path / "parts" / "queue.rs").write_text("use crate::engine::worker::Worker;\n")
    assert list(engine_violations(tmp_path)) == ["parts/queue:1: use crate::engine::worker::Worker;"]


def test_fields_of_owners_are_private() -> None:
    for path, owner in (("scheduler", "Scheduler"), ("cache_manager", "CacheManager"), ("output", "Output")):
        text = (ROOT / "rust" / "engine" / path / "mod.rs").read_text(encoding="utf-8")
        fields = re.search(rf"pub\(\w+\) struct {owner}\b[^{{]*\{{(.*?)\n\}}", text, flags=re.DOTALL)
        assert fields, f"{owner} is a struct with fields"
        assert not re.search(r"^\s*pub\b", fields[1], flags=re.MULTILINE), f"fields of {owner} are private"


@pytest.mark.parametrize(
    ("rule", "file", "line"),
    [
        pytest.param("the engine depends on no model", "rust/engine/mod.rs", "use crate::llama::Model;", id="rust"),
        pytest.param(
            "only llama depends on cargo features",
            "rust/cache/x.rs",
            '#[cfg(all(test, feature = "llama"))]',
            id="features",
        ),
        pytest.param("kernels depend on no other part", "rust/kernels/x.rs", "use crate::config::EnabledKernels;", id="kernels"),
        pytest.param("only llama and kernels are unsafe", "rust/cache/x.rs", "let x = unsafe { read(p) };", id="unsafe"),
        pytest.param("only what serves names granian", "python/weft/cli/main.py", "from granian import Granian", id="python"),
        pytest.param(
            "llama.cpp's dialect names no other",
            "python/weft/server/llamacpp/routes.py",
            "from weft.server import openai, request_fields",
            id="llamacpp",
        ),
        pytest.param(
            "openai's dialect names no other",
            "python/weft/server/openai/routes.py",
            "from weft.server import llamacpp as other",
            id="openai",
        ),
        pytest.param(
            "the seeds' dialects name no other",
            "python/weft/server/compat/stream.py",
            "from weft.server.openai import chat",
            id="seeds",
        ),
        pytest.param(
            "the dialect of responses names no other",
            "python/weft/server/responses/routes.py",
            "from weft.server.openai import chat",
            id="responses",
        ),
        pytest.param(
            "schemas name only what dialects share",
            "python/weft/server/x/schemas.py",
            "from weft.cli.main import main",
            id="schemas",
        ),
    ],
)
def test_planted_violation_is_found(rule: str, file: str, line: str, tmp_path: Path) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f"\n{line}\n")
    assert list(violations(RULES[rule], tmp_path)) == [f"{file}:2: {line}"]


TOP_MODULES = {
    "branch_stream": "a stream, branch by branch",
    "completion": "the complete result of a request",
    "config": "how an engine is started",
    "demo": "the model that ships with the package",
    "embedding": "vectors and rankings",
    "engine": "what all of it is asked of",
    "engine_options": "the keywords that start an engine",
    "errors": "what goes wrong",
    "events": "what a stream tells",
    "infill": "a text between two texts",
    "prefix": "prompts that are kept in files",
    "sampling_fields": "how tokens are drawn",
    "scoring": "how likely texts are",
    "sync_engine": "the engine for code that does not await",
}
"""What a user of the library meets first."""

TOP_FOLDERS = {
    "chat": "conversations, templates and tools",
    "cli": "the command line",
    "documents": "trees of texts in a file",
    "drawing": "pictures of trees",
    "fields": "one table of what can be asked",
    "hub": "models by name",
    "installed": "the distribution, and which compiled module it loads",
    "models": "the demo model's file",
    "ray": "replicas on Ray",
    "request": "what is asked",
    "server": "the routes",
    "serving": "sockets, logs, processes",
    "settings": "what a server is started with",
    "tree": "trees of texts",
    "work": "what an engine does beside its streams",
}


def test_the_top_level_holds_what_a_user_of_the_library_meets_and_no_more() -> None:
    package = ROOT / "python" / "weft"
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("_")}
    folders = {path.parent.name for path in package.glob("*/*") if path.is_file()} - {"__pycache__"}
    assert modules == TOP_MODULES.keys()
    assert folders == TOP_FOLDERS.keys()
