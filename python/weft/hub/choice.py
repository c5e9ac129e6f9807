"""Selection of the model's files in a repository, by llama.cpp's rules."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from weft.hub.failure import Unavailable

DEFAULTS = ("Q4_K_M", "Q8_0")
"""Quantizations that are selected if none is given, in this order; then the first file."""

_PROJECTOR = "mmproj"
"""Part of the names of projector files."""

_AUXILIARY = (_PROJECTOR, "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of the names of GGUF files that are not models themselves."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)

_MAX_NAMED = 12
"""Maximum files or quantizations that a message lists."""


def choose(files: Iterable[str], quant: str | None = None, file: str | None = None) -> tuple[str, ...]:
    """Returns the names of the model's files; all parts of a split model, in order.

    Args:
        files: Names of all files, with `/` between folders.
        quant: Quantization, case-insensitive; None is `DEFAULTS`, then the first.
        file: Name of a file, which may be of any type, or any part of a split model. Overrides `quant`.

    Raises:
        Unavailable: There is no such file, or a part is missing.
    """
    names = sorted(files)
    first = _by_name(names, file) if file is not None else _by_quant(names, quant)
    parts = parts_of(first)
    if missing := [part for part in parts if part not in names]:
        raise Unavailable(f"{missing[0]}, a part of the model, is missing")
    return parts


def projector_for(model: str, files: Iterable[str]) -> str | None:
    """Returns the projector of a model file; None if the repository has none.

    Projectors in the same folder are preferred, then those in the nearest parent folder, then those with a similar number of
    bits.
    """

    def rank(name: str) -> tuple[int, int]:
        return -name.count("/"), abs(_bits(name) - _bits(model))

    others = [name for name in sorted(files) if name != model and _is_gguf(name) and _PROJECTOR in name]
    above = PurePosixPath(model).parents
    return min((name for name in others if PurePosixPath(name).parent in above), key=rank, default=None)


def _bits(name: str) -> int:
    """Returns the bits of a quantization as llama.cpp does: the first number in its name, or 0."""
    found = re.search("[0-9]+", quant_of(name) or "")
    return 0 if found is None else int(found[0])


def _by_name(files: list[str], file: str) -> str:
    if file not in files:
        raise Unavailable(f"it has no file {file}; {_listing('its GGUF files are', [name for name in files if _is_gguf(name)])}")
    return file


def _by_quant(files: list[str], quant: str | None) -> str:
    models = [name for name in files if _is_gguf(name) and is_first(name) and not _is_auxiliary(name)]
    if not models:
        raise Unavailable("it has no GGUF file of a model")
    for wanted in DEFAULTS if quant is None else (quant,):
        for name in models:
            if re.search(rf"{re.escape(wanted)}[.-]", name, re.IGNORECASE):
                return name
    if quant is None:
        return models[0]
    quants = dict.fromkeys(found for name in models if (found := quant_of(name)) is not None)
    raise Unavailable(f"it has no {quant}; {_listing('available are', list(quants) or models)}")


def quant_of(name: str) -> str | None:
    """Returns the quantization in a file's name, in capitals; None if it has none."""
    stem = parts[1] if (parts := _PART.fullmatch(name)) else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)
    found = re.search(r"[-.]([A-Za-z0-9_]+)$", stem)
    return found[1].upper() if found is not None else None


def parts_of(name: str) -> tuple[str, ...]:
    """Returns the names of all parts of the model that a file belongs to, in order."""
    if (part := _PART.fullmatch(name)) is None:
        return (name,)
    prefix, _, count = part.groups()
    return tuple(f"{prefix}-{index:05}-of-{count}.gguf" for index in range(1, int(count) + 1))


def is_first(name: str) -> bool:
    """Returns True if a file is a whole model, or the first part of one."""
    return (part := _PART.fullmatch(name)) is None or int(part[2]) == 1


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _is_auxiliary(name: str) -> bool:
    return any(word in name.rpartition("/")[2].lower() for word in _AUXILIARY)


def _listing(what: str, names: list[str]) -> str:
    if not names:
        return "it has no GGUF files"
    return f"{what} {', '.join(names[:_MAX_NAMED])}" + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
