"""Griffe extension for the Python reference: documents fields by the texts and bounds in their annotations.

A field is annotated as `Annotated[int, "number of completions", Range(1, 256)]`, or with the text alone. The page shows `int` as
its type, the text, the range and the meaning of None.
"""

import ast
import contextlib
import inspect
import math
from typing import Any

import griffe

from weft.fields.meta import Clamp, FieldMeta, Range, Unset, joined

__all__ = ["FieldTexts"]

CLASSES = {"Clamp": Clamp, "Range": Range, "Unset": Unset}

LARGE = 2**31 - 1
"""Bounds from here on are those of the type, and are not shown."""


DERIVED = {"_of_branch", "_blocking", "_iterated"}
"""Functions that make a method from another one. The page shows its name and docstring, not the call."""


class FieldTexts(griffe.Extension):
    """Replaces `Annotated[…]` by the type, adds the docstring of the field, and hides how derived methods are made."""

    def __init__(self) -> None:
        self._constants: dict[str, Any] = {}
        """Constants of the module being read, which bounds refer to, such as `MAX_SLOTS`."""

    def on_module_instance(self, *, node: Any, **_: object) -> None:  # noqa: ANN401 (a syntax node)
        """Evaluates the module's numeric constants."""
        self._constants = {}
        for statement in getattr(node, "body", ()):
            match statement:
                case ast.Assign(value=ast.Constant(int() | float()) | ast.BinOp() | ast.Tuple()):
                    with contextlib.suppress(NameError):
                        exec(ast.unparse(statement), self._constants)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: object) -> None:  # noqa: ANN401 (a syntax node)
        """Documents one attribute."""
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(function))) if function in DERIVED:
                attr.value = None
                attr.labels.clear()
            case ast.AnnAssign(
                annotation=ast.Subscript(
                    value=ast.Name("Annotated"), slice=ast.Tuple(elts=[_, ast.Constant(str()) as text, *others])
                )
            ):
                names = {"math": math, **CLASSES, **self._constants}
                meta = joined(*(eval(ast.unparse(given), names) for given in (text, *others)))
                assert isinstance(attr.annotation, griffe.ExprSubscript)
                assert isinstance(attr.annotation.slice, griffe.ExprTuple)
                attr.annotation = attr.annotation.slice.elements[0]
                attr.labels.clear()
                attr.docstring = griffe.Docstring(describe(meta), parent=attr)


def describe(meta: FieldMeta) -> str:
    """Returns the docstring of a field."""
    text = inspect.cleandoc(meta.text).rstrip(".")
    sentences = [f"{text[0].upper()}{text[1:]}."]
    low, high = (f"{bound:,.10g}" if abs(bound) < LARGE else "" for bound in (meta.low, meta.high))
    if math.isfinite(meta.above):
        sentences.append(f"Above {meta.above:g}.")
    elif low or high:
        sentences.append(f"Range: {low} to {high}." if low and high else f"Minimum: {low}." if low else f"Maximum: {high}.")
    if meta.unset:
        sentences.append(f"None: {meta.unset}.")
    return " ".join(sentences)
