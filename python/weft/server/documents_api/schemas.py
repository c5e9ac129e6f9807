"""Fields of the routes for documents."""

from typing import Annotated, Any, Literal

import msgspec

from weft.server.request_fields.fields import Prompt, WritingFields

MAX_ALTERNATIVES = 20
"""Maximum stored alternatives of each token."""


class DocumentBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents`, and the part that `PATCH /documents/{id}` shares with it."""

    title: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
    folder: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
    """Path of a folder, in any notation of the client."""
    settings: dict[str, Any] | None = None
    """JSON object of the client's own, which replaces the previous one."""


class DocumentChangeBody(DocumentBody, kw_only=True, forbid_unknown_fields=True):
    """`PATCH /documents/{id}`: a missing field leaves the value unchanged; the last change applies."""

    is_trashed: bool | None = None


class DuplicateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/duplicate`. A missing field is that of the original."""

    title: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
    folder: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None


class NewNodeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/nodes`."""

    text: str
    parent: int | None = None
    """Node that the new one continues; null for a node at the top."""
    index: int | None = None
    """Index among its siblings; null is after the last."""
    label: str = ""
    note: str = ""
    is_bookmarked: bool = False


class NodeChangeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`PATCH /documents/{id}/nodes/{node}`: a missing field leaves the value unchanged."""

    version: int | None = None
    """Version that is changed; required with `text`."""
    text: str | None = None
    label: str | None = None
    note: str | None = None
    is_bookmarked: bool | None = None
    is_trashed: bool | None = None


class MoveBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/nodes/{node}/move`."""

    parent: int | None
    """New parent; null is the top of the document."""
    index: int | None = None
    """Index among the new siblings; null is after the last."""


class TextPosition(msgspec.Struct, forbid_unknown_fields=True):
    """A position in the text of a node, in tokens or in characters (Unicode code points)."""

    token: int | None = None
    character: int | None = None


class SplitBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/nodes/{node}/split`."""

    at: TextPosition


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """An empty JSON object."""


class ContinueBody(WritingFields, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/nodes/{node}/continue`: options of the new branches, as of a completion."""

    at: TextPosition | None = None
    """Position in the node after which the branches begin; defaults to its end. Elsewhere the node is split."""
    append: str | list[int | str] | None = None
    """Text with which every new node begins, such as an alternative token."""
    prompt: Prompt | None = None
    """Text or tokens for the model in place of the text up to `at`, such as one with a memory and an author's note."""
    parse_special: bool = False
    """Parses control tokens in `prompt` and in text without known tokens."""
    until: Literal["sentence", "paragraph"] | None = None
    """Ends each branch at the end of a sentence or paragraph too."""


class ResumeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/nodes/{node}/resume`."""

    prompt: Prompt | None = None
    """Text or tokens for the model in place of the nodes above the interrupted one, as the branch had."""


class ResumeAllBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/{id}/resume`."""

    prompts: dict[str, Prompt] | None = None
    """Prompts as of `ResumeBody`, by the ids of their nodes."""


class ImportBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /documents/import`."""

    format: str
    """Name of a format."""
    content: str
    """Content of the file."""
    title: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
    """Title; defaults to the file's own."""
    folder: Annotated[str, msgspec.Meta(max_length=1_000)] | None = None
