"""Numbers in files of other programs, and in sentences about them."""


def number(value: object, default: int) -> int:
    """Returns an integer of JSON, also from a text, as input fields of web pages store it."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else default


def counted(n: int, one: str, several: str) -> str:
    """Returns a number with its noun and verb."""
    return f"{n:,} {one if n == 1 else several}"
