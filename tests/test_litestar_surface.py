"""Litestar is used by its public interface only, so that every version of its major release will do."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVER = Path(__file__).parents[1] / "python" / "weft"
FILES = sorted(SERVER.rglob("*.py"))

OVERRIDABLE = {
    "Request": {"stream", "body", "json"},
    "ASGIMiddleware": {"scopes", "exclude_opt_key", "handle"},
    "ASGIResponse": {"__call__", "send_body"},
    "Response": {"to_asgi_response"},
}
"""Public members of Litestar's classes that subclasses may define: bodies, middleware, and responses that stream."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def litestar_names(tree: ast.Module) -> dict[str, str]:
    """Names that a module imports from Litestar, with their modules."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "litestar"
        for alias in node.names
    }


def faults(source: str) -> Iterator[str]:
    """Uses of what Litestar does not document, in a module's source."""
    tree = ast.parse(source)
    names = litestar_names(tree)
    for path in names.values():
        if any(map(is_private, path.split("."))):
            yield f"imports {path}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(alias.name.startswith("litestar._") for alias in node.names):
            yield f"imports {node.names[0].name}"
        if isinstance(node, ast.ClassDef):
            yield from class_faults(node, names)


def class_faults(node: ast.ClassDef, names: dict[str, str]) -> Iterator[str]:
    """Overridden members of Litestar's classes, and private attributes that a subclass does not define itself."""
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    found = [base.id for base in bases if isinstance(base, ast.Name) and base.id in names]
    if not found:
        return
    inherited = {name for base in found for name in dir(resolve(names[base]))}
    allowed = {name for base in found for name in OVERRIDABLE.get(base, set())}
    defined = {name for item in node.body for name in defined_names(item)}
    for name in sorted((defined & inherited) - allowed - set(dir(object)) - {"__annotations__", "__init__", "__module__"}):
        yield f"{node.name} overrides {name}"
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and is_private(inner.attr) and inner.attr not in defined | own_attributes(node):
            yield f"{node.name} uses {inner.attr}"


def own_attributes(node: ast.ClassDef) -> set[str]:
    """Attributes that a class assigns to its instances in `__init__`."""
    return {
        target.attr
        for item in node.body
        if isinstance(item, ast.FunctionDef) and item.name == "__init__"
        for inner in ast.walk(item)
        if isinstance(inner, ast.Assign | ast.AnnAssign)
        for target in (inner.targets if isinstance(inner, ast.Assign) else [inner.target])
        if isinstance(target, ast.Attribute)
    }


def defined_names(item: ast.stmt) -> Iterator[str]:
    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
        yield item.name
    elif isinstance(item, ast.Assign):
        yield from (target.id for target in item.targets if isinstance(target, ast.Name))
    elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
        yield item.target.id


def resolve(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SERVER)))
def test_a_module_uses_only_what_litestar_documents(file: Path) -> None:
    assert list(faults(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from litestar._kwargs import KwargsModel", "imports litestar._kwargs.KwargsModel"),
        ("import litestar._kwargs", "imports litestar._kwargs"),
        ("from litestar import Litestar\nclass A(Litestar):\n    def _get_default_plugins(self): ...", "_get_default_plugins"),
        ("from litestar import Litestar\nclass A(Litestar):\n    async def __call__(self, *_): ...", "A overrides __call__"),
        ("from litestar import Request\nclass A(Request):\n    async def json(self):\n        self._body = 1", "A uses _body"),
        ("from litestar import Request\nclass A(Request[int, int, int]):\n    def form(self): ...", "A overrides form"),
    ],
)
def test_a_use_of_private_parts_is_found(source: str, fault: str) -> None:
    assert [found for found in faults(source) if fault in found]
