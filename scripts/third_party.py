#!/usr/bin/env python
"""Prints THIRD_PARTY: what the wheels hold beside Weft's own code, and under which licences.

It is made of `cargo metadata`, of the files beside each crate's source, and of those of llama.cpp and of what that brings along.
Crates that only compile (build scripts, procedural macros) or test leave nothing in a wheel. With `--crates` it prints only names
and versions.
"""

# ruff: noqa: T201  (it prints the file)

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
LICENCE_FILE = re.compile(r"(?i)(licen[cs]e|copying|unlicense)")
LLAMA_CPP = "llama-cpp-sys-2"
"""The crate that llama.cpp's sources lie in, under the folder `llama.cpp`."""

INTRODUCTION = """\
What the wheels of Weft hold beside Weft's own code (MIT OR Apache-2.0), and under which licences.

This file is made by scripts/third_party.py. Where a licence is one of several that may be chosen, the text below is that of the
one that is chosen here. The sources of each part are at the address beside its name, in that version and unchanged; those of the
crates under the MPL-2.0 (symphonia) are too. The standard library of Rust is in the wheels as well, under MIT OR Apache-2.0
(https://github.com/rust-lang/rust).
"""


class Part(NamedTuple):
    """Something that is in the wheels, with the text of its licence."""

    name: str
    version: str
    licence: str
    address: str
    text: str


def main() -> None:
    """Prints the file, or the crates."""
    metadata = cargo_metadata()
    crates = list(linked(metadata))
    if "--crates" in sys.argv[1:]:
        print("\n".join(f"{crate['name']} {crate['version']}" for crate in crates))
        return
    [llama_cpp] = [Path(crate["manifest_path"]).parent / "llama.cpp" for crate in crates if crate["name"] == LLAMA_CPP]
    parts = [*map(part_of_crate, crates), *parts_of_llama_cpp(llama_cpp)]
    print(INTRODUCTION)
    for part in parts:
        print(f"{part.name} {part.version}".ljust(35), part.licence.ljust(44), part.address)
    for text, names in by_text(parts):
        print(f"\n{'=' * 80}\n{', '.join(names)}\n{'=' * 80}\n\n{text}")


def cargo_metadata() -> dict[str, Any]:
    """What cargo knows of the locked crates, with Python's features, for every platform."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--offline", "--features", "python"]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    metadata: dict[str, Any] = json.loads(told.stdout)
    return metadata


def linked(metadata: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The crates whose code is in a compiled module, by name."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, waiting = set(), [root]
    while waiting:
        if (crate := waiting.pop()) in found:
            continue
        found.add(crate)
        for needed in nodes[crate]["deps"]:
            is_linked = any(kind["kind"] is None for kind in needed["dep_kinds"])
            kinds = {kind for target in packages[needed["pkg"]]["targets"] for kind in target["kind"]}
            if is_linked and "proc-macro" not in kinds:
                waiting.append(needed["pkg"])
    yield from sorted((packages[crate] for crate in found - {root}), key=lambda crate: (crate["name"], crate["version"]))


def part_of_crate(crate: dict[str, Any]) -> Part:
    """A crate with its licence: the MIT one where it may be chosen, which is the shortest that names the authors."""
    folder = Path(crate["manifest_path"]).parent
    files = sorted((path for path in folder.iterdir() if LICENCE_FILE.match(path.name)), key=lambda path: rank(path.name))
    if files:
        text = tidy(files[0].read_text(encoding="utf-8"))
    elif "Apache-2.0" in crate["license"]:
        text = tidy((ROOT / "LICENSE-APACHE").read_text(encoding="utf-8"))
    else:
        assert crate["license"] == "MIT", f"{crate['name']} comes without its licence, {crate['license']}"
        text = mit(f"Copyright (c) {', '.join(crate['authors']) or 'the authors of ' + crate['name']}")
    return Part(crate["name"], crate["version"], crate["license"], crate["repository"] or crate["homepage"] or "", text)


def rank(file: str) -> tuple[bool, bool, str]:
    """MIT first, then what is not Apache's, which has no place for names."""
    name = file.upper()
    return "MIT" not in name, "APACHE" in name or "A2" in name, name


def parts_of_llama_cpp(folder: Path) -> Iterator[Part]:
    """llama.cpp, and what lies in its folder with a licence of its own."""
    vendor = folder / "vendor"
    crate = f"in {LLAMA_CPP}"
    yield Part("llama.cpp", crate, "MIT", "https://github.com/ggml-org/llama.cpp", read(folder / "LICENSE"))
    httplib = vendor / "cpp-httplib"
    yield Part("cpp-httplib", crate, "MIT", "https://github.com/yhirose/cpp-httplib", read(httplib / "LICENSE"))
    for path in sorted((vendor / "hash").rglob("LICENSE*")):
        yield Part(path.parent.name, crate, "see below", "https://github.com/ggml-org/llama.cpp", read(path))
    sgemm = (folder / "ggml/src/ggml-cpu/llamafile/sgemm.cpp").read_text(encoding="utf-8")
    yield Part("llamafile sgemm", crate, "MIT", "https://github.com/mozilla-ai/llamafile", head(sgemm))
    json_hpp = (vendor / "nlohmann/json.hpp").read_text(encoding="utf-8")
    [held, *_] = re.findall(r"SPDX-FileCopyrightText: (.*)", json_hpp)
    yield Part("nlohmann/json", crate, "MIT", "https://github.com/nlohmann/json", mit(f"Copyright (c) {held}"))
    for name, licence, address in (
        ("miniaudio/miniaudio.h", "Unlicense OR MIT-0", "https://github.com/mackron/miniaudio"),
        ("stb/stb_image.h", "MIT OR Unlicense", "https://github.com/nothings/stb"),
    ):
        text = (vendor / name).read_text(encoding="utf-8")
        yield Part(
            Path(name).name, crate, licence, address, tidy(text[text.rindex("This software is available") :].rstrip("\n */-"))
        )
    subprocess_h = (vendor / "sheredom/subprocess.h").read_text(encoding="utf-8")
    address = "https://github.com/sheredom/subprocess.h"
    begins = subprocess_h.index("This is free and unencumbered")
    text = tidy(subprocess_h[begins : subprocess_h.index("*/", begins)].rstrip())
    yield Part("subprocess.h", crate, "Unlicense", address, text)


def head(source: str) -> str:
    """The comment that a file of C++ begins with."""
    comment = takewhile(lambda line: line.startswith("//"), source.splitlines())
    return tidy("\n".join(line.removeprefix("//").removeprefix(" ") for line in comment))


def mit(copyright_line: str) -> str:
    """The MIT licence as such, which stands in this repository too."""
    ours = read(ROOT / "LICENSE-MIT")
    return re.sub(r"(?m)^Copyright .*$", copyright_line, ours, count=1)


def read(path: Path) -> str:
    """A file's text."""
    return tidy(path.read_text(encoding="utf-8"))


def tidy(text: str) -> str:
    """Without what differs between equal texts."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def by_text(parts: Iterable[Part]) -> list[tuple[str, list[str]]]:
    """Each text once, with those that are under it."""
    names: dict[str, list[str]] = {}
    for part in parts:
        names.setdefault(part.text, []).append(part.name)
    return list(names.items())


if __name__ == "__main__":
    main()
