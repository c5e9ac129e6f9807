"""Exceptions of the package: one class per condition that a caller can handle, with details as attributes.

The compiled engine raises them too. Handle the class and its attributes; message texts may change.
"""

import os
from typing import Literal

__all__ = [
    "AnswerTooLargeError",
    "ContextOverflowError",
    "DecodeError",
    "DriverMissingError",
    "EngineStoppedError",
    "ForkedProcessError",
    "InvalidConfigError",
    "InvalidRequestError",
    "ModelLoadError",
    "NodeDroppedError",
    "NotSupportedError",
    "PinBudgetError",
    "PrefixFileError",
    "PrefixSaveError",
    "QueueFullError",
    "SlowConsumerError",
    "TreeFileError",
    "TreeFullError",
    "WeftError",
    "WorkCancelledError",
]


class WeftError(Exception):
    """Base class of all exceptions of this package. `args` are the attributes, so that exceptions can be pickled."""


class ModelLoadError(WeftError):
    """The file is not a model that Weft can run."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """Path of the model file."""
        self.reason = reason
        """Description of the problem."""
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        return f"cannot load the model {self.path}: {self.reason}"


class _InvalidParameterError(WeftError, ValueError):
    def __init__(self, param: str, message: str) -> None:
        self.param = param
        """Name of the parameter, as the caller spelled it."""
        self.message = message
        """Description of the problem and of valid values."""
        super().__init__(param, message)

    def __str__(self) -> str:
        return self.message


class InvalidConfigError(_InvalidParameterError):
    """A setting of the engine is out of range, or two settings contradict each other."""


class InvalidRequestError(_InvalidParameterError):
    """A field of a request has the wrong type or is out of range."""


class NotSupportedError(WeftError):
    """The model, or the way in which it was loaded, does not support the operation."""

    def __init__(self, message: str) -> None:
        self.message = message
        """Missing feature, and the way to enable it."""
        super().__init__(message)

    def __str__(self) -> str:
        return self.message


class ContextOverflowError(WeftError, ValueError):
    """The prompt alone fills the context of a slot."""

    def __init__(self, n_prompt: int, n_ctx: int, is_least: bool = False) -> None:
        self.n_prompt = n_prompt
        """Prompt length in tokens."""
        self.n_ctx = n_ctx
        """Context of one slot in tokens; a prompt must be shorter."""
        self.is_least = is_least
        """True if `n_prompt` is a lower bound, because the prompt was rejected before all of it was tokenized."""
        super().__init__(n_prompt, n_ctx, is_least)

    @property
    def length(self) -> str:
        """Prompt length as a phrase."""
        return f"{'at least ' * self.is_least}{self.n_prompt} tokens"

    def __str__(self) -> str:
        return f"the prompt of {self.length} does not fit in the context of {self.n_ctx} tokens"


class QueueFullError(WeftError):
    """A queue limit was reached: requests that wait for a slot, tokens, or bytes of media. Retry later."""

    def __init__(self, n_waiting: int, unit: str = "requests") -> None:
        self.n_waiting = n_waiting
        """Amount that is waiting, in `unit`."""
        self.unit = unit
        """Unit of `n_waiting`."""
        super().__init__(n_waiting, unit)

    def __str__(self) -> str:
        return f"the queue is full ({self.n_waiting} {self.unit}); retry later"


class SlowConsumerError(WeftError):
    """The stream was closed because its consumer was too far behind and read nothing for 30 seconds."""

    def __init__(self, n_behind: int, limit: int, unit: Literal["events", "bytes"] = "events") -> None:
        self.n_behind = n_behind
        """Unread amount, in `unit`."""
        self.limit = limit
        """Maximum unread amount, in `unit`."""
        self.unit = unit
        """Unit of both: events (one per token) or their size in bytes."""
        super().__init__(n_behind, limit, unit)

    def __str__(self) -> str:
        return (
            f"the stream was ended because its consumer is {self.n_behind} {self.unit} behind; at most {self.limit} may be unread"
        )


class AnswerTooLargeError(WeftError):
    """A collected answer exceeded the size limit. Its stream was closed."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        """The limit, in bytes."""
        super().__init__(max_bytes)

    def __str__(self) -> str:
        return (
            f"the answer takes more than max_bytes, {self.max_bytes} bytes; ask for fewer tokens, completions or "
            "log-probabilities, set a larger max_bytes, or read the events of stream"
        )


class PrefixFileError(WeftError):
    """The file of a saved prefix is damaged, or does not match this model and cache. Nothing was loaded."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """Path of the prefix file."""
        self.reason = reason
        """Description of the problem."""
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        return f"cannot load the prefix in {self.path}: {self.reason}"


class PrefixSaveError(WeftError):
    """A prefix could not be copied out of the cache."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        """Error of the model's memory."""
        super().__init__(reason)

    def __str__(self) -> str:
        return f"cannot save the prefix: {self.reason}"


class PinBudgetError(WeftError):
    """Pinned prefixes would take more than half of the cache. Unpin another prefix first."""

    def __init__(self, n_bytes: int, n_pinned_bytes: int, limit: int) -> None:
        self.n_bytes = n_bytes
        """Size of the new prefix, in bytes."""
        self.n_pinned_bytes = n_pinned_bytes
        """Total size of the pinned prefixes, in bytes."""
        self.limit = limit
        """Maximum total size of pinned prefixes, in bytes."""
        super().__init__(n_bytes, n_pinned_bytes, limit)

    def __str__(self) -> str:
        return (
            f"cannot pin the prefix of {self.n_bytes} bytes: of at most {self.limit} bytes, {self.n_pinned_bytes} are pinned; "
            f"unpin another prefix"
        )


class NodeDroppedError(WeftError, RuntimeError):
    """A tree node was dropped before or during the operation."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        """Id of the node."""
        super().__init__(node_id)

    def __str__(self) -> str:
        return f"node {self.node_id} was dropped from its tree"


class TreeFullError(WeftError):
    """The tree's limit does not allow another node, or the text being generated. Drop other nodes, or raise the limit."""

    def __init__(self, limit: int, unit: Literal["nodes", "bytes"]) -> None:
        self.limit = limit
        """Maximum of `unit`."""
        self.unit = unit
        """Unit of the limit, `max_nodes` or `max_bytes`."""
        super().__init__(limit, unit)

    def __str__(self) -> str:
        return f"the tree may hold at most {self.limit} {self.unit} (max_{self.unit}); drop nodes, or let it hold more"


class TreeFileError(WeftError):
    """The file is not a saved tree, or is a tree of another model. Nothing was loaded."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """Path of the tree file."""
        self.reason = reason
        """Description of the problem."""
        super().__init__(self.path, reason)

    def __str__(self) -> str:
        return f"cannot load the tree in {self.path}: {self.reason}"


class DecodeError(WeftError):
    """The model could not compute a step, even when retried. Other streams may continue."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        """Error message of the backend."""
        super().__init__(reason)

    def __str__(self) -> str:
        return f"decoding failed: {self.reason}"


class EngineStoppedError(WeftError, RuntimeError):
    """The engine was closed, or its worker died."""

    def __str__(self) -> str:
        return "the engine has stopped"


class WorkCancelledError(WeftError):
    """A long operation was stopped because its caller cancelled it."""

    def __str__(self) -> str:
        return "the operation was cancelled"


class ForkedProcessError(WeftError, RuntimeError):
    """The engine was used in a forked child process, which does not have its threads."""

    def __init__(self, started_in: int, used_in: int) -> None:
        self.started_in = started_in
        """Id of the process that started the engine."""
        self.used_in = used_in
        """Id of the process that used the engine."""
        super().__init__(started_in, used_in)

    def __str__(self) -> str:
        return (
            f"the engine runs in process {self.started_in} and process {self.used_in} was forked from it, which has none of its "
            "threads; start processes with the start method spawn and give each its own engine"
        )


class DriverMissingError(WeftError, ImportError):
    """The installed distribution computes on a GPU, and the GPU's driver is missing."""

    def __init__(self, distribution: str, library: str, advice: str) -> None:
        self.distribution = distribution
        """Name of the distribution, as listed by pip."""
        self.library = library
        """File name of the missing driver library."""
        self.advice = advice
        """Installation advice for the driver."""
        super().__init__(distribution, library, advice)

    def __str__(self) -> str:
        return (
            f"{self.distribution} needs {self.library}, which is not here: {self.advice}; or compute on the CPU: "
            f"`pip uninstall {self.distribution}`, then install the wheel that `make wheel` builds in a checkout"
        )
