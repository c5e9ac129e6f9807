"""Which end of a text may yet become something else."""

__all__ = ["n_begun"]


def n_begun(text: str, *marks: str) -> int:
    """How many characters at the end of a text may begin one of `marks`, of which there is one at least."""
    for n in range(min(max(map(len, marks)) - 1, len(text)), 0, -1):
        tail = text[-n:]
        if any(mark.startswith(tail) for mark in marks):
            return n
    return 0
