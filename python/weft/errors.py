"""Exceptions of the package: one class per condition that a caller can handle, with details as attributes.

The compiled engine raises them too. Handle the class and its attributes; message texts may change.
"""

import os
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AnswerTooLargeError",
    "ContextOverflowError",
    "DecodeError",
    "DocumentConflictError",
    "DocumentFileError",
    "DocumentNotFoundError",
    "DocumentsBusyError",
    "DocumentsFullError",
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

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())


class _FileError(WeftError):
    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path = os.fspath(path)
        """Path of the file."""
        self.reason = reason
        """Description of the problem."""
        self.__post_init__()


class ModelLoadError(_FileError):
    """The file is not a model that Weft can run."""

    def __str__(self) -> str:
        return f"cannot load the model {self.path}: {self.reason}"


@dataclass(eq=False, repr=False)
class _InvalidParameterError(WeftError, ValueError):
    param: str
    """Name of the parameter, as the caller spelled it."""
    message: str
    """Description of the problem and of valid values."""

    def __str__(self) -> str:
        return self.message


class InvalidConfigError(_InvalidParameterError):
    """A setting of the engine is out of range, or two settings contradict each other."""


class InvalidRequestError(_InvalidParameterError):
    """A field of a request has the wrong type or is out of range."""


@dataclass(eq=False, repr=False)
class NotSupportedError(WeftError):
    """The model, or the way in which it was loaded, does not support the operation."""

    message: str
    """Missing feature, and the way to enable it."""

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False, repr=False)
class ContextOverflowError(WeftError, ValueError):
    """The prompt alone fills the context of a slot."""

    n_prompt: int
    """Prompt length in tokens."""
    n_ctx: int
    """Context of one slot in tokens; a prompt must be shorter."""
    is_least: bool = False
    """True if `n_prompt` is a lower bound, because the prompt was rejected before all of it was tokenized."""

    @property
    def length(self) -> str:
        """Prompt length as a phrase."""
        return f"{'at least ' * self.is_least}{self.n_prompt} tokens"

    def __str__(self) -> str:
        return f"the prompt of {self.length} does not fit in the context of {self.n_ctx} tokens"


@dataclass(eq=False, repr=False)
class QueueFullError(WeftError):
    """A queue limit was reached: requests that wait for a slot, tokens, or bytes of media. Retry later."""

    n_waiting: int
    """Amount that is waiting, in `unit`."""
    unit: str = "requests"
    """Unit of `n_waiting`."""

    def __str__(self) -> str:
        unit = self.unit.removesuffix("s") if self.n_waiting == 1 else self.unit
        return f"the queue is full ({self.n_waiting} {unit}); retry later"


@dataclass(eq=False, repr=False)
class SlowConsumerError(WeftError):
    """The stream was closed because its consumer was too far behind and read nothing for 30 seconds."""

    n_behind: int
    """Unread amount, in `unit`."""
    limit: int
    """Maximum unread amount, in `unit`."""
    unit: Literal["events", "bytes"] = "events"
    """Unit of both: events (one per token) or their size in bytes."""

    def __str__(self) -> str:
        return (
            f"the stream was ended because its consumer is {self.n_behind} {self.unit} behind; at most {self.limit} may be unread"
        )


@dataclass(eq=False, repr=False)
class AnswerTooLargeError(WeftError):
    """A collected answer exceeded the size limit. Its stream was closed."""

    max_bytes: int
    """The limit, in bytes."""

    def __str__(self) -> str:
        return (
            f"the answer exceeds max_bytes ({self.max_bytes} bytes); request fewer tokens, completions or "
            "log-probabilities, set a larger max_bytes, or read the events of stream"
        )


class PrefixFileError(_FileError):
    """The file of a saved prefix is damaged, or does not match this model and cache. Nothing was loaded."""

    def __str__(self) -> str:
        return f"cannot load the prefix in {self.path}: {self.reason}"


@dataclass(eq=False, repr=False)
class PrefixSaveError(WeftError):
    """A prefix could not be copied out of the cache."""

    reason: str
    """Error of the model's memory."""

    def __str__(self) -> str:
        return f"cannot save the prefix: {self.reason}"


@dataclass(eq=False, repr=False)
class PinBudgetError(WeftError):
    """Pinned prefixes would take more than half of the cache. Unpin another prefix first."""

    n_bytes: int
    """Size of the new prefix, in bytes."""
    n_pinned_bytes: int
    """Total size of the pinned prefixes, in bytes."""
    limit: int
    """Maximum total size of pinned prefixes, in bytes."""

    def __str__(self) -> str:
        return (
            f"cannot pin the prefix of {self.n_bytes} bytes: of at most {self.limit} bytes, {self.n_pinned_bytes} are pinned; "
            f"unpin another prefix"
        )


@dataclass(eq=False, repr=False)
class NodeDroppedError(WeftError, RuntimeError):
    """A tree node was dropped before or during the operation."""

    node_id: int
    """Id of the node."""

    def __str__(self) -> str:
        return f"node {self.node_id} was dropped from its tree"


@dataclass(eq=False, repr=False)
class TreeFullError(WeftError):
    """The tree's limit does not allow another node, or the text being generated. Drop other nodes, or raise the limit."""

    limit: int
    """Maximum of `unit`."""
    unit: Literal["nodes", "bytes"]
    """Unit of the limit, `max_nodes` or `max_bytes`."""

    def __str__(self) -> str:
        return f"the tree may hold at most {self.limit} {self.unit} (max_{self.unit}); drop nodes, or raise this limit"


class TreeFileError(_FileError):
    """The file is not a saved tree, or is a tree of another model. Nothing was loaded."""

    def __str__(self) -> str:
        return f"cannot load the tree in {self.path}: {self.reason}"


class DocumentFileError(_FileError):
    """The file of documents cannot be opened, read or written."""

    def __str__(self) -> str:
        return f"cannot use the documents in {self.path}: {self.reason}"


@dataclass(eq=False, repr=False)
class DocumentsBusyError(WeftError):
    """Another server uses the file of documents."""

    path: str
    """Path of the file."""

    def __str__(self) -> str:
        return (
            f"another server uses the documents in {self.path}; stop it, or start this one with a file of its own (--documents)"
        )


@dataclass(eq=False, repr=False)
class DocumentNotFoundError(WeftError, LookupError):
    """The document does not exist or belongs to another owner, or it has no such node."""

    item: str
    """The missing item, as "node 3 of the document 8f…"."""

    def __str__(self) -> str:
        return f"there is no {self.item}"


@dataclass(eq=False, repr=False)
class DocumentConflictError(WeftError):
    """The state of a document does not permit the change."""

    message: str
    """State that prevents the change, and what to do."""

    def __str__(self) -> str:
        return self.message


@dataclass(eq=False, repr=False)
class DocumentsFullError(WeftError):
    """A quota of documents does not permit another document, node or text, or the disk is full. Delete something first."""

    limit: int
    """Maximum of `unit`; 0 if the disk is full."""
    unit: str
    """Unit of the limit: "documents", "nodes in a document" or "bytes"."""

    def __str__(self) -> str:
        if not self.limit:
            return "the disk is full; free some space"
        return f"there may be at most {self.limit} {self.unit}; delete some for good, the trash included"


@dataclass(eq=False, repr=False)
class DecodeError(WeftError):
    """The model could not compute a step, even when retried. Other streams may continue."""

    reason: str
    """Error message of the backend."""

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


@dataclass(eq=False, repr=False)
class ForkedProcessError(WeftError, RuntimeError):
    """The engine was used in a forked child process, which does not have its threads."""

    started_in: int
    """Id of the process that started the engine."""
    used_in: int
    """Id of the process that used the engine."""

    def __str__(self) -> str:
        return (
            f"the engine runs in process {self.started_in} and process {self.used_in} was forked from it, which has none of its "
            "threads; start processes with the start method spawn and give each its own engine"
        )


@dataclass(eq=False, repr=False)
class DriverMissingError(WeftError, ImportError):
    """The installed distribution computes on a GPU, and the GPU's driver is missing."""

    distribution: str
    """Name of the distribution, as listed by pip."""
    library: str
    """File name of the missing driver library."""
    advice: str
    """Installation advice for the driver."""

    def __str__(self) -> str:
        return (
            f"{self.distribution} requires {self.library}, which was not found: {self.advice}; or compute on the CPU: "
            f"`pip uninstall {self.distribution}`, then install the wheel that `make wheel` builds in a checkout"
        )
