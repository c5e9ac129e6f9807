"""Rows of offline jobs: requests, results and their files. Independent of Ray."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from weft.engine import Engine
from weft.errors import WeftError
from weft.request import RequestOptions
from weft.work.files import write_atomically

OPEN_PER_SLOT = 2
"""Concurrent requests per slot: waiting ones keep the slots busy, and none waits for long."""

PART = "part-*.jsonl"
"""Pattern of the result files in a job's folder; each was written atomically."""


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a row's columns."""

    id: str = "id"
    """Unique id, a string or a number."""
    prompt: str = "prompt"
    """Prompt, a string, by which rows are sorted."""

    def options(self, row: Mapping[str, Any], common: RequestOptions) -> RequestOptions:
        """Returns the request options of a row: the common ones, overridden by its columns."""
        own = {name: value for name, value in row.items() if name in _OPTIONS and value is not None}
        return {**common, **own}  # type: ignore[typeddict-item]  # Checked above.


_OPTIONS = RequestOptions.__optional_keys__


class OutputRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a row; a line of a result file."""

    id: str | int
    texts: list[str] = []
    """Text of each completion."""
    finish_reasons: list[str] = []
    """Finish reason of each completion, as `Finished.finish_reason`."""
    n_computed: int = 0
    """Prompt tokens that were computed, over all completions."""
    n_cached: int = 0
    """Prompt tokens that were reused from the cache, over all completions."""
    n_predicted: int = 0
    """Generated tokens."""
    error: str | None = None
    """Error message, if the request failed. Such rows are retried when the job is run again."""


async def answered(
    engine: Engine, rows: Sequence[Mapping[str, Any]], columns: Columns, common: RequestOptions
) -> list[OutputRow]:
    """Returns the results of rows, in order. Common prefixes of consecutive rows are computed once."""
    turn = asyncio.Semaphore(OPEN_PER_SLOT * engine.limits.n_slots)

    async def one(row: Mapping[str, Any]) -> OutputRow:
        async with turn:
            try:
                answer = await engine.complete(row[columns.prompt], **columns.options(row, common))
            except WeftError as error:
                return OutputRow(id=row[columns.id], error=str(error))
        return OutputRow(
            id=row[columns.id],
            texts=list(answer.texts),
            finish_reasons=[choice.finish_reason for choice in answer.choices],
            n_computed=answer.n_computed,
            n_cached=answer.n_cached,
            n_predicted=answer.n_predicted,
        )

    return list(await asyncio.gather(*map(one, rows)))


def save(folder: Path, written: Sequence[OutputRow]) -> None:
    """Writes a result file atomically, with the same name if the same rows are written again."""
    name = blake2b(msgspec.json.encode([one.id for one in written]), digest_size=16).hexdigest()
    write_atomically(folder / f"part-{name}.jsonl", msgspec.json.Encoder().encode_lines(written))


def saved(folder: Path) -> Iterator[OutputRow]:
    """Yields the result of every row, in no particular order; for a row that was retried, its last result.

    Raises:
        msgspec.ValidationError: A file has other content.
    """
    failed: dict[str | int, OutputRow] = {}
    done: set[str | int] = set()
    read = msgspec.json.Decoder(OutputRow)
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
    """Returns the ids of the rows that were completed without an error."""
    return {one.id for one in saved(folder) if one.error is None}
