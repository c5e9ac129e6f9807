"""The order of the samplers, in every way that a body may spell it."""

from collections.abc import Sequence

from weft import InvalidRequest
from weft.sampling_fields import samplers_of_letters, samplers_of_names

__all__ = ["samplers"]

TAIL_FREE = "f"
"""The letter of tail-free sampling, from the time when llama.cpp had it."""


def samplers(given: str | Sequence[str]) -> tuple[str, ...] | None:
    """The names of the samplers; None where nothing is given, so that the server's default holds.

    A text without `;` is read as llama.cpp's letters if it can be, else as one name. llama.cpp's letters of today have none for
    tail-free sampling, so it follows top-k there, as in the default order.

    Raises:
        InvalidRequest: a name or letter is unknown.
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
        raise InvalidRequest("samplers", f"samplers: {error}") from None


def _letters(text: str) -> tuple[str, ...]:
    try:
        return samplers_of_letters(text if TAIL_FREE in text else text.replace("k", "k" + TAIL_FREE))
    except ValueError:
        # A name of more than one word or with a letter of its own: no chain of letters is spelt so.
        try:
            return samplers_of_names([text])
        except ValueError:
            return samplers_of_letters(text)
