"""Rendering of a server's state with rich."""

from collections.abc import Iterator
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.cli.top.state import Cache, Rates, ServerState, Slot
from weft.drawing.figure import cut, readable

BAR = 30
"""Width of the bar of cells, in characters."""

LEAST_ROWS = 3
"""Minimum rows of each table, regardless of the terminal's height."""

N_FRAME_LINES = 12
"""Lines of a page without the rows of its two tables."""

MIB = 2**20


def page(url: str, state: ServerState, rates: Rates, *, height: int, width: int, now: datetime) -> RenderableType:
    """Returns a page with all information that fits in a terminal of this size."""
    n_slots = len(state.slots or ())
    n_rows = max(height - N_FRAME_LINES, 2 * LEAST_ROWS)
    n_prefixes = max(LEAST_ROWS, n_rows - n_slots, n_rows // 2)
    parts: list[RenderableType] = [_head(url, state, now), Text(), *_summary(state, rates), Text()]
    parts += _slots(state.slots, max(LEAST_ROWS, n_rows - n_prefixes))
    parts += [Text(), *_prefixes(state.cache, n_prefixes, width)]
    return Group(*parts)


def unavailable(reason: str, now: datetime) -> RenderableType:
    """Returns a page with the reason why there is no information."""
    return Text(f"weft top · {now:%H:%M:%S}\n\n{readable(reason)}", style="bold")


def _head(url: str, state: ServerState, now: datetime) -> Text:
    properties = state.properties
    model = properties.model_alias or properties.model_path.rpartition("/")[2]
    asleep = " · model unloaded until the next request" if properties.is_sleeping else ""
    return Text.assemble(("weft top", "bold"), f" · {url} · {readable(model)} · {now:%H:%M:%S}{asleep}")


def _summary(state: ServerState, rates: Rates) -> Iterator[Text]:
    slots = state.slots
    if slots is not None:
        n_busy = sum(slot.is_processing for slot in slots)
        queue = "" if state.metrics is None else f"    queue {state.metrics.get('llamacpp:requests_deferred', 0):,.0f}"
        yield Text.assemble("slots   ", (f"{n_busy} of {len(slots)} busy", "bold"), queue)
    cells = _cells(state)
    if cells is not None:
        used, total, idle = cells
        n = round(BAR * used / max(total, 1))
        bar = ("#" * n, "cyan"), ("." * (BAR - n), "dim")
        yield Text.assemble("cells   ", *bar, f" {used:,} of {total:,} ({100 * used / max(total, 1):.0f} %), {idle:,} idle")
    if state.cache is not None:
        host_cache = state.cache.host_cache
        maximum = "" if host_cache.max_bytes is None else f" of {host_cache.max_bytes / MIB:,.0f}"
        yield Text(f"host    {host_cache.n_bytes / MIB:,.1f}{maximum} MiB of host cache, {state.cache.n_nodes:,} nodes")
    if state.metrics is None:
        yield Text("rates   not available: the server was started without --metrics")
        return
    columns = [("generated", rates.generated), ("prompt computed", rates.computed), ("cached", rates.cached)]
    yield Text("tokens  " + "    ".join(f"{name} {_rate(rate)}" for name, rate in columns))
    yield Text(f"hits    {_percent(rates.hit_rate)} of prompt tokens now, {_percent(rates.total_hit_rate)} since the start")


def _cells(state: ServerState) -> tuple[int, int, int] | None:
    if state.metrics is not None:
        used, total, idle = (int(state.metrics.get(f"weft:{name}", 0)) for name in ("cells_used", "cells", "cells_idle"))
        return used, total, idle
    if state.cache is None:
        return None
    return state.cache.cells.used, state.cache.cells.total, state.cache.cells.idle


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}/s" if rate < 100 else f"{rate:,.0f}/s"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"


def _slots(slots: list[Slot] | None, n_rows: int) -> Iterator[RenderableType]:
    if slots is None:
        yield Text("slots   not available: the server was started with --no-slots")
        return
    table = _table("slot", "request", "prompt", "cached", "computed", "generated")
    shown = sorted(slots, key=lambda slot: (not slot.is_processing, slot.id))
    # The last row is used for the number of hidden entries, if there are any.
    n_shown = n_rows if len(shown) <= n_rows else n_rows - 1
    for slot in shown[:n_shown]:
        if slot.is_processing:
            counts = (slot.n_prompt_tokens, slot.n_prompt_tokens_cache, slot.n_prompt_tokens_processed, slot.n_generated)
            table.add_row(str(slot.id), "" if slot.id_task is None else str(slot.id_task), *(f"{count:,}" for count in counts))
        else:
            table.add_row(str(slot.id), "idle", style="dim")
    yield table
    yield from _more(len(shown) - n_shown)


def _prefixes(cache: Cache | None, n_rows: int, width: int) -> Iterator[RenderableType]:
    if cache is None:
        return
    table = _table("hits", "prefix", "tier", "text", to_left=("tier", "text"))
    busiest = cache.busiest
    n_shown = n_rows if len(busiest) <= n_rows else n_rows - 1
    for node in busiest[:n_shown]:
        marks = [node.tier, *(["pinned"] if node.is_pinned else []), *([f"{len(node.slots)} running"] if node.slots else [])]
        table.add_row(
            f"{node.n_hits:,}",
            f"{node.n_prefix:,}",
            ", ".join(marks),
            Text(cut(node.text or "(of another API key)", max(width - 50, 20))),
        )
    yield table
    yield from _more(len(busiest) - n_shown)


def _more(n: int) -> Iterator[Text]:
    if n > 0:
        yield Text(f"… and {n:,} more", style="dim")


def _table(*columns: str, to_left: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold", pad_edge=False)
    for name in columns:
        is_left = name in to_left
        table.add_column(name, justify="left" if is_left else "right", min_width=len(name), no_wrap=True, overflow="ellipsis")
    return table
