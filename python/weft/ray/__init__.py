"""Scaling across machines: engine replicas on Ray, with prefix-aware routing.

    serve run weft.ray:app model=model.gguf replicas=4

`build` creates the application of Ray Serve, `app` does so for the command line and for `serve deploy` files, and
[`weft.ray.batch`][] runs offline jobs. The routing itself does not depend on Ray.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.ray.application import app, build

__all__ = ["app", "build"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 (one of those above)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from weft.ray import application  # noqa: PLC0415 (routing does not require Ray)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        command = "pip install 'ray[serve,data]>=2.60,<2.61'"
        raise ModuleNotFoundError(f"Ray is not installed; `{command}` installs it", name="ray") from error
    return getattr(application, name)
