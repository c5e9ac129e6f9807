"""The order of samplers, in all supported spellings."""

from collections.abc import Sequence

from weft import InvalidRequestError
from weft.sampling_fields import samplers_of_letters, samplers_of_names

TAIL_FREE = "f"
"""Letter of tail-free sampling in earlier versions of llama.cpp."""


def samplers(given: str | Sequence[str]) -> tuple[str, ...] | None:
    """Returns the names of the samplers, or None to use the server's default.

    A text without `;` is parsed as llama.cpp's letters if possible, else as one name. llama.cpp's current letters lack tail-free
    sampling, so it is added after top-k, as in the default order.

    Raises:
        InvalidRequestError: A name or letter is unknown.
    """
    if not given:
        return None
    try:
        if not isinstance(given, str):
            return samplers_of_names(given)
        if ";" in given:
            return samplers_of_names(name for name in given.split(";") if name.strip())
        return _letters(given)
    except ValueError as error:
        raise InvalidRequestError("samplers", f"samplers: {error}") from None


def _letters(text: str) -> tuple[str, ...]:
    try:
        return samplers_of_letters(text if TAIL_FREE in text else text.replace("k", "k" + TAIL_FREE))
    except ValueError:
        # Sampler names of several words or with other letters cannot be mistaken for letters.
        try:
            return samplers_of_names([text])
        except ValueError:
            return samplers_of_letters(text)
