"""Adapter sets of requests: llama-server's list of `{id, scale}`."""

import math
from typing import Any

from weft import InvalidRequestError
from weft.fields.excerpt import excerpt

RIGHT = "it must be a list of objects with the `id` of an adapter and its `scale`, both numbers"


def adapters(lora: Any) -> tuple[tuple[int, float], ...] | None:  # noqa: ANN401 (any JSON)
    """Returns the active adapters with their scales; None (also for an empty list, as in llama-server) uses the server's set.

    As in llama-server, the last entry for an adapter applies, and adapters that are not listed are inactive.

    Raises:
        InvalidRequestError: The value is not such a list.
    """
    if not lora:
        return None
    scales = dict(map(_entry, lora if isinstance(lora, list) else [lora]))
    # Inactive adapters need not be loaded.
    return tuple((adapter, scale) for adapter, scale in scales.items() if scale != 0)


def refuse_adapters(lora: Any) -> None:  # noqa: ANN401 (any JSON)
    """Refuses an adapter set in embedding requests.

    Raises:
        InvalidRequestError: The request has one.
    """
    if lora:
        raise InvalidRequestError(
            "lora", "lora is not supported here: embeddings use the adapters of POST /lora-adapters; leave it out"
        )


def _entry(entry: Any) -> tuple[int, float]:  # noqa: ANN401 (any JSON)
    match entry:
        case {"id": int() as adapter, "scale": int() | float() as scale} if not isinstance(adapter, bool):
            if 0 <= adapter < 2**32 and not isinstance(scale, bool) and math.isfinite(scale):
                return adapter, float(scale)
    raise InvalidRequestError("lora", f"lora has {excerpt(entry)}; {RIGHT}")
