#!/usr/bin/env python
"""Prints the size of the Rust code outside tests and benches: lines, visible items, and functions that take shared state.

    python scripts/measure_rust.py [--root rust] [--core Worker] [--owners Scheduler CacheManager Output Runner]

What only tests and benches compile, as by `cfg(any(test, ...))`, is part of them. A line that holds code counts as code, a line
that holds a comment alone as a comment. The parser reads lines, strings and comments, not macros: an item that a macro makes is
not counted.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent / "rust"
CORE = "Worker"
OWNERS = ("Scheduler", "CacheManager", "Output", "Runner")

TOKENS = re.compile(
    r"""
      (?P<comment>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>\b(?:br|cr|r)(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<string>"(?:\\.|[^"\\])*")
    | (?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])')
    """,
    re.VERBOSE | re.DOTALL,
)
TEST_ATTRIBUTE = re.compile(r"#\[cfg\((?:test|(?:all|any)\(test\b[^\]]*)\)\]")
OTHER_ATTRIBUTE = re.compile(r"\s*#\[")
TEST_MODULE_FILE = re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
ITEM = re.compile(
    r"^[ \t]*pub(?P<scope>\([^)]*\))?\s+(?:(?:const|async|unsafe|extern\s+\"[^\"]*\")\s+(?=[\w\" ]*\bfn\b))*"
    r"(?P<kind>fn|struct|enum|trait|const|static|type|mod|union)\b",
    re.MULTILINE,
)
FUNCTION = re.compile(r"\bfn\s+(?P<name>\w+)")
IMPL = re.compile(r"^impl\b[^{;]*\{", re.MULTILINE)


@dataclass
class Counts:
    """Figures of one folder, or of all."""

    code: int = 0
    comments: int = 0
    blank: int = 0
    public: int = 0
    crate_visible: int = 0

    def add(self, other: "Counts") -> None:
        """Adds the figures of another file or folder."""
        self.code += other.code
        self.comments += other.comments
        self.blank += other.blank
        self.public += other.public
        self.crate_visible += other.crate_visible


@dataclass
class Function:
    """A function's name, its parameters without `self`, and what `self` is, where it takes `&mut self`."""

    name: str
    parameters: str
    mutable_self: str | None
    runner_types: set[str] = field(default_factory=set)

    def takes(self, name: str, *, mutably: bool) -> bool:
        """Returns whether a parameter is a reference to `name`, possibly generic or in a tuple."""
        names = {name} | (self.runner_types if name == "Runner" else set())
        pattern = r"&\s*(?:'\w+\s+)?" + (r"mut\s+" if mutably else r"(?:mut\s+)?") + r"(?:impl\s+|dyn\s+)?(?:\w+::)*(\w+)"
        if any(match[1] in names for match in re.finditer(pattern, self.parameters)):
            return True
        return mutably and self.mutable_self in names

    def n_owners(self, owners: Iterable[str], core: str) -> int:
        """Counts the owners that it takes mutably; a mutable `core` holds all of them."""
        owners = list(owners)
        return len(owners) if self.takes(core, mutably=True) else sum(self.takes(owner, mutably=True) for owner in owners)


@dataclass
class Source:
    """A file whose comments and strings are blank, and which of its lines are part of tests."""

    path: Path
    masked: str
    comment_lines: set[int]
    test_lines: set[int]
    test_files: set[Path]


def _end_of_block_comment(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)


def mask(text: str) -> tuple[str, set[int]]:
    """Blanks comments, and the insides of strings and characters.

    Returns:
        The text, of the same length and lines, and the numbers of the lines (from 0) that a comment is part of.
    """
    parts, comment_lines, position = [], set(), 0
    while match := TOKENS.search(text, position):
        end = _end_of_block_comment(text, match.start()) if match["block"] else match.end()
        token = text[match.start() : end]
        parts.append(text[position : match.start()])
        if match["comment"] or match["block"]:
            first = text.count("\n", 0, match.start())
            comment_lines |= set(range(first, first + token.count("\n") + 1))
            parts.append(re.sub(r"[^\n]", " ", token))
        else:
            parts.append('"' + re.sub(r"[^\n]", "_", token[1:-1]) + '"')
        position = end
    return "".join(parts) + text[position:], comment_lines


def _end_of_group(masked: str, start: int) -> int:
    """Returns the position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(masked)):
        if masked[position] in "([{":
            depth += 1
        elif masked[position] in ")]}":
            depth -= 1
            if depth == 0:
                return position + 1
    return len(masked)


def _end_of_item(masked: str, start: int) -> int:
    """Returns the position after the item at `start`: after its block, or its semicolon or comma."""
    position = start
    while position < len(masked):
        if masked[position] in "([":
            position = _end_of_group(masked, position)
        elif masked[position] == "{":
            return _end_of_group(masked, position)
        elif masked[position] in ";,":
            return position + 1
        elif masked[position] == "}":
            return position
        else:
            position += 1
    return position


def read(path: Path) -> Source:
    """Reads a file."""
    masked, comment_lines = mask(path.read_text(encoding="utf-8"))
    test_lines: set[int] = set()
    test_files: set[Path] = set()
    folder = path.parent if path.name in {"mod.rs", "lib.rs"} else path.with_suffix("")
    for attribute in TEST_ATTRIBUTE.finditer(masked):
        position = attribute.end()
        while OTHER_ATTRIBUTE.match(masked, position):
            position = _end_of_group(masked, masked.index("[", position))
        end = _end_of_item(masked, position)
        test_lines |= set(range(masked.count("\n", 0, attribute.start()), masked.count("\n", 0, end) + 1))
        if module := TEST_MODULE_FILE.match(masked, position):
            test_files |= {folder / f"{module[1]}.rs", folder / module[1]}
    return Source(path, masked, comment_lines, test_lines, test_files)


def sources(root: Path) -> list[Source]:
    """Reads all files that are not part of tests or benches."""
    paths = [path for path in sorted(root.rglob("*.rs")) if not {"tests", "benches"} & set(path.relative_to(root).parts)]
    files = [read(path) for path in paths]
    tests = {path for file in files for path in file.test_files}
    return [file for file in files if not tests & {file.path, *file.path.parents}]


def _without_tests(file: Source) -> str:
    return "\n".join("" if n in file.test_lines else line for n, line in enumerate(file.masked.split("\n")))


def counts(file: Source) -> Counts:
    """Counts a file's lines and visible items."""
    found = Counts()
    for n, line in enumerate(file.masked.splitlines()):
        if n in file.test_lines:
            continue
        if line.strip():
            found.code += 1
        elif n in file.comment_lines:
            found.comments += 1
        else:
            found.blank += 1
    for item in ITEM.finditer(_without_tests(file)):
        if item["scope"]:
            found.crate_visible += 1
        else:
            found.public += 1
    return found


def functions(file: Source) -> Iterator[Function]:
    """Returns the functions outside tests, those in traits and `impl` blocks included."""
    masked = _without_tests(file)
    runner_types = {match[1] for match in re.finditer(r"\b(\w+)\s*:\s*[^,;{}()<>]*\bRunner\b", masked)}
    blocks = [(match.start(), _end_of_group(masked, match.end() - 1), _type_of(match[0])) for match in IMPL.finditer(masked)]
    for match in FUNCTION.finditer(masked):
        position = match.end()
        if masked[position : position + 1] == "<":
            position = _end_of_generics(masked, position)
        if masked[position : position + 1] != "(":
            continue
        parameters = masked[position : _end_of_group(masked, position)]
        has_mutable_self = re.match(r"\(\s*&\s*(?:'\w+\s+)?mut\s+self\b", parameters)
        owner = next((name for start, end, name in blocks if start < match.start() < end), None)
        yield Function(match["name"], parameters, owner if has_mutable_self else None, runner_types)


def _end_of_generics(masked: str, start: int) -> int:
    depth = 0
    for position in range(start, len(masked)):
        if masked[position] == "<":
            depth += 1
        elif masked[position] == ">" and masked[position - 1] != "-":
            depth -= 1
            if depth == 0:
                return position + 1
    return len(masked)


def _type_of(header: str) -> str:
    """Returns the type that an `impl` block is of."""
    header = header.removeprefix("impl")
    if header.startswith("<"):
        header = header[_end_of_generics(header, 0) :]
    of = re.split(r"\bfor\b", header)[-1]
    name = re.match(r"\s*(?:&\s*(?:mut\s+)?)?(?:\w+::)*(\w+)", of)
    return name[1] if name else ""


def folder_of(path: Path, root: Path) -> str:
    """Returns the first two folders of a path, or its first, or `.`."""
    return "/".join(path.relative_to(root).parts[:-1][:2]) or "."


def table(files: Sequence[Source], root: Path) -> str:
    """Returns the table of lines and items, a row a folder."""
    by_folder: dict[str, Counts] = defaultdict(Counts)
    for file in files:
        by_folder[folder_of(file.path, root)].add(counts(file))
    total = Counts()
    for of_folder in by_folder.values():
        total.add(of_folder)
    rows = [*sorted(by_folder.items()), ("total", total)]
    head = f"{'folder':24} {'code':>7} {'comments':>9} {'blank':>6} {'pub':>6} {'pub(…)':>7}"
    return "\n".join(
        [head] + [f"{name:24} {n.code:7} {n.comments:9} {n.blank:6} {n.public:6} {n.crate_visible:7}" for name, n in rows]
    )


def state_table(files: Iterable[Source], core: str, owners: Sequence[str]) -> str:
    """Returns how many functions take the whole state, and how many take several of its owners mutably."""
    found = [function for file in files for function in functions(file)]
    mutable = sum(function.takes(core, mutably=True) for function in found)
    either = sum(function.takes(core, mutably=False) or function.takes(core, mutably=True) for function in found)
    named = sum(sum(function.takes(owner, mutably=True) for owner in owners) > 1 for function in found)
    several = sum(function.n_owners(owners, core) > 1 for function in found)
    return "\n".join(
        [
            f"functions in engine/: {len(found)}",
            f"  that take &mut {core}: {mutable}; &{core}: {either - mutable}; either: {either}",
            f"  that take more than one of {', '.join(owners)} mutably: {several} ({named} of them name each)",
        ]
    )


def main(arguments: Sequence[str]) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder that holds lib.rs")
    parser.add_argument("--core", default=CORE, help="the struct that holds all owners; an empty name for none")
    parser.add_argument("--owners", nargs="+", default=list(OWNERS), help="the structs that own state")
    options = parser.parse_args(arguments)
    root = options.root
    files = sources(root)
    engine = [file for file in files if (root / "engine") in file.path.parents]
    text = "".join(path.read_text(encoding="utf-8") for path in root.rglob("*.rs"))
    for name in filter(None, (options.core, *options.owners)):
        if not re.search(rf"\b{re.escape(name)}\b", text):
            parser.error(f"{root} does not mention {name}; name this crate's types with --core and --owners")
    sys.stdout.write(f"{table(files, root)}\n\n{state_table(engine, options.core, options.owners)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
