"""Input of messages in a terminal, with a history that later chats continue."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

MAX_LINES = 1_000
"""Maximum lines of the history file."""

BLOCK = '"""'
"""A line that begins and ends a message of several lines."""

readline: ModuleType | None
try:
    import readline
except ImportError:  # Windows
    readline = None


def read_message(prompt: str = "> ") -> str:
    r'''Reads a message: a line, lines that end in a backslash and the next one, or the lines between two lines of `"""`.

    Raises:
        EOFError: The input has ended.
        KeyboardInterrupt: Ctrl-C.
    '''
    line = input(prompt)
    more = "." * (len(prompt) - 1) + " "
    if line.strip() == BLOCK:
        lines = []
        while (line := input(more)).strip() != BLOCK:
            lines.append(line)
        return "\n".join(lines)
    while line.endswith("\\"):
        line = f"{line[:-1]}\n{input(more)}"
    return line


def ask(question: str) -> str:
    """Reads an answer to a question, which does not become a part of the history.

    Raises:
        EOFError: The input has ended.
        KeyboardInterrupt: Ctrl-C.
    """
    n_lines = 0 if readline is None else readline.get_current_history_length()
    text = input(question)
    if readline is not None and readline.get_current_history_length() > n_lines:
        readline.remove_history_item(n_lines)
    return text


@contextmanager
def history(path: Path) -> Iterator[None]:
    """Loads the history of inputs, and saves it at the end. A file that cannot be read or written is ignored."""
    if readline is None:
        yield
        return
    with suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_history_length(MAX_LINES)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
