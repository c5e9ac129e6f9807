"""`python -m weft --cache-list`: the models that were downloaded, in llama.cpp's lines."""

import sys

from weft import hub
from weft.errors import ModelLoadError

__all__ = ["cache_list"]


def cache_list() -> int:
    """Prints them. Returns the exit code: 0, or 1 where nobody knows."""
    try:
        models = hub.cached()
    except ModelLoadError as error:
        print(f"python -m weft: error: {error.reason}", file=sys.stderr)
        return 1
    print(f"number of models in cache: {len(models)}")
    for index, name in enumerate(models, start=1):
        print(f"{index:4}. {name}")
    return 0
