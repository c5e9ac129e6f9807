"""Formats by name."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from weft.documents.formats import loom, lore, mikupad, plain, saved
from weft.documents.formats.saved import ParsedFile, SavedDocument

ImportFormat = Literal["json", "markdown", "text", "loom", "mikupad", "sillytavern", "koboldai"]

ExportFormat = Literal["json", "markdown", "text", "loom", "mikupad"]


class Export(NamedTuple):
    """A format that documents are written in."""

    media_type: str
    extension: str
    write: Callable[[SavedDocument, int | None], bytes]
    """Returns the file of a document. Formats of one text write the path to the given node."""


IMPORTS: Mapping[ImportFormat, Callable[[bytes], ParsedFile]] = {
    "json": saved.parse,
    "markdown": plain.parse_markdown,
    "text": plain.parse_text,
    "loom": loom.parse,
    "mikupad": mikupad.parse,
    "sillytavern": lore.parse_sillytavern,
    "koboldai": lore.parse_koboldai,
}
"""Parsers by format."""

EXPORTS: Mapping[ExportFormat, Export] = {
    "json": Export("application/json", "json", lambda document, _: saved.encode(document)),
    "markdown": Export("text/markdown", "md", plain.markdown),
    "text": Export("text/plain", "txt", plain.text),
    "loom": Export("application/json", "loom.json", lambda document, _: loom.encode(document)),
    "mikupad": Export("application/json", "mikupad.json", mikupad.encode),
}
"""Writers by format."""


def parse(name: ImportFormat, data: bytes) -> ParsedFile:
    """Parses a file.

    Raises:
        InvalidRequestError: The file does not have this format.
    """
    return IMPORTS[name](data)


def export(name: ExportFormat, document: SavedDocument, node_id: int | None = None) -> bytes:
    """Returns the file of a document, or of the path to one of its nodes.

    Raises:
        InvalidRequestError: The document has no such node.
    """
    return EXPORTS[name].write(document, node_id)
