"""Rows of an offline job: what is asked of each, what was written, and which are done. Nothing here knows Ray."""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from weft.engine import Engine
from weft.errors import WeftError
from weft.request import RequestOptions

__all__ = ["Columns", "Written", "answered", "done_ids", "save", "saved"]

OPEN_PER_SLOT = 2
"""Rows that are asked for at a time, for each slot: those that wait are computed into, and none waits for its turn for long."""

PART = "part-*.jsonl"
"""The files of answers in a job's folder: each was written whole."""


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Which columns of a row are what."""

    id: str = "id"
    """What tells rows apart: a text or a number."""
    prompt: str = "prompt"
    """The prompt, a text: rows are sorted by it."""

    def options(self, row: Mapping[str, Any], common: RequestOptions) -> RequestOptions:
        """What is asked of a row beside its prompt: what is asked of all, and what it has columns for."""
        own = {name: value for name, value in row.items() if name in _OPTIONS and value is not None}
        return {**common, **own}  # type: ignore[typeddict-item]  # As was just seen.


_OPTIONS = RequestOptions.__optional_keys__


class Written(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was written for a row; a line of a part."""

    id: str | int
    texts: list[str] = []
    """The text of each completion."""
    reasons: list[str] = []
    """Why each ended, as `Finished.reason` says it."""
    n_computed: int = 0
    """Prompt tokens that were computed, of all completions."""
    n_cached: int = 0
    """Prompt tokens that were found computed."""
    n_predicted: int = 0
    """Tokens that were drawn."""
    error: str | None = None
    """What went wrong, where nothing was written. Such a row is asked again when the job is."""


async def answered(engine: Engine, rows: Sequence[Mapping[str, Any]], columns: Columns, common: RequestOptions) -> list[Written]:
    """What an engine writes for rows, in their order. Rows that begin alike share what is computed of it."""
    turn = asyncio.Semaphore(OPEN_PER_SLOT * engine.limits.n_slots)

    async def one(row: Mapping[str, Any]) -> Written:
        async with turn:
            try:
                answer = await engine.complete(row[columns.prompt], **columns.options(row, common))
            except WeftError as error:
                return Written(id=row[columns.id], error=str(error))
        return Written(
            id=row[columns.id],
            texts=list(answer.texts),
            reasons=[branch.reason for branch in answer.branches],
            n_computed=answer.n_computed,
            n_cached=answer.n_cached,
            n_predicted=answer.n_predicted,
        )

    return list(await asyncio.gather(*map(one, rows)))


def save(folder: Path, written: Sequence[Written]) -> None:
    """Writes a part: all of it or nothing, and one part however often the same rows are written."""
    name = blake2b(msgspec.json.encode([one.id for one in written]), digest_size=16).hexdigest()
    part = folder / f"part-{name}.jsonl"
    unfinished = folder / f".{part.name}.{os.getpid()}.{time.monotonic_ns()}"
    unfinished.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in written))
    unfinished.replace(part)


def saved(folder: Path) -> Iterator[Written]:
    """Every row that was written, in no order; of one that was tried again after an error, its last answer.

    Raises:
        msgspec.ValidationError: A part holds something else.
    """
    failed: dict[str | int, Written] = {}
    done: set[str | int] = set()
    read = msgspec.json.Decoder(Written)
    for part in sorted(folder.glob(PART)):
        for line in part.read_bytes().splitlines():
            one = read.decode(line)
            if one.error is not None:
                failed[one.id] = one
            elif one.id not in done:
                done.add(one.id)
                yield one
    yield from (one for number, one in failed.items() if number not in done)


def done_ids(folder: Path) -> set[str | int]:
    """The ids of the rows that were written without an error."""
    return {one.id for one in _whole(saved(folder))}


def _whole(written: Iterable[Written]) -> Iterator[Written]:
    return (one for one in written if one.error is None)
