"""Event fields of single-request batching, with the keys and order of llama-srb-api, and fields of the other servers."""

import msgspec


class Start(msgspec.Struct, tag_field="event", tag="start"):
    """The first event: number of completions over all prompts."""

    count: int


class BranchText(msgspec.Struct, tag_field="event", tag="stream"):
    """Text that one token adds to a completion."""

    index: int
    text: str


class BranchStopped(msgspec.Struct, tag_field="event", tag="stop"):
    """The end of a completion.

    `length` is one less than its number of `stream` events, so -1 if it has none. `stop` is 1 if an end token or a stop string
    ended it, and 0 at a limit.
    """

    index: int
    length: int
    stop: int


class Done(msgspec.Struct, tag_field="event", tag="done"):
    """The last event."""

    count: int


class WaitingModel(msgspec.Struct, tag_field="object", tag="model"):
    """A model that is not loaded."""

    id: str
    engine_state: str


class WaitingModels(msgspec.Struct, tag_field="object", tag="list"):
    """The list of the one model."""

    data: list[WaitingModel]


class Content(msgspec.Struct):
    """Event of llama.cpp's first multi-user server: the text of a token."""

    content: str


class StreamBody(msgspec.Struct):
    """`POST /stream`. Missing fields have the server's defaults."""

    prompt: str | None = None
    num_predict: int | None = None
    """Maximum tokens after the prompt; defaults to 32."""
    n_batch: int | None = None
    """Maximum prompt tokens computed per step."""
    top_k: int | None = None
    top_p: float | None = None
    repeat_penalty: float | None = None
    temp: float | None = None
    cache: int = 0
    """Number of the file that stores the computed prompt; 0 for none. Files are in the folder of `--slot-save-path`, or with
    `--compat stream` in the user's cache directory."""
