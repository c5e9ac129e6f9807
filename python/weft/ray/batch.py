"""Offline jobs on Ray Data: completes one prompt per row, on several engines in parallel.

    python -m weft.ray.batch prompts.jsonl answers/ --model model.gguf --replicas 4

Rows are sorted by prompt, so that common prefixes reach the same engine consecutively. Results are written to the folder as they
come, in JSON-lines files; an interrupted job continues with the rows that are not written yet.
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

from weft.config import EngineConfig
from weft.engine import Engine
from weft.engine_options import EngineOptions
from weft.ray.rows import Columns, answered, done_ids, save
from weft.request import RequestOptions

__all__ = ["Progress", "complete", "main"]

BATCH_ROWS = 256
"""Default rows per output file. Slots become idle at the end of each part; an interrupted job loses at most a part per engine."""


class Progress(msgspec.Struct, kw_only=True):
    """Progress of a job."""

    n_rows: int
    """Rows to write when the job started."""
    n_skipped: int
    """Rows that were written before."""
    n_done: int = 0
    """Rows written since, including those with an error."""
    n_failed: int = 0
    """Rows with an error."""
    n_computed: int = 0
    """Prompt tokens that were computed."""
    n_cached: int = 0
    """Prompt tokens that were reused from the cache."""
    n_predicted: int = 0
    """Generated tokens."""
    seconds: float = 0.0
    """Seconds since the job started."""

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
    """Completes all rows, and returns when they are written.

    Args:
        rows: A dataset, or a file or folder of JSON lines. Columns with the name of a field of `RequestOptions`, such as
            `max_tokens`, set that field for their row.
        folder: Output folder, on a disk that all machines share. `weft.ray.rows.saved` reads it.
        model: Path of a GGUF file on every machine; None is the demo model.
        replicas: Number of engines.
        num_cpus: Processors that Ray reserves per engine; also the default of `n_threads`, at least 1.
        num_gpus: GPUs that Ray reserves per engine.
        batch_rows: Maximum rows per call of an engine, and per output file.
        columns: Names of the id and prompt columns; None is `id` and `prompt`.
        options: Request options of all rows.
        on_progress: Called after each output file.
        **engine: Settings of the engines, as for `weft.Engine`.

    Raises:
        InvalidConfigError: A setting is out of range.
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
    # Keeps neighbouring rows together, with at least one part per engine. Done now, since the engines will occupy all processors.
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
    """One engine, which processes batches of Ray Data sequentially."""

    def __init__(self, model: str | None, config: EngineConfig, columns: Columns, common: RequestOptions, folder: str) -> None:
        self._engine = Engine(model, config=config)
        self._columns, self._common, self._folder = columns, common, Path(folder)
        self._runner = asyncio.Runner()
        self._runner.run(self._engine.start())

    def __call__(self, batch: "pa.Table") -> "pa.Table":
        """Writes an output file; returns its counts, as one row."""
        written = self._runner.run(answered(self._engine, batch.to_pylist(), self._columns, self._common))
        save(self._folder, written)
        cost = {
            "n_done": len(written),
            "n_failed": sum(one.error is not None for one in written),
            **{name: sum(getattr(one, name) for one in written) for name in ("n_computed", "n_cached", "n_predicted")},
        }
        return pa.Table.from_pylist([cost])


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 0 if every row was completed, 1 if some failed."""
    parser = argparse.ArgumentParser(prog="python -m weft.ray.batch", description="Completes prompts offline, on Ray Data.")
    parser.add_argument("rows", help="JSON lines with an id and a prompt, or a folder of such files")
    parser.add_argument("folder", help="output folder; an interrupted job continues there")
    parser.add_argument("--model", help="path of a GGUF file (default: the demo model)")
    parser.add_argument("--replicas", type=int, default=1, help="number of engines (default 1)")
    parser.add_argument("--num-cpus", type=float, default=1, help="processors per engine (default 1)")
    parser.add_argument("--num-gpus", type=float, default=0, help="GPUs per engine (default 0)")
    parser.add_argument("--batch-rows", type=int, default=BATCH_ROWS, help=f"maximum rows per output file (default {BATCH_ROWS})")
    parser.add_argument("--options", type=_json, default={}, help="request options of all rows: '{\"max_tokens\": 64}'")
    parser.add_argument("--engine", type=_json, default={}, help="settings of the engines: '{\"n_slots\": 16}'")
    arguments = vars(parser.parse_args(argv))
    engine = arguments.pop("engine")
    progress = complete(**arguments, **engine, on_progress=lambda progress: print(progress, file=sys.stderr))
    print(progress)
    return 1 if progress.n_failed else 0


def _json(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"it is not a JSON object: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
