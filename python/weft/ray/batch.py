"""Offline jobs on Ray Data: a row for each prompt, answered by engines side by side.

    python -m weft.ray.batch prompts.jsonl answers/ --model model.gguf --replicas 4

Rows are sorted by their prompts, so that those that begin alike meet one engine, one after the other. What is written goes into
the folder as it comes, in parts of JSON lines; a job that was stopped goes on with the rows that it has not written.
"""

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pyarrow as pa
import ray
import ray.data

from weft.config import EngineConfig, EngineOptions
from weft.engine import Engine
from weft.ray.rows import Columns, answered, done_ids, save
from weft.request import RequestOptions

__all__ = ["Progress", "complete", "main"]

BATCH_ROWS = 256
"""Most rows of one part. Towards its end fewer slots are busy; a job that is stopped loses less than a part of each engine."""


class Progress(msgspec.Struct, kw_only=True):
    """How far a job is."""

    n_rows: int
    """Rows that were to be written when it began."""
    n_skipped: int
    """Rows that were written before."""
    n_done: int = 0
    """Rows that were written since, those with an error among them."""
    n_failed: int = 0
    """Rows with an error."""
    n_computed: int = 0
    """Prompt tokens that were computed."""
    n_cached: int = 0
    """Prompt tokens that were found computed."""
    n_predicted: int = 0
    """Tokens that were drawn."""
    seconds: float = 0.0
    """Since it began."""

    def __str__(self) -> str:
        shared = self.n_cached / max(self.n_cached + self.n_computed, 1)
        speed = self.n_predicted / max(self.seconds, 1e-9)
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        return f"{self.n_done} of {self.n_rows} rows{failed}, {shared:.0%} of prompts shared, {speed:.0f} tokens/s"


def complete(
    rows: "ray.data.Dataset | str | Path",
    folder: str | Path,
    *,
    model: str | None = None,
    replicas: int = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    batch_rows: int = BATCH_ROWS,
    columns: Columns | None = None,
    options: RequestOptions | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    **engine: Unpack[EngineOptions],
) -> Progress:
    """Answers rows, and waits until all are written.

    Args:
        rows: A dataset, or a file or folder of JSON lines. A column with the name of a field of `RequestOptions`, as
            `max_tokens`, counts for its row.
        folder: Where the answers go: on a disk that every machine sees. `weft.ray.rows.saved` reads them.
        model: The GGUF file, at the same path on every machine; None is the demo model.
        replicas: Engines side by side.
        num_cpus: What Ray reserves for each. Its threads are as many, from 1 on, where `n_threads` does not say otherwise.
        num_gpus: The same of GPUs.
        batch_rows: Most rows that go to an engine at a time, and stand in one part.
        columns: Which columns are the id and the prompt; None is `id` and `prompt`.
        options: What is asked of every row.
        on_progress: Called after each part.
        **engine: Settings of the engines, as `weft.Engine` takes them.

    Raises:
        InvalidConfig: A setting is out of range.
        RayError: The engines could not be started.
    """
    names, common, into = columns or Columns(), options or {}, Path(folder).absolute()
    config = EngineConfig.of(None, {"n_threads": max(int(num_cpus), 1), **engine})
    into.mkdir(parents=True, exist_ok=True)
    data = ray.data.read_json(str(rows), lines=True) if isinstance(rows, str | Path) else rows
    done = done_ids(into)
    if done:
        known = ray.put(done)
        data = data.filter(lambda row: row[names.id] not in ray.get(known))
    data = data.sort(names.prompt).materialize()
    progress = Progress(n_rows=data.count(), n_skipped=len(done))
    if not progress.n_rows:
        return progress
    began = time.monotonic()
    # Neighbours stay together, and every engine has something. Engines would leave no processor for this: it is done before.
    n_parts = max(math.ceil(progress.n_rows / batch_rows), min(replicas, progress.n_rows))
    written = (
        data.repartition(n_parts)
        .materialize()
        .map_batches(
            _Writer,
            fn_constructor_args=(model, config, names, common, str(into)),
            batch_size=None,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=replicas),
            num_cpus=num_cpus,
            num_gpus=num_gpus or None,
        )
    )
    for part in written.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in part.to_pylist():
            for name, n in row.items():
                setattr(progress, name, getattr(progress, name) + n)
        progress.seconds = time.monotonic() - began
        if on_progress is not None:
            on_progress(progress)
    return progress


class _Writer:
    """One engine, which Ray Data gives one batch after the other."""

    def __init__(self, model: str | None, config: EngineConfig, columns: Columns, common: RequestOptions, folder: str) -> None:
        self._engine = Engine(model, config=config)
        self._columns, self._common, self._folder = columns, common, Path(folder)
        self._runner = asyncio.Runner()
        self._runner.run(self._engine.start())

    def __call__(self, batch: "pa.Table") -> "pa.Table":
        """Writes a part; gives what it cost, in one row."""
        written = self._runner.run(answered(self._engine, batch.to_pylist(), self._columns, self._common))
        save(self._folder, written)
        cost = {
            "n_done": len(written),
            "n_failed": sum(one.error is not None for one in written),
            "n_computed": sum(one.n_computed for one in written),
            "n_cached": sum(one.n_cached for one in written),
            "n_predicted": sum(one.n_predicted for one in written),
        }
        return pa.Table.from_pylist([cost])


def main(argv: list[str] | None = None) -> int:
    """The command line: 0 where every row was written, 1 where some failed."""
    parser = argparse.ArgumentParser(prog="python -m weft.ray.batch", description="Answers prompts offline, on Ray Data.")
    parser.add_argument("rows", help="JSON lines with an id and a prompt, or a folder of such files")
    parser.add_argument("folder", help="where the answers go; a job that was stopped goes on there")
    parser.add_argument("--model", help="the GGUF file; without it, the demo model")
    parser.add_argument("--replicas", type=int, default=1, help="engines side by side (default 1)")
    parser.add_argument("--num-cpus", type=float, default=1, help="processors of each (default 1)")
    parser.add_argument("--num-gpus", type=float, default=0, help="GPUs of each (default 0)")
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help=f"most rows of a part (default {BATCH_ROWS})")
    parser.add_argument("--options", type=_json, default={}, help="what is asked of every row: '{\"max_tokens\": 64}'")
    parser.add_argument("--engine", type=_json, default={}, help="settings of the engines: '{\"n_slots\": 16}'")
    asked = parser.parse_args(argv)
    progress = complete(
        asked.rows,
        asked.folder,
        model=asked.model,
        replicas=asked.replicas,
        num_cpus=asked.num_cpus,
        num_gpus=asked.num_gpus,
        batch_rows=asked.batch_rows,
        options=asked.options,
        on_progress=lambda progress: print(progress, file=sys.stderr),
        **asked.engine,
    )
    print(progress)
    return 1 if progress.n_failed else 0


def _json(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"it is no JSON object: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
