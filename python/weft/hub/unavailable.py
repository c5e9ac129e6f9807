"""Error for models that are not available."""

__all__ = ["Unavailable"]


class Unavailable(Exception):  # noqa: N818 (the text is a reason)
    """The reason why a model is not available, phrased to follow `cannot load the model …:`."""
