"""File formats of documents. Each module converts between one format and [`SavedDocument`]."""

from weft.documents.formats.registry import EXPORTS, IMPORTS, export, parse
from weft.documents.formats.saved import SavedDocument, SavedNode

__all__ = ["EXPORTS", "IMPORTS", "SavedDocument", "SavedNode", "export", "parse"]
