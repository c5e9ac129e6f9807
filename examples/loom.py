"""Write a story as a tree in the terminal: extend it, and move in it with the arrow keys.

Prints each screen; with `--demo`, those of some keys. Without it, needs prompt_toolkit. `-m FILE` loads another model.
"""

import asyncio
import sys
from argparse import ArgumentParser
from contextlib import suppress

import weft

KEYS = "arrows: go   g: grow 4   a: append   e: edit   d: drop   p: pin   s: save   q: quit"
DEMO = [("g", ""), ("right", ""), ("g", ""), ("down", ""), ("e", "3 and far away"), ("g", ""), ("p", ""), ("left", "")]
PROMPT = "Once upon a time, there was a fox who lived in a forest."


class Loom:
    """A tree, and the current node."""

    def __init__(self, tree: weft.Tree) -> None:
        self.tree, self.at, self.status = tree, tree.root, ""

    def screen(self) -> str:
        """Returns the text up to the current node, its continuations, and the tokens computed."""
        tree = self.tree
        n_computed = tree.n_computed + tree.n_predicted
        marks = [f"node {self.at.id}, depth {self.at.depth}", "pinned" if self.at.is_pinned else "", self.status]
        children = [f"  {child.id}: {child.text[:90]!r}" for child in self.at.children] or ["  (no continuation: press g)"]
        cost = f"{len(tree)} nodes, tokens computed: {n_computed}, tokens used: {n_computed + tree.n_cached}"
        return "\n".join([self.at.path_text, "", " · ".join(filter(None, marks)), *children, "", cost, KEYS])

    def sibling(self, step: int) -> weft.Node:
        """Returns the sibling `step` positions further."""
        if self.at.parent is None:
            return self.at
        siblings = self.at.parent.children
        return siblings[(siblings.index(self.at) + step) % len(siblings)]

    async def press(self, key: str, text: str = "") -> None:
        """Handles a key; `text` is its argument."""
        self.status = ""
        try:
            match key:
                case "left":
                    self.at = self.at.parent or self.at
                case "right":
                    self.at = self.at.children[0] if self.at.children else self.at
                case "up" | "down":
                    self.at = self.sibling(-1 if key == "up" else 1)
                case "g":
                    grown = await self.at.extend(n=4, max_tokens=24)
                    n_cached = sum(node.usage.n_cached for node in grown if node.usage is not None)
                    self.status = f"grown; {n_cached} tokens came from the cache"
                case "a":
                    self.at = self.at.append(text)
                case "e":
                    at, _, new = text.partition(" ")
                    self.at = self.at.edit(int(at), " " + new)
                case "d":
                    dropped, parent = self.at, self.at.parent
                    dropped.drop()
                    self.at = parent or self.at
                case "p":
                    await (self.at.unpin() if self.at.is_pinned else self.at.pin())
                case "s":
                    await self.tree.save(text)
                    self.status = f"saved to {text}"
        except (weft.WeftError, ValueError, OSError) as error:
            self.status = str(error)


ASKED = {"a": "append: ", "e": "edit, as `TOKENS_KEPT TEXT`: ", "s": "save to: "}


async def show(loom: Loom) -> None:
    """Handles keys until `q`."""
    try:
        from prompt_toolkit import Application, PromptSession  # noqa: PLC0415 (`--demo` does without)
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent  # noqa: PLC0415
        from prompt_toolkit.layout import FormattedTextControl, Layout, Window  # noqa: PLC0415
    except ImportError:
        sys.exit("the loom needs prompt_toolkit: pip install prompt_toolkit (--demo runs without it)")
    keys = KeyBindings()

    async def pressed(event: KeyPressEvent) -> None:
        [press] = event.key_sequence
        key = str(getattr(press.key, "value", press.key))
        if key == "q" or key in ASKED:
            event.app.exit(result=key)
            return
        if key == "g":
            loom.status = "growing …"
            event.app.invalidate()
        await loom.press(key)
        event.app.invalidate()

    for name in ("left", "right", "up", "down", "g", "d", "p", "q", *ASKED):
        keys.add(name)(pressed)
    window = Window(FormattedTextControl(loom.screen), wrap_lines=True)
    while True:
        app: Application[str] = Application(layout=Layout(window), key_bindings=keys, full_screen=True)
        if (key := await app.run_async()) == "q":
            return
        with suppress(KeyboardInterrupt, EOFError):  # Ctrl-C and Ctrl-D cancel the key.
            await loom.press(key, await PromptSession[str]().prompt_async(ASKED[key]))


async def main() -> None:
    """Opens the loom, or runs the demo."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", help="GGUF file (default: the demo model)")
    parser.add_argument("--demo", action="store_true", help="press some keys, print the screens, and end")
    given = parser.parse_args()
    async with weft.Engine(given.model) as engine:
        loom = Loom(weft.Tree(engine, PROMPT))
        for key, text in DEMO if given.demo else []:
            await loom.press(key, text)
            print(f"── {key} {text}".rstrip(), loom.screen(), "", sep="\n")
        if not given.demo:
            await show(loom)


asyncio.run(main())
