#!/usr/bin/env python
"""Writes the stubs of options, `weft/engine_options.pyi` and `weft/request/sampling_options.pyi`, from the structs."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import weft.engine_options
import weft.request.sampling_options

HEAD = """\
# ruff: noqa: PYI021 - The reference is read from here.
# Written by scripts/option_stubs.py.
"""
ROOT = Path(__file__).resolve().parent.parent / "python" / "weft"


class Stub(NamedTuple):
    """One typed dictionary, with the modules and classes whose fields it has."""

    name: str
    doc: str
    structs: Mapping[str, str]
    imports: str


STUBS = {
    "engine_options": Stub(
        "EngineOptions",
        str(weft.engine_options.EngineOptions.__doc__),
        {"config": "EngineConfig"},
        """\
import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from weft.config import DraftType, Kernels, KvType, Pooling, RopeScaling
""",
    ),
    "request/sampling_options": Stub(
        "SamplingOptions",
        str(weft.request.sampling_options.SamplingOptions.__doc__),
        {"sampling_fields": "Sampling", "request/sampling": "SamplingParams"},
        """\
from collections.abc import Mapping, Sequence
from typing import TypedDict

from weft.request.reasoning import GrammarTrigger, ReasoningConfig
from weft.request.schema import JsonSchema
""",
    ),
}


def field_types(module: str, struct: str) -> Iterator[tuple[str, str]]:
    """Yields the fields of a struct with their types, as the source has them."""
    for node in _body(module):
        match node:
            case ast.ClassDef(name=name) if name == struct:
                for field in node.body:
                    match field:
                        case ast.AnnAssign(
                            target=ast.Name(id=field_name),
                            annotation=ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple(elts=[kind, *_])),
                        ):
                            yield field_name, _source(kind)


def wider_types(module: str) -> Iterator[tuple[str, str]]:
    """Yields the fields whose types differ from the struct's: the entries of `WIDER_TYPES`, if the module has it."""
    for node in _body(module):
        match node:
            case ast.Assign(targets=[ast.Name("WIDER_TYPES")], value=ast.Dict(keys=keys, values=values)):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant):
                        yield str(key.value), _source(value)


def _body(module: str) -> list[ast.stmt]:
    return ast.parse((ROOT / f"{module}.py").read_text(encoding="utf-8")).body


def _source(kind: ast.expr) -> str:
    return ast.unparse(kind).replace("'", '"')


def stub_text(module: str) -> str:
    """Returns the stub of a module."""
    name, doc, structs, imports = STUBS[module]
    fields = {field: kind for of, struct in structs.items() for field, kind in field_types(of, struct)}
    rows = "".join(f"    {field}: {kind}\n" for field, kind in (fields | dict(wider_types(module))).items())
    return f'{HEAD}\n{imports}\nclass {name}(TypedDict, total=False):\n    """{doc}"""\n\n{rows}'


if __name__ == "__main__":
    for module in STUBS:
        (ROOT / f"{module}.pyi").write_text(stub_text(module), encoding="utf-8")
