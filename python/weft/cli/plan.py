"""`python -m weft plan`: shows the memory that a start with the same flags would use, by part."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from weft._native import MemoryPlan, Model, plan_memory
from weft.config import EngineConfig
from weft.serving.local_engine import model_name, model_path
from weft.settings import Settings
from weft.work import tuning

MIB = 2**20


class Part(msgspec.Struct, frozen=True):
    """Memory of one purpose on one device."""

    name: str
    where: str
    """llama.cpp's name of the buffer type, such as `CPU` or `CUDA0`."""
    n_bytes: int


class Plan(msgspec.Struct, frozen=True):
    """Memory of an engine by part."""

    model: str
    description: str
    n_slots: int
    n_ctx: int
    n_ctx_slot: int
    n_ubatch: int
    compute: str
    """Summary of kernels and threads."""
    parts: tuple[Part, ...]
    """Memory that a start allocates or maps."""
    total_bytes: int
    """Sum of the parts."""
    max_host_cache_bytes: int | None
    """Maximum of the host cache, which grows with use; None is no limit."""
    free_bytes: int
    """Free memory for the KV cache, after the weights are loaded."""


def plan(settings: Settings, *, json: bool = False) -> None:
    """Plans and prints a table, or JSON; raises the errors of `make_plan`."""
    made = make_plan(settings)
    print(msgspec.json.format(msgspec.json.encode(made)).decode() if json else _table(made))


def make_plan(settings: Settings) -> Plan:
    """Plans the memory of an engine; reads the metadata of the model only, and downloads it if it is not local.

    Raises:
        ModelLoadError: The file is not a model that Weft can run.
        InvalidConfigError: Settings contradict each other, or do not fit the model or the memory.
        NotSupportedError: The model is an encoder.
    """
    config = settings.engine
    model = Model.load_sizes(model_path(settings), config)
    tuned = tuning.read(tuning.tune_file(model, tuning.Conditions.of(config))) if config.tuned else None
    planned = plan_memory(model, config, tuned=None if tuned is None else tuned.choice)
    parts = tuple(part for part in _parts(planned, config) if part.n_bytes)
    return Plan(
        model=model_name(settings),
        description=model.description,
        n_slots=planned.n_slots,
        n_ctx=planned.n_ctx,
        n_ctx_slot=planned.n_ctx_slot,
        n_ubatch=planned.n_ubatch,
        compute=planned.summary,
        parts=parts,
        total_bytes=sum(part.n_bytes for part in parts),
        max_host_cache_bytes=planned.max_host_cache_bytes,
        free_bytes=planned.free_bytes,
    )


def _parts(planned: MemoryPlan, config: EngineConfig) -> Iterator[Part]:
    for buffer in planned.buffers:
        name = "weights, mapped" if buffer.is_host and planned.is_mapped else "weights"
        yield Part(name, buffer.name, buffer.weights)
    adapters = sum(Path(path).stat().st_size for path, _ in config.lora)
    yield Part("LoRA adapters", planned.buffers[0].name, adapters)
    if config.mmproj is not None:
        yield Part("projector", planned.buffers[0].name, Path(config.mmproj).stat().st_size)
    caches = [buffer for buffer in planned.buffers if buffer.cache]
    n_bytes = planned.key_bytes + planned.value_bytes
    for buffer in caches:
        if len(caches) > 1 or n_bytes > buffer.cache:
            yield Part("KV cache", buffer.name, buffer.cache)
            continue
        yield Part(f"KV cache: keys, {config.type_k}", buffer.name, planned.key_bytes)
        yield Part(f"KV cache: values, {config.type_v}", buffer.name, planned.value_bytes)
        rest = "KV cache of the draft model" if planned.draft_bytes else "recurrent states"
        yield Part(rest, buffer.name, buffer.cache - n_bytes)
    for buffer in planned.buffers:
        yield Part("compute buffers", buffer.name, buffer.compute)
    yield Part("logits, at most", "host", planned.output_bytes)
    yield Part("draft sampling, at most", "host", planned.draft_bytes)


def _table(made: Plan) -> str:
    each = "" if made.n_ctx_slot == made.n_ctx else f", at most {made.n_ctx_slot:,} for each slot"
    limit = made.max_host_cache_bytes
    rows = [(part.name, part.where, f"{part.n_bytes / MIB:,.1f}") for part in made.parts]
    rows += [("total", "", f"{made.total_bytes / MIB:,.1f}"), ("", "", "")]
    rows += [("host cache, at most", "host", "unlimited" if limit is None else f"{limit / MIB:,.1f}")]
    rows += [("free for the KV cache", "", f"{made.free_bytes / MIB:,.1f}")]
    lines = [f"{name:<28}  {where:<12}  {amount:>10}".rstrip() for name, where, amount in rows]
    return "\n".join(
        [
            f"{made.model}: {made.description}",
            f"{made.n_slots} slots, {made.n_ctx:,} tokens of context{each}",
            f"{made.compute}\n",
            f"{'part':<28}  {'buffer type':<12}  {'MiB':>10}",
            *lines,
        ]
    )
