"""Templates of error messages, read from the source: `the queue is full ({} {}); retry later`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def normalized(template: str) -> str:
    """Returns the template without the names of its placeholders."""
    return " ".join(re.sub(r"\{[^{}]*\}", "{}", template).split())


def _texts(node: ast.expr) -> list[str]:
    """Returns every text that an expression may have, with `{}` for values that are not constant."""
    match node:
        case ast.Constant(str() as text):
            return [re.sub(r"[{}]", "", text) if "{" in text else text]
        case ast.JoinedStr(parts):
            return _joined([["{}"] if isinstance(part, ast.FormattedValue) else _texts(part) for part in parts])
        case ast.BinOp(left, ast.Add(), right):
            return _joined([_texts(left), _texts(right)])
        case ast.IfExp(_, body, orelse):
            return [*_texts(body), *_texts(orelse)]
        case _:
            return ["{}"]


def _joined(parts: list[list[str]]) -> list[str]:
    joined = [""]
    for texts in parts:
        joined = [before + text for before in joined for text in texts]
    return joined


def _is_message(text: str) -> bool:
    return " " in text and len(re.findall(r"[A-Za-z]{2,}", text.replace("{}", ""))) >= 2


def raised(path: str) -> Iterator[str]:
    """Yields the templates of all exceptions that a module, or the modules of a folder, raise with a message of their own."""
    folder = ROOT / "python" / "weft" / path
    for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for argument in node.exc.args:
                    yield from filter(_is_message, map(normalized, _texts(argument)))


def of_classes(path: str) -> Iterator[tuple[str, str]]:
    """Yields each exception class of a module with the templates that its `__str__`, constructors or the class itself return."""
    for node in ast.parse((ROOT / "python" / "weft" / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_"):
            found = []
            for inner in ast.walk(node):
                match inner:
                    case ast.Return(ast.JoinedStr() | ast.Constant() as value):
                        found += _texts(value)
                    case ast.Return(ast.Call(ast.Name("cls"), [value])):
                        found += _texts(value)
                    case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), "__init__"), [value]):
                        found += _texts(value)
            for text in filter(_is_message, map(normalized, found)):
                yield node.name, text


def of_functions(path: str, names: set[str]) -> Iterator[str]:
    """Yields the texts of at least three words in the named functions of a module."""
    for node in ast.walk(ast.parse((ROOT / "python" / "weft" / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            body = node.body[1:] if ast.get_docstring(node) else node.body
            inside: set[int] = set()
            for inner in (inner for statement in body for inner in ast.walk(statement)):
                if isinstance(inner, ast.JoinedStr):
                    inside.update(id(part) for part in inner.values)
                if isinstance(inner, ast.JoinedStr | ast.Constant) and id(inner) not in inside and isinstance(inner, ast.expr):
                    for text in map(normalized, _texts(inner)):
                        if text.count(" ") >= 2 and _is_message(text):
                            yield text


def returned(path: str, name: str) -> Iterator[str]:
    """Yields the templates that a function returns."""
    for node in ast.walk(ast.parse((ROOT / "python" / "weft" / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from filter(_is_message, map(normalized, _texts(inner.value)))


LITERAL = re.compile(r'"((?:[^"\\]|\\[\s\S])*)"')
INVALID_VALUE = re.compile(r'reject_value\(\s*(?:"(\w+)"|\w+),\s*(\d+)?[^";]*?(?:format_args!\(\s*)?"([^"]*)"')
"""A call that words an invalid value: the name of the parameter, and the valid values."""
NO_MESSAGE = re.compile(
    r"(?:expect\(|(?<!let )reason = |unreachable!\(|(?:debug_)?assert\w*!\([^;]*|(?:debug|warn|info|trace)!\(\s*)$"
)


def of_rust(path: str) -> Iterator[str]:
    """Yields texts of at least four words of a Rust source file, without its tests, comments, log lines and expectations."""
    source = (ROOT / "rust" / path).read_text(encoding="utf-8").replace("'\"'", "")
    source = re.split(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+ \{", source)[0]
    source = re.sub(r"^\s*//.*$| // .*$", "", source, flags=re.MULTILINE)
    for found in INVALID_VALUE.finditer(source):
        yield normalized(f"{found[1] or '{}'} is {found[2] or '{}'}; it must be {found[3]}")
    for found in LITERAL.finditer(INVALID_VALUE.sub("", source)):
        text = re.sub(r"\\\n\s*", "", found[1]).replace('\\"', '"')
        if text.count(" ") > 2 and NO_MESSAGE.search(found.string[max(0, found.start() - 80) : found.start()]) is None:
            yield normalized(text)


def of_variants() -> Iterator[str]:
    """Yields the message of each variant of the engine's `Error` that has one of its own."""
    source = (ROOT / "rust" / "error.rs").read_text(encoding="utf-8")
    for found in re.finditer(r'#\[error\(\s*"((?:[^"\\]|\\[\s\S])*)"', source):
        if found[1] != "{message}":
            yield normalized(found[1])


def of_lists(path: str) -> Iterator[str]:
    """Yields the messages that modules of a folder give to `some`, for lists without entries."""
    for file in sorted((ROOT / "python" / "weft" / path).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Name("some"), [ast.Constant(str() as text), *_]):
                    yield normalized(text)
