"""Detects an incomplete marker at the end of streamed text."""


def n_partial_mark(text: str, *marks: str) -> int:
    """Returns the length of the longest suffix of a text that is a proper prefix of one of `marks`, which must not be empty."""
    for n in range(min(max(map(len, marks)) - 1, len(text)), 0, -1):
        tail = text[-n:]
        if any(mark.startswith(tail) for mark in marks):
            return n
    return 0
