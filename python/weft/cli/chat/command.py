"""`python -m weft chat`: the loop of inputs and answers."""

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import closing

import platformdirs
from rich.console import Console

from weft.cli.chat.display import Reply, show_one, show_several
from weft.cli.chat.pieces import ChatModel, Piece
from weft.cli.chat.prompt import ask, history, read_message
from weft.errors import WeftError
from weft.settings import Settings

MAX_ANSWERS = 16
"""Maximum of `/n`."""

HELP = '''\
/system TEXT  set the system message; without TEXT, remove it
/n N          show N answers to each message, 1 to 16, of which you pick one
/reset        start again, with the same system message
/help         show this help
/quit         end the chat, as Ctrl-D does

A line that ends in \\ continues on the next one; """ begins and ends a message of several lines.
Ctrl-C stops an answer, which stays in the chat as far as it came.'''


def chat(
    settings: Settings,
    *,
    url: str | None = None,
    key: str | None = None,
    served_model: str | None = None,
    system: str | None = None,
) -> None:
    """Chats until the input ends; if the standard input is not a terminal, answers it as one message.

    Args:
        settings: Settings of the model in this process, and of sampling.
        url: Server to use instead of a model in this process.
        key: API key of the server.
        served_model: Model of the server; None is its first one.
        system: System message.

    Raises:
        WeftError: The model cannot be loaded, or did not answer.
    """
    handled = signal.signal(signal.SIGINT, signal.default_int_handler) if sys.stdin.isatty() else None
    try:
        model = _model(settings, url, key, served_model)
        with closing(model):
            if not sys.stdin.isatty():
                _answer_input(model, system)
                return
            path = platformdirs.user_state_path("weft", appauthor=False) / "chat_history"
            with history(path):
                Session(model, Console(highlight=False, markup=False), system).run()
    finally:
        if handled is not None:
            signal.signal(signal.SIGINT, handled)


def _model(settings: Settings, url: str | None, key: str | None, served_model: str | None) -> ChatModel:
    # Only one of them is needed, and the engine is a slow import.
    if url is not None:
        from weft.cli.chat.remote import RemoteModel  # noqa: PLC0415

        return RemoteModel(url, key, served_model, settings)
    from weft.cli.chat.local import LocalModel  # noqa: PLC0415

    return LocalModel(settings)


def _answer_input(model: ChatModel, system: str | None) -> None:
    """Answers the standard input; prints the answer only, without reasoning."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": sys.stdin.read().strip()})
    text = ""
    for piece in model.answer(messages, 1):
        if piece.kind == "content":
            text = piece.text if text else piece.text.lstrip()
            print(text, end="", flush=True)
    print()


class Session:
    """A chat in a terminal.

    Args:
        model: The model.
        console: The terminal.
        system: System message, if any.
    """

    def __init__(self, model: ChatModel, console: Console, system: str | None = None) -> None:
        self._model = model
        self._console = console
        self._system = system
        self._n = 1
        self._messages: list[dict[str, str]] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/n": self._set_n,
            "/reset": self._reset,
            "/help": lambda _: self._note(HELP),
        }

    def run(self) -> None:
        """Reads and answers messages until `/quit` or the end of the input."""
        self._note(f"{self._model.name} (/help shows the commands)")
        while True:
            try:
                text = read_message()
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._console.print()
                self._note("/quit or Ctrl-D ends the chat")
                continue
            command, _, argument = text.strip().partition(" ")
            if command in {"/quit", "/exit"}:
                return
            if (run := self._commands.get(command)) is not None:
                run(argument.strip())
            elif command.startswith("/") and "\n" not in text and "/" not in command[1:]:
                self._note(f"unknown command {command}; /help shows the commands")
            elif text.strip():
                self._answer(text)

    def _note(self, text: str) -> None:
        self._console.print(text, style="dim")

    def _set_system(self, text: str) -> None:
        self._system = text or None
        self._note("system message set" if text else "system message removed")

    def _set_n(self, text: str) -> None:
        if not (text.isdecimal() and 1 <= int(text) <= MAX_ANSWERS):
            self._note(f"/n takes a number from 1 to {MAX_ANSWERS}")
            return
        self._n = int(text)
        self._note(f"{self._n} answers to each message" if self._n > 1 else "one answer to each message")

    def _reset(self, _: str) -> None:
        self._messages.clear()
        self._note("the chat starts again")

    def _answer(self, text: str) -> None:
        """Answers a message. If there is no answer, the message is dropped."""
        message = {"role": "user", "content": text}
        system = [{"role": "system", "content": self._system}] if self._system else []
        pieces = self._model.answer([*system, *self._messages, message], self._n)
        try:
            # Closing the iterator cancels answers that were stopped.
            with closing(pieces):
                replies, is_stopped = self._show(pieces)
        except WeftError as error:
            self._note(f"error: {error}")
            return
        if is_stopped:
            self._note("stopped")
        # A server may ignore `n`.
        written = [reply for reply in replies if reply.content or reply.reasoning]
        reply = self._pick(replies) if len(written) > 1 else next(iter(written), None)
        if reply is not None:
            self._messages += [message, reply.message()]

    def _show(self, pieces: Generator[Piece, None, None]) -> tuple[list[Reply], bool]:
        if self._n > 1:
            return show_several(self._console, pieces, self._n)
        reply, is_stopped = show_one(self._console, pieces)
        return [reply], is_stopped

    def _pick(self, replies: list[Reply]) -> Reply | None:
        """Returns the answer that the user picks; None if the user drops the message with Ctrl-C or Ctrl-D."""
        while True:
            try:
                text = ask(f"continue with 1-{len(replies)} [1]: ").strip() or "1"
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                self._note("the message and its answers are dropped")
                return None
            if text.isdecimal() and 1 <= int(text) <= len(replies):
                return replies[int(text) - 1]
