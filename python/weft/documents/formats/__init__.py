"""File formats of documents. Each module converts between one format and [`SavedDocument`]."""

from weft.documents.formats.registry import EXPORTS, IMPORTS, export, parse
from weft.documents.formats.saved import ParsedFile, SavedDocument, SavedNode

__all__ = ["EXPORTS", "IMPORTS", "ParsedFile", "SavedDocument", "SavedNode", "export", "parse"]
