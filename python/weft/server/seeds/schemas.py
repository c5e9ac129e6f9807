"""The events of single-request batching, whose keys and their order are those of llama-srb-api, and what other seeds say."""

import msgspec

__all__ = ["BranchStopped", "BranchText", "Content", "Done", "Start", "StreamBody", "WaitingModel", "WaitingModels"]


class Start(msgspec.Struct, tag_field="event", tag="start"):
    """The first event: how many completions there are, over all prompts."""

    count: int


class BranchText(msgspec.Struct, tag_field="event", tag="stream"):
    """What one token has brought to the text of one completion."""

    index: int
    text: str


class BranchStopped(msgspec.Struct, tag_field="event", tag="stop"):
    """The end of one completion.

    `length` is one less than its `stream` events, so −1 where it has none. `stop` is 1 where an end token or a stop string
    ended it, and 0 at a limit.
    """

    index: int
    length: int
    stop: int


class Done(msgspec.Struct, tag_field="event", tag="done"):
    """The last event."""

    count: int


class WaitingModel(msgspec.Struct, tag_field="object", tag="model"):
    """A model that is not loaded, or not any more."""

    id: str
    engine_state: str


class WaitingModels(msgspec.Struct, tag_field="object", tag="list"):
    """The one that is to be served."""

    data: list[WaitingModel]


class Content(msgspec.Struct):
    """All that llama.cpp's first server for several users said of a token."""

    content: str


class StreamBody(msgspec.Struct):
    """`POST /stream`. What is not given is the server's."""

    prompt: str | None = None
    num_predict: int | None = None
    """Most tokens after the prompt; 32 where it is not given."""
    n_batch: int | None = None
    """Most tokens of the prompt that one step computes."""
    top_k: int | None = None
    top_p: float | None = None
    repeat_penalty: float | None = None
    temp: float | None = None
    cache: int = 0
    """The number of a file that keeps what was computed of the prompt; 0 is none. It is in the folder of `--slot-save-path`, else
    with `--compat stream` in the user's cache."""
