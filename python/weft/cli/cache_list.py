"""`python -m weft --cache-list`: lists the downloaded models, in llama.cpp's format."""

import sys

from weft import hub
from weft.errors import ModelLoadError

__all__ = ["cache_list"]


def cache_list() -> int:
    """Prints the models. Returns the exit code: 0, or 1 if the list is not available."""
    try:
        models = hub.cached()
    except ModelLoadError as error:
        print(f"python -m weft: error: {error.reason}", file=sys.stderr)
        return 1
    print(f"number of models in cache: {len(models)}")
    for index, name in enumerate(models, start=1):
        print(f"{index:4}. {name}")
    return 0
