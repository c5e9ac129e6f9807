#!/usr/bin/env python
"""Draws the pictures of docs/guides/tree.md and caching.md from recordings in docs/recorded; they look the same on every machine.

With `--record`, records texts of the demo model and the contents of an engine's cache first.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

import weft
from weft.server.cache_api import picture, translate
from weft.server.cache_api.schemas import CacheReport

DOCS = Path(__file__).parent.parent / "docs"
TREE, CACHE = DOCS / "recorded" / "tree.json", DOCS / "recorded" / "cache.json"

PROMPT = "Once upon a time, there was a fox who lived in a forest."
OTHER = "Long ago, a whale sang in the sea, and whoever heard it could not sleep. One night"


async def record(engine: weft.Engine) -> None:
    """Writes a tree, and meanwhile what the engine's cache holds."""
    tree = weft.Tree(engine, PROMPT)
    first, second, third = await tree.root.extend(n=3, max_tokens=18, seed=8, ignore_eos=True)
    await first.extend(n=3, max_tokens=16, seed=1)
    await second.append(" But nobody came.").extend(n=2, max_tokens=16, seed=2)
    await third.edit(4, " came from the king.").extend(n=1, max_tokens=16, seed=3)
    await tree.save(TREE)
    prefix = await engine.pin(tree.root.path)
    with_others = engine.stream(OTHER, n=2, max_tokens=500, seed=4, ignore_eos=True)
    async for event in with_others:
        if isinstance(event, weft.Token) and event.n_predicted == 60:
            break
    nodes, n_nodes = await engine.recently_used(9)
    report = translate.report(nodes, n_nodes, engine.stats(), engine.detokenize)
    CACHE.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    with_others.close()
    await engine.unpin(prefix)


async def drawn(engine: weft.Engine) -> dict[Path, str]:
    """The pictures, by their files."""
    tree = await weft.Tree.load(engine, TREE)
    report = msgspec.json.decode(CACHE.read_bytes(), type=CacheReport)
    return {DOCS / "images" / "tree.svg": tree.picture(), DOCS / "images" / "cache.svg": picture.draw(report, "svg").decode()}


async def main() -> None:
    """Records where that is asked for, and draws."""
    async with weft.Engine(n_slots=4, n_ctx=2048, kv_unified=True, n_threads=1) as engine:
        if "--record" in sys.argv[1:]:
            TREE.parent.mkdir(exist_ok=True)
            await record(engine)
        for path, text in (await drawn(engine)).items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
