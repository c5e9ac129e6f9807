"""What can go wrong: one exception per thing that a caller can act on, its numbers as attributes.

The compiled engine raises these too. Look at the class and its attributes, never at the text.
"""

# ruff: noqa: N818 - Most of these are no errors of the program: they say what happened, in the words of the engine.

import os
from typing import Literal

__all__ = [
    "AnswerTooLarge",
    "ContextOverflow",
    "DecodeError",
    "DriverMissing",
    "EngineStopped",
    "ForkedProcess",
    "InvalidConfig",
    "InvalidRequest",
    "ModelLoadError",
    "NodeDropped",
    "NotSupported",
    "PinsFull",
    "PrefixFileError",
    "PrefixSaveError",
    "QueueFull",
    "SlowReader",
    "TreeFileError",
    "TreeFull",
    "WeftError",
    "WorkCancelledError",
]


class WeftError(Exception):
    """Every exception of this package. The arguments are the attributes, so that each can be pickled."""


class ModelLoadError(WeftError):
    """The file is no model that can be run."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """The file that was asked for."""
        self.reason = reason
        """What is wrong with it."""
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        return f"cannot load the model {self.path}: {self.reason}"


class _InvalidParameterError(WeftError, ValueError):
    def __init__(self, param: str, message: str) -> None:
        self.param = param
        """The name of the parameter, as the caller wrote it."""
        self.message = message
        """What was wrong and what would be right."""
        super().__init__(param, message)

    def __str__(self) -> str:
        return self.message


class InvalidConfig(_InvalidParameterError):
    """A setting of the engine is out of range, or two contradict each other."""


class InvalidRequest(_InvalidParameterError):
    """A field of a request has the wrong type or is out of range."""


class NotSupported(WeftError):
    """The model, or the way that it was loaded, cannot do that."""

    def __init__(self, message: str) -> None:
        self.message = message
        """What is lacking, and what would have it."""
        super().__init__(message)

    def __str__(self) -> str:
        return self.message


class ContextOverflow(WeftError, ValueError):
    """The prompt alone fills the context of a slot."""

    def __init__(self, n_prompt: int, n_ctx: int, is_least: bool = False) -> None:
        self.n_prompt = n_prompt
        """The prompt's length in tokens."""
        self.n_ctx = n_ctx
        """The context of one slot in tokens; a prompt must be shorter."""
        self.is_least = is_least
        """Whether the prompt has at least `n_prompt` tokens: it was refused before all of it was tokenized."""
        super().__init__(n_prompt, n_ctx, is_least)

    @property
    def length(self) -> str:
        """The prompt's length in words."""
        return f"{'at least ' * self.is_least}{self.n_prompt} tokens"

    def __str__(self) -> str:
        return f"the prompt of {self.length} does not fit in the context of {self.n_ctx} tokens"


class QueueFull(WeftError):
    """As much waits as may wait: requests for a slot, or bytes of pictures and sounds. Try again later."""

    def __init__(self, n_waiting: int, unit: str = "requests") -> None:
        self.n_waiting = n_waiting
        """How much waits."""
        self.unit = unit
        """Of what."""
        super().__init__(n_waiting, unit)

    def __str__(self) -> str:
        return f"the queue is full ({self.n_waiting} {self.unit}); retry later"


class SlowReader(WeftError):
    """The stream was ended because its reader was too far behind, and read nothing for half a minute."""

    def __init__(self, n_behind: int, limit: int, unit: Literal["events", "bytes"] = "events") -> None:
        self.n_behind = n_behind
        """How much waited to be read, in `unit`."""
        self.limit = limit
        """How much may wait, in `unit`."""
        self.unit = unit
        """What both are counted in: events, one for each token, or the bytes that they take."""
        super().__init__(n_behind, limit, unit)

    def __str__(self) -> str:
        return (
            f"the stream was ended because its consumer is {self.n_behind} {self.unit} behind; at most {self.limit} may be unread"
        )


class AnswerTooLarge(WeftError):
    """A whole answer came to more than is collected. The stream of it was closed."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        """What it may take, in bytes."""
        super().__init__(max_bytes)

    def __str__(self) -> str:
        return (
            f"the answer takes more than max_bytes, {self.max_bytes} bytes; ask for fewer tokens, completions or "
            "log-probabilities, set a larger max_bytes, or read the stream of generate"
        )


class PrefixFileError(WeftError):
    """A file of a saved prefix does not belong to this model and cache, or is damaged. Nothing was loaded."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """The file that was asked for."""
        self.reason = reason
        """What is wrong with it."""
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        return f"cannot load the prefix in {self.path}: {self.reason}"


class PrefixSaveError(WeftError):
    """A prefix could not be copied out of the cache."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        """What the model's memory answered."""
        super().__init__(reason)

    def __str__(self) -> str:
        return f"cannot save the prefix: {self.reason}"


class PinsFull(WeftError):
    """Pinned prefixes would take more than half of the cache. Unpin another one first."""

    def __init__(self, n_bytes: int, n_pinned_bytes: int, limit: int) -> None:
        self.n_bytes = n_bytes
        """Bytes that the prefix would take."""
        self.n_pinned_bytes = n_pinned_bytes
        """Bytes that the pinned prefixes take."""
        self.limit = limit
        """Most bytes of all pinned prefixes."""
        super().__init__(n_bytes, n_pinned_bytes, limit)

    def __str__(self) -> str:
        return (
            f"cannot pin the prefix of {self.n_bytes} bytes: of at most {self.limit} bytes, {self.n_pinned_bytes} are pinned; "
            f"unpin another prefix"
        )


class NodeDropped(WeftError, RuntimeError):
    """A node of a tree was dropped, before something was asked of it or meanwhile."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        """Which one."""
        super().__init__(node_id)

    def __str__(self) -> str:
        return f"node {self.node_id} was dropped from its tree"


class TreeFull(WeftError):
    """A tree has no room for another node, or for what is being written. Drop others first, or make it larger."""

    def __init__(self, limit: int, unit: Literal["nodes", "bytes"]) -> None:
        self.limit = limit
        """How much it may hold, in `unit`."""
        self.unit = unit
        """Of what: `max_nodes` or `max_bytes`."""
        super().__init__(limit, unit)

    def __str__(self) -> str:
        return f"the tree may hold at most {self.limit} {self.unit} (max_{self.unit}); drop nodes, or let it hold more"


class TreeFileError(WeftError):
    """A file is no tree, or a tree of another model. Nothing was loaded."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """The file that was asked for."""
        self.reason = reason
        """What is wrong with it."""
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        return f"cannot load the tree in {self.path}: {self.reason}"


class DecodeError(WeftError):
    """The model could not compute a step, even in a second attempt. Other streams may go on."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        """The backend's error in words."""
        super().__init__(reason)

    def __str__(self) -> str:
        return f"decoding failed: {self.reason}"


class EngineStopped(WeftError, RuntimeError):
    """The engine was closed, or its worker died."""

    def __str__(self) -> str:
        return "the engine has stopped"


class WorkCancelledError(WeftError):
    """Long work was stopped, because the caller that it was for has gone."""

    def __str__(self) -> str:
        return "the operation was cancelled"


class ForkedProcess(WeftError, RuntimeError):
    """The engine was used in a forked child, where its threads do not exist."""

    def __init__(self, started_in: int, used_in: int) -> None:
        self.started_in = started_in
        """Id of the process that started the engine."""
        self.used_in = used_in
        """Id of the process that used it."""
        super().__init__(started_in, used_in)

    def __str__(self) -> str:
        return (
            f"the engine runs in process {self.started_in} and process {self.used_in} was forked from it, which has none of its "
            "threads; start processes with the start method spawn and give each its own engine"
        )


class DriverMissing(WeftError, ImportError):
    """The distribution that is installed computes on a GPU, and the machine lacks the GPU's driver."""

    def __init__(self, distribution: str, library: str, advice: str) -> None:
        self.distribution = distribution
        """Its name, as pip lists it."""
        self.library = library
        """The file of the driver that is not there."""
        self.advice = advice
        """How one comes by it."""
        super().__init__(distribution, library, advice)

    def __str__(self) -> str:
        return (
            f"{self.distribution} needs {self.library}, which is not here: {self.advice}; or compute on the CPU: "
            f"`pip uninstall {self.distribution}`, then install the wheel that `make wheel` builds in a checkout"
        )
