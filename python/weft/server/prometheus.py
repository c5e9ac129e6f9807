"""Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format), version 0.0.4.

Written here, because the counters are the engine's: a library would bring a registry of its own, filled with collectors of the
process as soon as it is imported, to print a few dozen lines.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

__all__ = ["CONTENT_TYPE", "Family", "counter", "gauge", "write"]

CONTENT_TYPE = "text/plain; version=0.0.4"


class Family(msgspec.Struct, frozen=True):
    """One metric: a value, or one for each value of its label."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float | Mapping[str, float]
    label: str = ""
    """The label's name, where there are several values."""

    def after(self, before: "Family") -> "Family":
        """The same, counted on from what was counted before; what grows and shrinks is as it is."""
        if self.kind == "gauge":
            return self
        if isinstance(self.value, Mapping) and isinstance(before.value, Mapping):
            return msgspec.structs.replace(self, value={key: value + before.value[key] for key, value in self.value.items()})
        assert isinstance(self.value, float | int), "a metric has labels, or has none"
        assert isinstance(before.value, float | int), "and it was so before"
        return msgspec.structs.replace(self, value=self.value + before.value)


def counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Family:
    """What only grows. Its name ends in `_total`, unless it is one of llama-server's."""
    return Family(name, "counter", about, value, label)


def gauge(name: str, about: str, value: float) -> Family:
    """What grows and shrinks."""
    return Family(name, "gauge", about, value)


def write(families: Iterable[Family]) -> str:
    """The text of all families, in order."""
    return "".join(map(_family, families))


def _family(family: Family) -> str:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family.name} {text}", f"# TYPE {family.name} {family.kind}"]
    if isinstance(family.value, Mapping):
        lines += [f'{family.name}{{{family.label}="{_escape(key)}"}} {_number(value)}' for key, value in family.value.items()]
    else:
        lines.append(f"{family.name} {_number(family.value)}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text := repr(value), text)
