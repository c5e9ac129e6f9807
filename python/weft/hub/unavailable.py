"""Why a model cannot be had."""

__all__ = ["Unavailable"]


class Unavailable(Exception):  # noqa: N818 (it says what is so)
    """Why a model that was named cannot be had, in words that follow `cannot load the model …:`."""
