"""Settings of compute threads: affinity, priority and polling."""

import re
from collections.abc import Iterable

from weft.config import MAX_THREADS, EngineConfig
from weft.settings.flags import FlagAlias, field_flags, row
from weft.settings.values import whole

__all__ = ["THREADS"]


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


THREADS = field_flags(
    EngineConfig,
    cpus=row(
        "-C, --cpu-mask MASK",
        parse=_mask,
        join=_both,
        also=(FlagAlias(("-Cr", "--cpu-range"), _range),),
        help="CPU affinity of compute threads, as a hexadecimal mask; -Cr or --cpu-range LO-HI adds a range (default: all"
        " processors that the process may use)",
    ),
    strict_cpu=row("--cpu-strict [0|1]"),
    prio=row("--prio"),
    poll=row("--poll"),
    cpus_batch=row(
        "-Cb, --cpu-mask-batch MASK",
        parse=_mask,
        join=_both,
        also=(FlagAlias(("-Crb", "--cpu-range-batch"), _range),),
        help="affinity of threads that compute prompts; -Crb or --cpu-range-batch LO-HI adds a range (default: as -C)",
    ),
    strict_cpu_batch=row("--cpu-strict-batch [0|1]"),
    prio_batch=row("--prio-batch"),
    poll_batch=row("--poll-batch"),
)
"""Flags of compute threads."""
