"""Formats calls as text for models whose templates do not render them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


def json_call_text(function: Mapping[str, Any]) -> str:
    """Returns a call as a JSON object."""
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": {text}}}'


def json_list_text(functions: Sequence[Mapping[str, Any]]) -> str:
    """Returns calls as a JSON list."""
    return f"[{', '.join(map(json_call_text, functions))}]"


def python_list_text(functions: Sequence[Mapping[str, Any]]) -> str:
    """Returns calls as a list of Python calls with keyword arguments."""
    return f"[{', '.join(map(_python_call, functions))}]"


def _python_call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    values = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
    keywords = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{function['name']}({', '.join(keywords)})"
