"""Options of sampling. `sampling_options.pyi`, which `scripts/option_stubs.py` writes, declares them for type checkers."""

from typing import TypedDict, get_type_hints

from weft.request.sampling import SamplingParams

__all__ = ["SamplingOptions"]

SamplingOptions = TypedDict("SamplingOptions", get_type_hints(SamplingParams), total=False)
SamplingOptions.__doc__ = "Fields of `SamplingParams`, as keywords of `Engine.complete` and options of forks (see `Stream.fork`)."
