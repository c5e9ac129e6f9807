"""`python -m weft bench`: measures prefill and decode in tokens per second, for several numbers of concurrent streams."""

import asyncio
import dataclasses
import random
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from weft.engine import Engine
from weft.events import Token
from weft.request import Request
from weft.serving.local_engine import model_name, new_engine
from weft.settings import Settings

STREAMS = (1, 8, 32)
"""Default numbers of concurrent streams."""

N_PROMPT = 512
"""Default maximum tokens of a prompt."""

N_DECODE = 64
"""Default tokens that each stream generates."""

N_SPARE = 16
"""Cells of each stream beyond its tokens, for the rounding of sizes."""


class Result(msgspec.Struct, frozen=True):
    """One measurement."""

    streams: int
    prompts: Literal["own", "shared"]
    """Each stream has its own prompt, or all continue the same one."""
    n_prompt: int
    """Prompt tokens of all streams together."""
    n_computed: int
    """Computed prompt tokens: all of them, or one prompt if it is shared."""
    prefill_s: float
    """Seconds from the first request until every stream has a token."""
    n_decoded: int
    """Tokens that were generated while all streams were running."""
    decode_s: float
    """Seconds in which they were generated."""

    prefill_tokens_per_s: float
    """Prompt tokens of all streams per second."""
    decode_tokens_per_s: float
    """Generated tokens of all streams per second."""


class Report(msgspec.Struct, frozen=True):
    """All measurements of a model."""

    model: str
    description: str
    size_bytes: int
    compute: str
    """Summary of kernels and threads."""
    n_ctx: int
    prompt_tokens: int
    """Tokens of each prompt."""
    decode_tokens: int
    """Tokens that each stream generates."""
    results: list[Result]


def bench(
    settings: Settings,
    *,
    streams: Sequence[int] = STREAMS,
    n_prompt: int | None = None,
    n_decode: int = N_DECODE,
    json: bool = False,
) -> None:
    """Measures and prints a table, or JSON.

    Args:
        settings: Settings of the engine. Without a size of the context, it has room for all streams.
        streams: Numbers of concurrent streams.
        n_prompt: Tokens of each prompt; None is 512, or what fits.
        n_decode: Tokens that each stream generates.
        json: True to print JSON.

    Raises:
        WeftError: The model cannot be loaded, or the prompts do not fit.
    """
    report = asyncio.run(_bench(settings, streams, n_prompt, n_decode, is_quiet=json))
    if json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())


async def _bench(settings: Settings, streams: Sequence[int], n_prompt: int | None, n_decode: int, *, is_quiet: bool) -> Report:
    n_max = max(streams)
    changes: dict[str, object] = {"kv_unified": True, "n_slots": max(n_max, settings.engine.n_slots or 0)}
    if not settings.engine.n_ctx:
        changes["n_ctx"] = n_max * ((n_prompt or N_PROMPT) + n_decode + N_SPARE)
    config = msgspec.structs.replace(settings.engine, **changes)
    async with new_engine(dataclasses.replace(settings, engine=config)) as engine:
        limits, model = engine.limits, engine.model
        n_prompt = n_prompt or max(min(N_PROMPT, min(limits.n_ctx // n_max, limits.n_ctx_slot) - n_decode - N_SPARE), 1)
        results: list[Result] = []
        report = Report(
            model=model_name(settings),
            description=model.description,
            size_bytes=model.size_bytes,
            compute=engine.compute.summary,
            n_ctx=limits.n_ctx,
            prompt_tokens=n_prompt,
            decode_tokens=n_decode,
            results=results,
        )
        if not is_quiet:
            print(f"{report.model}: {report.description}, {report.size_bytes / 2**20:,.0f} MiB\n{report.compute}")
            print(f"prompts of {n_prompt} tokens, {n_decode} generated tokens of each stream\n")
            print(HEAD, flush=True)
        await measure(engine, 1, "own", n_prompt=min(n_prompt, 64), n_decode=2)
        for n_streams in streams:
            for prompts in ("own", "shared") if n_streams > 1 else ("own",):
                results.append(await measure(engine, n_streams, prompts, n_prompt=n_prompt, n_decode=n_decode))
                if not is_quiet:
                    print(_line(results[-1]), flush=True)
    return report


async def measure(engine: Engine, n_streams: int, prompts: Literal["own", "shared"], *, n_prompt: int, n_decode: int) -> Result:
    """Measures `n_streams` concurrent streams: first their prompts, then their decodes after the cached prompts.

    Raises:
        WeftError: Any error of `Engine.generate`, such as prompts that do not fit.
    """
    n_prompts = n_streams if prompts == "own" else 1
    tokens = [_random_tokens(engine, n_prompt) for _ in range(n_prompts)]
    n_computed = engine.stats().n_computed
    started = time.perf_counter()
    await _run(engine, tokens, n_streams // n_prompts, 1)
    prefill_s = time.perf_counter() - started
    n_computed = engine.stats().n_computed - n_computed
    started = time.perf_counter()
    times = await _run(engine, tokens, n_streams // n_prompts, n_decode)
    # From the first token of the last stream to the end of the first stream, all of them decode.
    start, end = max(each[0] for each in times), min(each[-1] for each in times)
    n_decoded = sum(start < when <= end for each in times for when in each)
    if n_decoded == 0:
        # A stream ended before another one began, or all tokens arrived at the same time: count everything.
        start, end, n_decoded = started, max(each[-1] for each in times), sum(map(len, times))
    decode_s = end - start
    n_prompt *= n_streams
    rates = round(n_prompt / prefill_s, 1), round(n_decoded / decode_s, 1)
    return Result(n_streams, prompts, n_prompt, n_computed, prefill_s, n_decoded, decode_s, *rates)


async def _run(engine: Engine, prompts: Sequence[Sequence[int]], n: int, n_tokens: int) -> list[list[float]]:
    """Generates `n` completions of `n_tokens` tokens for each prompt, concurrently. Returns the times of the tokens of each."""

    async def run(prompt: Sequence[int]) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in range(n)]
        stream = engine.stream(Request(prompt=prompt, n=n, max_tokens=n_tokens, ignore_eos=True, seed=1))
        while events := await stream.next_batch():
            now = time.perf_counter()
            for event in events:
                if isinstance(event, Token):
                    times[event.index].append(now)
        return times

    return [times for each in await asyncio.gather(*map(run, prompts)) for times in each]


def _random_tokens(engine: Engine, n: int) -> list[int]:
    """Returns `n` tokens that are text, which no earlier prompt began with."""
    control = set(engine.model.control_tokens())
    tokens: list[int] = []
    while len(tokens) < n:
        token = random.randrange(engine.model.n_vocab)
        if token not in control:
            tokens.append(token)
    return tokens


HEAD = (
    f"{'':>7}  {'':<7}  {'prefill':>10}  {'decode':>10}  {'per stream':>10}\n"
    f"{'streams':>7}  {'prompts':<7}  {'tokens/s':>10}  {'tokens/s':>10}  {'tokens/s':>10}"
)


def _line(result: Result) -> str:
    decode = result.decode_tokens_per_s
    rates = f"{result.prefill_tokens_per_s:>10,.0f}  {decode:>10,.1f}  {decode / result.streams:>10,.1f}"
    return f"{result.streams:>7}  {result.prompts:<7}  {rates}"
