#!/usr/bin/env python
"""Writes the sampling section of docs/reference/request-fields.md from the table of sampling parameters."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weft.sampling_fields import ParameterMeta, Sampling, parameter_meta

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "request-fields.md"

BEGIN = "<!-- made by scripts/field_table.py -->"
END = "<!-- end of what is made -->"

ITS_EFFECT = "engine/test_sampling::test_each_field_changes_what_is_said"

TESTS = {
    "samplers": "engine/test_sampling::test_samplers_may_be_spelt_as_llama_server_spells_them",
    "penalize_nl": "engine/test_sampling::test_newlines_are_penalised_only_where_asked_for",
    "dry_sequence_breakers": "engine/test_sampling::test_a_breaker_ends_a_repetition",
    "ignore_eos": "engine/test_stopping::test_an_ignored_end_token_is_never_drawn",
    "logit_bias": "server/test_llamacpp_completion::test_a_text_in_logit_bias_stands_for_its_tokens",
}
"""Tests of their own; that of the others is `ITS_EFFECT`."""

IN_A_BODY = {
    "samplers": "names in any of llama.cpp's spellings, a list or with `;` between, or its letters",
    "dry_base": "less than 1 is the server's default",
    "logit_bias": "pairs of an id or a text with a number or `false`, or OpenAI's object",
}
"""What a body may say where a request of the engine may not."""


def page(text: str) -> str:
    """The page with the table as it is today."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *_table(), END]) + after


def _table() -> Iterator[str]:
    yield "| field | what it does | values | default | the test of its effect |"
    yield "| --- | --- | --- | --- | --- |"
    defaults = {field.name: field.default for field in msgspec.structs.fields(Sampling)}
    for name, meta in parameter_meta().items():
        text = meta.text + (f"; over HTTP: {IN_A_BODY[name]}" if name in IN_A_BODY else "")
        yield f"| `{name}` | {text} | {_values(meta)} | {_default(defaults[name])} | `{TESTS.get(name, ITS_EFFECT)}` |"


def _values(meta: ParameterMeta) -> str:
    if meta.held is not None:
        return f"{_range(*meta.held)}; past a bound is that bound"
    return f"above {meta.above:g}" if meta.above > -math.inf else _range(meta.low, meta.high)


def _range(low: float, high: float) -> str:
    # The least and the greatest of all numbers of 32 bits are no bounds that anybody meets.
    has_low, has_high = low > -(2**31), high < 2**31 - 1
    if has_low and has_high:
        return f"{low:g} to {high:g}"
    return f"{low:g} or more" if has_low else f"{high:g} or less" if has_high else "any"


def _default(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(f"`{part!r}`".replace("'", "") if part != "\n" else "`\\n`" for part in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
