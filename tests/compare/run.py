"""Asks a llama-server and Weft the same and tells where their answers differ, and why.

    python -m tests.compare.run /path/to/llama-server
    python -m tests.compare.run /path/to/llama-server --only '*/v1/chat/completions*' --values
    python -m tests.compare.run /path/to/llama-server --only '*.jinja' --values

It exits with 1 if an answer differs without a reason in docs/reference/llama-server.md, or if a reason matches no difference.
Both servers get one model and the same flags: the demo model, and two small ones for embeddings. The prompts of llama.cpp's chat
templates are compared too, once `python -m tests.compare.fetch_templates` has fetched them, as `make compare` does.
"""

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from litestar.testing import AsyncTestClient

import weft
from tests.compare.cases import cases
from tests.compare.differences import Difference, differences, matches
from tests.compare.exchange import Answer, Case, ask
from tests.compare.reasons import PAGE, Reason, reason_for, reasons
from tests.compare.servers import LlamaServer, flags, slot_files
from tests.compare.shapes import SHAPES, written
from tests.compare.templates import template_cases, template_files
from tests.server.conftest import answers
from tests.server.live import LiveServer
from weft.cli.main import parse
from weft.demo import DEMO_MODEL
from weft.server import create_app

__all__: list[str] = []

TIMEOUT_S = 60

Pair = tuple[Case, Answer, Answer]


async def _asked(program: Path, among: Sequence[Case], folder: Path) -> list[Pair]:
    """Each case with llama-server's answer and Weft's."""
    pairs: list[Pair] = []
    for name, given in flags(folder).items():
        if not (mine := [case for case in among if case.server == name]):
            continue
        async with AsyncExitStack() as stack:
            files = [slot_files(folder, f"{name}-{side}") if name == "plain" else () for side in ("theirs", "ours")]
            theirs = stack.enter_context(LlamaServer(program, folder / f"llama-{name}.log", *given, *files[0]))
            ours = stack.enter_context(LiveServer(folder / f"weft-{name}.log", *given, *files[1]))
            await theirs.ready()
            await ours.ready()
            them, us = [httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) for server in (theirs, ours)]
            async with them, us:
                pairs += [(case, await ask(them, case), await ask(us, case)) for case in mine]
    return pairs


async def _prompts(program: Path, among: Sequence[Case], folder: Path) -> list[Pair]:
    """Each case of a chat template with both answers. Weft runs in this process, which starts 70 times as fast."""
    pairs: list[Pair] = []
    for file in template_files():
        if not (mine := [case for case in among if case.server == file.name]):
            continue
        given = ("-m", str(DEMO_MODEL), "-np", "1", "-c", "8192", "--jinja", "--chat-template-file", str(file))
        settings, _ = parse([*given, "-t", "1"], {})
        engine = weft.Engine(settings.model, config=settings.engine)
        async with AsyncExitStack() as stack:
            theirs = stack.enter_context(LlamaServer(program, folder / f"llama-{file.stem}.log", *given))
            us = await stack.enter_async_context(AsyncTestClient(create_app(engine, settings)))
            await answers(us, 200)
            try:
                await theirs.ready()
            except AssertionError:
                # Some templates keep llama-server from starting.
                pairs += [(case, Answer(0, {}, "llama-server does not start"), await ask(us, case)) for case in mine]
                continue
            them = await stack.enter_async_context(httpx.AsyncClient(base_url=theirs.url, timeout=TIMEOUT_S))
            pairs += [(case, await ask(them, case), await ask(us, case)) for case in mine]
    return pairs


def _cut(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:160]}…"


def _print(found: Sequence[Difference], *, with_values: bool) -> None:
    """Differences of one place and kind together."""
    groups: defaultdict[tuple[str, str], list[Difference]] = defaultdict(list)
    for difference in found:
        groups[difference.place, difference.kind].append(difference)
    for (place, kind), group in sorted(groups.items()):
        named = list(dict.fromkeys(difference.case for difference in group))
        print(f"  {place} ({kind}): {len(named)} requests, as {named[0]}")
        for difference in group if with_values else group[:1]:
            about = f"{difference.case}: " if with_values else ""
            print(f"      {about}llama-server {_cut(difference.theirs)}, Weft {_cut(difference.ours)}")


def _report(pairs: Sequence[Pair], given: Sequence[Reason], *, is_whole: bool, with_values: bool) -> int:
    explained: defaultdict[Reason, list[Difference]] = defaultdict(list)
    unexplained: list[Difference] = []
    for case, theirs, ours in pairs:
        for difference in differences(case, theirs, ours):
            reason = reason_for(difference, given)
            (unexplained if reason is None else explained[reason]).append(difference)
    for reason in given:
        if found := explained[reason]:
            n_cases = len({difference.case for difference in found})
            print(f"{n_cases:4} requests differ in {', '.join(reason.places)}: {reason.why}")
    # Of some requests nobody knows which reasons they would need.
    unused = [reason for reason in given if not explained[reason]] if is_whole else []
    for reason in unused:
        print(f"nothing differs any more in {', '.join(reason.places)} of {', '.join(reason.requests)}: {reason.why}")
    if unexplained:
        print(f"without a reason in {PAGE.name}:")
        _print(unexplained, with_values=with_values)
    n_differing = len({difference.case for difference in unexplained})
    print(f"{len(pairs)} requests, {n_differing} of which differ without a reason; {len(unused)} reasons are for nothing")
    return 1 if unexplained or unused else 0


def main() -> int:
    """Compares; returns 1 where something differs without a reason."""
    parser = argparse.ArgumentParser(description="Asks a llama-server and Weft the same and tells where their answers differ.")
    parser.add_argument("llama_server", type=Path, help="the program")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="ask requests of such names alone, as '*/infill*'")
    parser.add_argument("--values", action="store_true", help="tell every value that differs, not the first of its kind")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write all answers to a file of JSON")
    parser.add_argument("--shapes", action="store_true", help=f"write what llama-server's answers look like to {SHAPES.name}")
    given = parser.parse_args()
    asked = [case for case in cases() if matches(case.name, given.only)]
    rendered = [case for case in template_cases() if matches(case.name, given.only)]
    if not template_files():
        parser.error("the chat templates are missing; run python -m tests.compare.fetch_templates")
    with TemporaryDirectory() as folder:
        pairs = asyncio.run(_asked(given.llama_server, asked, Path(folder)))
        shapes = written({case.name: theirs for case, theirs, _ in pairs}) if given.shapes and given.only == "*" else None
        pairs += asyncio.run(_prompts(given.llama_server, rendered, Path(folder)))
    if given.keep is not None:
        kept = {case.name: {"llama-server": theirs.__dict__, "weft": ours.__dict__} for case, theirs, ours in pairs}
        given.keep.write_text(json.dumps(kept, ensure_ascii=False, indent=1), encoding="utf-8")
    if shapes is not None:
        SHAPES.write_text(shapes, encoding="utf-8")
    return _report(pairs, reasons(), is_whole=given.only == "*", with_values=given.values)


if __name__ == "__main__":
    sys.exit(main())
