"""Prometheus text format (https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format), version 0.0.4.

No client library is used: the counters belong to the engine, and a library would add its own registry and process collectors.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

__all__ = ["CONTENT_TYPE", "Family", "counter", "gauge", "write"]

CONTENT_TYPE = "text/plain; version=0.0.4"


class Family(msgspec.Struct, frozen=True):
    """A metric with one value, or one for each value of its label."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float | Mapping[str, float]
    label: str = ""
    """Name of the label if there are several values."""

    def after(self, before: "Family") -> "Family":
        """Returns the metric with the counts of `before` added. Gauges are returned unchanged."""
        if self.kind == "gauge":
            return self
        if isinstance(self.value, Mapping) and isinstance(before.value, Mapping):
            return msgspec.structs.replace(self, value={key: value + before.value[key] for key, value in self.value.items()})
        assert isinstance(self.value, float | int), "a metric has labels, or has none"
        assert isinstance(before.value, float | int), "and it was so before"
        return msgspec.structs.replace(self, value=self.value + before.value)


def counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Family:
    """Returns a counter. Its name ends in `_total`, except for those named after llama-server's."""
    return Family(name, "counter", about, value, label)


def gauge(name: str, about: str, value: float) -> Family:
    """Returns a gauge."""
    return Family(name, "gauge", about, value)


def write(families: Iterable[Family]) -> str:
    """Returns the exposition text of all metrics, in order."""
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
