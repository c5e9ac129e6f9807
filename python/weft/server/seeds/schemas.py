"""The events of single-request batching: keys and their order are those of llama-srb-api."""

import msgspec

__all__ = ["BranchStopped", "BranchText", "Done", "Start"]


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
