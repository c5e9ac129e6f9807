"""Display of answers in a terminal: one as it comes, or several next to each other."""

from collections.abc import Iterable
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from weft.cli.chat.pieces import Piece

MIN_COLUMN = 36
"""Minimum width of an answer next to others, in characters; in a narrower terminal they are one below the other."""

_REPLACED = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)
"""Replacements of control characters, which would change the state of the terminal."""


class Reply:
    """Text of one answer so far."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""

    def add(self, piece: Piece) -> None:
        """Appends a piece."""
        if piece.kind == "content":
            self.content += piece.text
        else:
            self.reasoning += piece.text

    def message(self) -> dict[str, str]:
        """Returns the message for the history of the chat."""
        reasoning = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {"role": "assistant", "content": self.content, **reasoning}

    def text(self) -> Text:
        """Returns the text for the terminal, with dimmed reasoning."""
        gap = "\n\n" if self.reasoning and self.content else ""
        return Text.assemble((_visible(self.reasoning.strip()), "dim"), gap, _visible(self.content.strip()))


def _visible(text: str) -> str:
    return text.translate(_REPLACED)


def show_one(console: Console, pieces: Iterable[Piece]) -> tuple[Reply, bool]:
    """Prints an answer as it is generated. Returns the answer, and True if Ctrl-C stopped it."""
    reply, last = Reply(), ""
    is_stopped = False
    try:
        for piece in pieces:
            reply.add(piece)
            if last and piece.kind != last:
                console.print("\n")
            # White space before the first word would only leave a gap.
            text = piece.text if last == piece.kind else piece.text.lstrip()
            last = piece.kind if text else last
            console.print(Text(_visible(text), style="dim" if piece.kind == "reasoning" else ""), end="", soft_wrap=True)
    except KeyboardInterrupt:
        is_stopped = True
    console.print()
    return reply, is_stopped


def show_several(console: Console, pieces: Iterable[Piece], n: int) -> tuple[list[Reply], bool]:
    """Displays `n` answers as they are generated, numbered from 1. Returns them, and True if Ctrl-C stopped them."""
    replies = [Reply() for _ in range(n)]
    is_stopped = False
    with suppress(KeyboardInterrupt), Live(console=console, transient=True, refresh_per_second=10) as live:
        try:
            for piece in pieces:
                replies[piece.answer].add(piece)
                live.update(_all(console, replies, is_cut=True))
        except KeyboardInterrupt:
            is_stopped = True
    console.print(_all(console, replies, is_cut=False))
    return replies, is_stopped


def _all(console: Console, replies: list[Reply], *, is_cut: bool) -> RenderableType:
    """Returns all answers, or the ends of them that fit in the terminal if `is_cut`."""
    n = len(replies)
    is_side_by_side = console.width >= n * MIN_COLUMN
    width = console.width // n if is_side_by_side else console.width
    height = max((console.height - 1) // (1 if is_side_by_side else n) - 2, 1)
    panels = []
    for number, reply in enumerate(replies, start=1):
        text = reply.text()
        if is_cut:
            text = Text("\n").join(text.wrap(console, width - 4)[-height:])
        panels.append(Panel(text, title=str(number), title_align="left"))
    if not is_side_by_side:
        return Group(*panels)
    table = Table.grid(expand=True)
    for _ in panels:
        table.add_column(ratio=1)
    table.add_row(*panels)
    return table
