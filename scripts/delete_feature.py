#!/usr/bin/env python
"""Deletes a feature of the engine in a copy of the tree: nothing but its own files, its tests and its hook lines may need it.

    python scripts/delete_feature.py --list
    python scripts/delete_feature.py --feature beams --into /tmp/without-beams
    python scripts/delete_feature.py --feature beams (--check | --test)
    python scripts/delete_feature.py --together (--check | --test)

A feature is a file or a folder of `rust/engine/features`. With it go:

- its tests, `rust/engine/tests/NAME.rs`, and the `mod` lines of its modules;
- in `hooks.rs`, `state.rs` and `mod.rs` of `features`, each item, statement, field and call in a list that names it;
- elsewhere, each `use` of it, and what `// feature: NAME` marks. At the end of a line of code, the comment marks that line. On a
  line of its own, it marks the item, statement, field or match arm that follows. A marked `mod` line stands for its file too.
  A mark with several names, as in `// feature: beams, forks`, goes with any of them.
"""

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENGINE = Path("rust/engine")
FEATURES = ENGINE / "features"
SEAMS = ("hooks.rs", "mod.rs", "state.rs")
"""Files that name every feature: the hooks, and the state that features attach to requests, sequences and streams."""

MARK = re.compile(r"//\s*feature:(?P<names>[^\n]*)$", re.MULTILINE)
NAMES = re.compile(r" [a-z_]+(?:, [a-z_]+)*")
ATTACHED = re.compile(r"\s*(?://(?!!)|#\[)")
ITEM = re.compile(
    r"(?:pub(?:\([^)]*\))?\s+)?(?:(?:async|unsafe|const)\s+)*"
    r"(?:fn|impl|struct|enum|union|trait|mod|use|let|static|type|const|for|while|loop|if|match)\b"
)
MODULE = re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
CALL = re.compile(r"[^\s,()][^,()]*(?:\((?:[^()]|\([^()]*\))*\)[^,()]*)+")
"""A call in a list, whose arguments may hold a level of further calls."""
NEEDED = ("Cargo.toml", "Cargo.lock", "build.rs", "clippy.toml", "rustfmt.toml", "rust")

_mask = runpy.run_path(str(Path(__file__).with_name("measure_rust.py")))["mask"]


def mask(text: str) -> str:
    """Returns `text` with blank comments, and strings without content, of the same length."""
    masked: str = _mask(text)[0]
    return masked


class MarkError(Exception):
    """A mark is malformed or names no feature."""


@dataclass
class Deletion:
    """What went with a feature."""

    files: list[str] = field(default_factory=list)
    n_hooks: int = 0
    n_uses: int = 0
    n_marks: int = 0


def features(root: Path) -> list[str]:
    """Returns the names of the features, in order."""
    return sorted(path.stem for path in (root / FEATURES).iterdir() if path.name not in SEAMS)


def marks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Returns the positions of the marks and the names in each.

    Raises:
        MarkError: A mark is malformed.
    """
    for match in MARK.finditer(text):
        if not NAMES.fullmatch(match["names"]):
            line = text.count("\n", 0, match.start()) + 1
            raise MarkError(f"line {line}: {match[0]!r} is not of the form '// feature: name' or '// feature: name, name'")
        yield match.start(), match["names"].strip().split(", ")


def _closing(masked: str, start: int) -> int:
    """Returns the position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(masked)):
        depth += (masked[position] in "([{") - (masked[position] in ")]}")
        if depth == 0:
            return position + 1
    return len(masked)


def _closing_angle(masked: str, start: int) -> int:
    depth = 0
    for position in range(start, len(masked)):
        depth += (masked[position] == "<") - (masked[position] == ">" and masked[position - 1] not in "-=")
        if depth == 0:
            return position + 1
    return len(masked)


def end_of(masked: str, start: int) -> int:
    """Returns the position after the item, statement, field or match arm at `start`."""
    item = ITEM.match(masked, start)
    ends_with_block = item is None or not re.search(r"\b(?:use|let|static|type)$", item[0])
    position = start
    while position < len(masked):
        character = masked[position]
        if character in "([":
            position = _closing(masked, position)
        elif character == "<" and re.match(r"[\w:]", masked[position - 1]):
            position = _closing_angle(masked, position)
        elif character == "{":
            position = _closing(masked, position)
            rest = re.compile(r"\s*(else\b|[?.])|([;,])").match(masked, position)
            if rest is None and ends_with_block:
                return position
            position = rest.end() if rest else position
            if rest is not None and rest[2]:
                return position
        elif character == ";" or (character == "," and item is None):
            return position + 1
        elif character in ")]}":
            return position
        else:
            position += 1
    return position


def start_of(masked: str, position: int) -> int:
    """Returns the start of the innermost item, statement or field around `position`."""
    depth = angles = 0
    for at in range(position - 1, -1, -1):
        character = masked[at]
        if character in ")]" or (character == "}" and depth > 0):
            depth += 1
        elif character in "([{" and depth > 0:
            depth -= 1
        elif character == ">" and masked[at - 1] not in "-= ":
            angles += 1
        elif character == "<" and angles > 0:
            angles -= 1
        elif depth == 0 and angles == 0 and character in ";{},":
            position = at + 1
            break
    else:
        position = 0
    return position + len(masked[position:]) - len(masked[position:].lstrip())


def lines_of(text: str, start: int, end: int) -> range:
    """Returns the numbers of the lines of `[start, end)`, with the comments and attributes directly above."""
    lines = text.split("\n")
    first, last = text.count("\n", 0, start), text.count("\n", 0, end)
    while first > 0 and ATTACHED.match(lines[first - 1]):
        first -= 1
    return range(first, last + 1)


def without_lines(text: str, numbers: set[int]) -> str:
    """Returns `text` without these lines, and without blank lines that are then doubled."""
    kept: list[str] = []
    for number, line in enumerate(text.split("\n")):
        is_doubled = not line.strip() and (not kept or not kept[-1].strip() or kept[-1].rstrip().endswith("{"))
        if number not in numbers and not (is_doubled and number - 1 in numbers):
            kept.append(line)
    return "\n".join(kept)


def module_files(path: Path, name: str) -> list[Path]:
    """Returns the file and the folder of the module `name` that the file `path` declares, where they exist."""
    folder = path.parent if path.name in {"mod.rs", "lib.rs"} else path.with_suffix("")
    return [module for module in (folder / f"{name}.rs", folder / name) if module.exists()]


class _File:
    """A Rust file, and the lines to delete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.masked = mask(self.text)
        self.deleted: set[int] = set()
        self.modules: list[Path] = []

    def delete_at(self, start: int) -> None:
        """Deletes what starts at `start`."""
        if module := MODULE.match(self.masked, start):
            self.modules += module_files(self.path, module[1])
        self.deleted |= set(lines_of(self.text, start, end_of(self.masked, start)))

    def delete_marked(self, position: int) -> None:
        """Deletes what the mark at `position` marks."""
        start_of_line = self.text.rfind("\n", 0, position) + 1
        if self.masked[start_of_line:position].strip():
            self.deleted.add(self.text.count("\n", 0, position))
            if module := MODULE.match(self.masked, start_of_line):
                self.modules += module_files(self.path, module[1])
            return
        start = position
        while not self.masked[start].strip() or self.masked.startswith("#[", start):
            start = _closing(self.masked, start + 1) if self.masked.startswith("#[", start) else start + 1
        self.deleted.add(self.text.count("\n", 0, position))
        self.delete_at(start)

    def is_deleted(self, position: int) -> bool:
        return self.text.count("\n", 0, position) in self.deleted

    def delete_from_lists(self, name: str) -> None:
        """Deletes the feature `name` from lists in `use features::{…}`."""
        kept = re.compile(rf"\b{name}\b,?\s*")
        self._replace(re.sub(r"(?<=\bfeatures::\{)[^{}]*(?=\})", lambda match: kept.sub("", match[0]), self.text))

    def delete_calls(self, name: str) -> int:
        """Deletes the calls of the feature `name` from lists, as in `any([name::is_due(a), …])`. Returns their number."""
        n_deleted = 0

        def without(match: re.Match[str]) -> str:
            nonlocal n_deleted
            calls = CALL.findall(match[0])
            kept = [call.strip() for call in calls if not re.search(rf"\b{name}\b", call)]
            n_deleted += len(calls) - len(kept)
            return ", ".join(kept)

        self._replace(re.sub(r"(?<=\(\[)[^\[\]]*(?=\]\))", without, self.text))
        return n_deleted

    def _replace(self, text: str) -> None:
        if text != self.text:
            self.path.write_text(text, encoding="utf-8")
            self.text, self.masked = text, mask(text)

    def save(self) -> None:
        if self.deleted:
            self.path.write_text(without_lines(self.text, self.deleted), encoding="utf-8")


def delete(root: Path, name: str) -> Deletion:
    """Deletes the feature `name` from the tree at `root`.

    Raises:
        MarkError: A mark is malformed or names no feature.
    """
    known = features(root)
    deletion = Deletion()
    own = [path for path in (root / FEATURES / f"{name}.rs", root / FEATURES / name) if path.exists()]
    benches = root / "rust" / "benches"
    named = (root / ENGINE / "tests" / f"{name}.rs", benches / f"{name}.rs", benches / name)
    gone = own + [path for path in named if path.exists()]
    _delete_bench(root / "Cargo.toml", name)
    for path in sorted((root / "rust").rglob("*.rs")):
        if any(path.is_relative_to(other) for other in gone) or name not in path.read_text(encoding="utf-8"):
            continue
        gone += _delete_in(root, _File(path), name, known, deletion)
    for path in gone:
        if path.exists():
            deletion.files.append(path.relative_to(root).as_posix())
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return deletion


def _delete_in(root: Path, file: _File, name: str, known: list[str], deletion: Deletion) -> list[Path]:
    """Deletes the lines of a feature in a file. Returns the modules that it declares for the feature."""
    file.delete_from_lists(name)
    for position, names in marks(file.text):
        if unknown := set(names) - set(known):
            raise MarkError(f"{file.path}: {', '.join(sorted(unknown))} is no feature")
        if name in names:
            deletion.n_marks += 1
            file.delete_marked(position)
    is_seam = file.path.parent == root / FEATURES and file.path.name in SEAMS
    is_tests = file.path == root / ENGINE / "tests" / "mod.rs"
    use = rf"^[ \t]*(?:pub(?:\([^)]*\))?\s+)?use\s[^;]*\bfeatures::{name}\b"
    if is_seam:
        deletion.n_hooks += file.delete_calls(name)
    pattern = rf"\b{name}\b" if is_seam else rf"\bmod {name}\b|{use}" if is_tests else use
    for match in re.finditer(pattern, file.masked, re.MULTILINE):
        start = start_of(file.masked, match.end())
        if not file.is_deleted(start):
            file.delete_at(start)
            deletion.n_hooks += is_seam
            deletion.n_uses += not is_seam
    file.save()
    if file.path.name == "mod.rs" and file.path.parent in {root / ENGINE, root / FEATURES}:
        _delete_from_tables(file.path, name)
    return file.modules


def _delete_bench(manifest: Path, name: str) -> None:
    """Deletes the declaration of a feature's benchmark from the manifest."""
    if manifest.exists():
        text = manifest.read_text(encoding="utf-8")
        text = re.sub(rf'^\[\[bench\]\]\nname = "{name}"\n(?:.+\n)*\n?', "", text, flags=re.MULTILINE)
        manifest.write_text(text, encoding="utf-8")


def _delete_from_tables(path: Path, name: str) -> None:
    """Deletes a feature from the tables in the documentation of a module."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(rf"^//! \| `{name}` \|.*\n", "", text, flags=re.MULTILINE)
    path.write_text(re.sub(rf"`features/{name}(?:/\w+)*` ", "", text), encoding="utf-8")


def copy(root: Path, into: Path) -> None:
    """Copies what cargo needs of the tree at `root`. The files are new, so that cargo takes no earlier copy's build for fresh."""
    into.mkdir(parents=True, exist_ok=True)
    for name in NEEDED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, into / name, copy_function=shutil.copy, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, into / name)


def check(root: Path, *, with_tests: bool) -> bool:
    """Compiles the crate at `root` and its tests, without llama.cpp, and runs those of the engine. Returns whether that succeeds.

    What only the deleted feature used is left, and no error: cargo's warnings about it are counted.
    """
    crate = ["--locked", "--no-default-features", "--lib"]
    commands = [["check", *crate], ["test", *crate, "engine::"] if with_tests else ["check", *crate, "--profile", "test"]]
    environment = {**os.environ, "CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))}
    for command in commands:
        done = subprocess.run(
            ["cargo", *command],
            cwd=root,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            sys.stdout.write(done.stdout)
            return False
        results = re.findall(r"^(?:warning: `weft`.*generated \d+ warnings|test result: .*)", done.stdout, flags=re.MULTILINE)
        sys.stdout.write("".join(f"    {line}\n" for line in results))
    return True


def summary(name: str, deletion: Deletion) -> str:
    """Describes a deletion in a line."""
    counts = f"{deletion.n_hooks:3} hooks, {deletion.n_uses:2} uses, {deletion.n_marks:2} marks"
    return f"{name:16} {counts}; files: {', '.join(deletion.files)}\n"


def main(arguments: Sequence[str]) -> int:
    """Deletes features in copies of the tree. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to copy")
    parser.add_argument("--feature", action="append", help="a feature to delete; may be given several times")
    parser.add_argument("--together", action="store_true", help="deletes all of the features in one copy")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="prints what goes with each feature")
    action.add_argument("--into", type=Path, help="keeps the copy in this folder, without all of the features")
    action.add_argument("--check", action="store_true", help="compiles a copy without each of the features")
    action.add_argument("--test", action="store_true", help="compiles it, and runs the tests of the engine")
    options = parser.parse_args(arguments)
    names = options.feature or features(options.root)
    if unknown := set(names) - set(features(options.root)):
        parser.error(f"{', '.join(sorted(unknown))} is no feature; there are {', '.join(features(options.root))}")
    if options.into:
        copy(options.root, options.into)
        for name in names:
            sys.stdout.write(summary(name, delete(options.into, name)))
        return 0
    failed: list[str] = []
    for group in [names] if options.together else [[name] for name in names]:
        with tempfile.TemporaryDirectory() as folder:
            copy(options.root, Path(folder))
            for name in group:
                sys.stdout.write(summary(name, delete(Path(folder), name)))
            sys.stdout.flush()
            if (options.check or options.test) and not check(Path(folder), with_tests=options.test):
                failed += group
    if failed:
        sys.stderr.write(f"The crate does not compile, or its tests fail, without {', '.join(failed)}.\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
