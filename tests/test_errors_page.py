"""The page of errors lists every message of the error modules and of a start, and no other."""

import re
from itertools import chain
from pathlib import Path

import pytest

from tests.error_messages import normalized, of_classes, of_functions, of_lists, of_rust, of_variants, raised, returned
from weft import errors as package_errors
from weft.server import errors as server_errors

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
SPAN = re.compile(r"(?<!`)(`+)(?!`)([^\n]+?)(?<!`)\1(?!`)")
"""A span of code, between single backticks, or between double ones if it has backticks."""


def spans(text: str) -> set[str]:
    return {normalized(span) for _, span in SPAN.findall(text)}


SECTIONS = PAGE[PAGE.index("## Invalid requests") :]
LISTED = set().union(*(spans(row.split(" | ")[0]) for row in SECTIONS.splitlines() if row.startswith("| `")))
"""Messages: first cells of the tables."""
SHOWN = spans(re.sub(r"^```.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL))
"""Every span of code: reasons stand beside the messages that contain them."""

START_MODULES = (
    "cli/arguments.py",
    "cli/config_file.py",
    "cli/spellings.py",
    "settings",
    "hub",
    "serving",
    "installed/levels.py",
)
START_FILES = [
    *(f"config/{name}.rs" for name in ("limits", "model_config", "overrides", "resolve", "rope", "threads")),
    *(f"llama/model/{name}.rs" for name in ("adapters", "gguf", "kinds", "kv_overrides", "load", "tensor_overrides")),
    *(f"llama/media/{name}.rs" for name in ("chunk", "chunk_ids", "compatibility", "encoder", "mod", "mtmd")),
    "llama/draft/checks.rs",
    "llama/draft/mod.rs",
    "llama/start.rs",
    "llama/vocabulary/mod.rs",
]

SOURCES: dict[str, set[str]] = {
    "errors.py": {text for _, text in of_classes("errors.py")},
    "server/errors.py": {
        *(text for _, text in of_classes("server/errors.py")),
        *of_functions("server/errors.py", {"_overflow", "_too_large", "_describe_field", "_remedy"}),
        "internal error",
    },
    "error.rs": set(of_variants()),
    "config.py": set(raised("config.py")),
    "the start": {*chain.from_iterable(map(raised, START_MODULES)), *of_lists("settings")},
    "downloads": {
        *returned("hub/failure.py", "reason"),
        *returned("hub/failure.py", "not_cached"),
        *returned("hub/docker.py", "_reason"),
        *returned("hub/choice.py", "_listing"),
    },
} | {file: set(of_rust(file)) for file in START_FILES}

INTERNAL = {
    "the prompt of {} tokens does not fit in the context of {} tokens",  # Python words the length itself.
    "failed to apply lora adapter:",  # Removed from messages of llama.cpp.
}
"""Texts in the sources that no user sees."""


@pytest.mark.parametrize("source", SOURCES)
def test_every_message_is_on_the_page(source: str) -> None:
    assert SOURCES[source]
    assert SOURCES[source] - INTERNAL - SHOWN == set()


ELSEWHERE = {
    *raised("server"),  # Reasons of 404 and 429.
    *raised("work/cache.py"),
    *raised("documents"),
    *returned("server/documents_api/availability.py", "off_reason"),
    *of_rust("llama/context/mod.rs"),
    *of_rust("llama/context/params.rs"),
    *of_rust("llama/context/raw_context.rs"),
    *of_rust("llama/mod.rs"),
    "cannot listen on {}: {}",
    "cannot log to {}: {}",
    "the server process died",
    "{}; {} leaves it to the model",
    "{} characters and tokens of text are waiting",
    "{} bytes of images and audio are waiting",
    "{} DNS lookups are waiting",
}
"""Further messages that the page lists."""


def test_the_page_lists_no_other_message() -> None:
    assert LISTED - set().union(*SOURCES.values()) - ELSEWHERE == set()


@pytest.mark.parametrize("name", package_errors.__all__)
def test_every_class_of_the_package_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE or f"[`{name}`]" in PAGE


def test_every_status_of_the_server_is_on_the_page() -> None:
    table = PAGE[PAGE.index("## Status codes") : PAGE.index("## Invalid requests")]
    rows = {
        (int(status), kind)
        for statuses, kind in re.findall(r"^\| ([\d, ]+) \| `(\w+)`", table, re.MULTILINE)
        for status in statuses.split(", ")
    }
    statuses = [row.status for row in server_errors._TABLE.values()]
    statuses += [error.status for error in server_errors.ServerError.__subclasses__()]
    made = {(status, server_errors._TYPES.get(status, "invalid_request_error")) for status in statuses}
    made.add((400, "exceed_context_size_error"))
    assert made - rows == set()
    assert rows - made == {(405, "invalid_request_error"), (413, "invalid_request_error")}, "those of the web framework"
