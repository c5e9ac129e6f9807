"""Documents: trees of texts in one SQLite file, for the server and for Python."""

from weft.documents.library import Documents, open_documents
from weft.documents.records import Alternative, Document, DocumentKey, ImportedDocument, Limits, Node, Span

open = open_documents  # noqa: A001 (the name that users call: `weft.documents.open`)

__all__ = ["Alternative", "Document", "DocumentKey", "Documents", "ImportedDocument", "Limits", "Node", "Span", "open"]
