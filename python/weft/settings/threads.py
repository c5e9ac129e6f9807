"""Settings of compute threads: affinity, priority and polling."""

import re
from collections.abc import Iterable, Mapping

from weft.config import MAX_THREADS, EngineConfig
from weft.settings.flags import Flag, FlagAlias, row
from weft.settings.values import boolean, whole, within

__all__ = ["THREADS"]

GROUP = "threads"


def _mask(text: str) -> tuple[int, ...]:
    digits = text.removeprefix("0x")
    if not re.fullmatch(rf"[0-9a-fA-F]{{1,{MAX_THREADS // 4}}}", digits):
        raise ValueError(f"{text!r} is not a mask of at most {MAX_THREADS // 4} hexadecimal digits")
    if not (mask := int(digits, 16)):
        raise ValueError(f"{text!r} leaves no processor")
    return tuple(cpu for cpu in range(MAX_THREADS) if mask >> cpu & 1)


def _range(text: str) -> tuple[int, ...]:
    """Parses llama-server's ranges; either end may be left out."""
    if (match := re.fullmatch(r"\s*([0-9]*)-([0-9]*)\s*", text)) is None:
        raise ValueError(f"{text!r} is not a range of processors, as 0-3")
    cpu = whole(0, MAX_THREADS - 1)
    first, last = cpu(match[1] or "0"), cpu(match[2] or str(MAX_THREADS - 1))
    if first > last:
        raise ValueError(f"{text!r} ends before it begins")
    return tuple(range(first, last + 1))


def _both(first: Iterable[int], second: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*first, *second}))


def _prio(text: str) -> int:
    return within(EngineConfig, "prio")(text)


def _poll(text: str) -> int:
    return within(EngineConfig, "poll")(text)


THREADS: Mapping[str, Flag] = {
    "cpus": row(
        GROUP,
        "-C",
        "--cpu-mask",
        metavar="MASK",
        parse=_mask,
        join=_both,
        also=(FlagAlias(("-Cr", "--cpu-range"), _range),),
        help="CPU affinity of compute threads, as a hexadecimal mask; -Cr or --cpu-range LO-HI adds a range (default: all "
        "processors"
        " that the process may use)",
    ),
    "strict_cpu": row(
        GROUP,
        "--cpu-strict",
        metavar="[0|1]",
        parse=boolean,
        help="pin each thread to one of those processors, round-robin (default: 0, only if there are as many as threads)",
    ),
    "prio": row(
        GROUP,
        "--prio",
        parse=_prio,
        help="thread scheduling priority: -1 low, 0 normal, 1 medium, 2 high, 3 realtime; above 0 requires permission, such as"
        " CAP_SYS_NICE (default: 0)",
    ),
    "poll": row(
        GROUP,
        "--poll",
        parse=_poll,
        help="busy-waiting of idle threads before they sleep, 0 to 100 (default: 1, a few milliseconds)",
    ),
    "cpus_batch": row(
        GROUP,
        "-Cb",
        "--cpu-mask-batch",
        metavar="MASK",
        parse=_mask,
        join=_both,
        also=(FlagAlias(("-Crb", "--cpu-range-batch"), _range),),
        help="affinity of threads that compute prompts; -Crb or --cpu-range-batch LO-HI adds a range (default: as -C)",
    ),
    "strict_cpu_batch": row(
        GROUP,
        "--cpu-strict-batch",
        metavar="[0|1]",
        parse=boolean,
        help="--cpu-strict of threads that compute prompts (default: as --cpu-strict)",
    ),
    "prio_batch": row(
        GROUP,
        "--prio-batch",
        parse=_prio,
        help="--prio of threads that compute prompts (default: as --prio)",
    ),
    "poll_batch": row(
        GROUP,
        "--poll-batch",
        parse=_poll,
        help="--poll of threads that compute prompts (default: as --poll)",
    ),
}
"""Fields of `EngineConfig` about compute threads."""
