"""Weft: one prompt, many completions, over one shared KV cache.

`__init__.pyi` lists the public names. Modules by subject:

| subject | modules |
| --- | --- |
| the engine: its methods, and the same without `await` | `engine`, `embedding` and `work.cache`; `sync_engine` |
| what a request may contain, and settings of the engine | `request`, `sampling_fields`; `config` |
| what a request returns | `events`, `completion`, `branch_stream`, `errors` |
| chats: prompts from messages, messages from generated text | `chat` |
| other uses of an engine | `tree`, `infill`, `scoring` |
| trees of texts in an SQLite file, for Python and for the server | `documents` |
| HTTP: one folder for each API, and the process around it | `server`, `serving`, `settings` |
| the command line | `cli` |
| models by name; engines on other machines | `hub`; `ray` |
| thread pools, tuning, validation, drawings, installation | `work`, `fields`, `drawing`, `installed` |
| the compiled engine (Rust, in `rust/python`) | `_native`, described by `_native.pyi` |

Which thread tokenizes? A prompt of at most `work.threads.LONG_TEXT` characters: the one that calls, usually that of the event
loop. A longer one: a thread named `weft-text` in Python (`Engine.async_tokenize`), or one of `server.executor` in a server.
Chats are rendered and tokenized there too, unless they are short. The worker thread that computes steps receives token ids.

To add an HTTP API (a dialect), read `server`, which also lists where slow clients are detected; to add a tool-call format,
`chat.answer.formats`; to add a setting, `settings`.
"""

from importlib import import_module
from pathlib import Path

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8").splitlines()

_MODULES = {name: module for _, module, _, name, *_ in (line.split() for line in _STUB if line.startswith("from "))}
"""Module of each public name, by the imports of the stub. A module is imported when one of its names is first used:
`python -m weft` imports this package in every process, and processes that only print a version or watch the server need
nothing of the engine."""

__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Returns a public name, importing its module on first use."""
    if (home := _MODULES.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    try:
        module = import_module(home)
    except ImportError as error:
        from weft.installed.driver import missing_driver  # noqa: PLC0415 (needed only where an import fails)

        if (driver := missing_driver()) is not None:
            raise driver from error
        raise
    # Later look-ups find the global without a call.
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    """Returns all names of the package, imported or not."""
    return sorted({*globals(), *__all__})
