"""`python -m weft documents`: lists, moves and exports the documents of a server, in its file. The server may be running.

Documents belong to API keys. After a key was replaced, `move` gives its documents to the new one.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from weft.documents import catalog, nodes
from weft.documents.database import Database
from weft.documents.formats import EXPORTS, export
from weft.documents.formats.registry import ExportFormat
from weft.documents.formats.saved import saved
from weft.documents.nodes import Stored
from weft.documents.owners import WITHOUT_KEY, key_digest
from weft.documents.records import DocumentKey
from weft.errors import WeftError
from weft.settings import Settings

NO_KEY = "none"
"""Name of the owner of documents that were made without keys."""

PAGE = 1_000
"""Nodes that are read in one transaction, so that a running server is not delayed."""


class UsageError(Exception):
    """An owner or a file does not exist, or an option is missing. The text has the reason."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    source: str | None
    target: str | None
    folder: Path
    name: ExportFormat


def documents(
    settings: Settings,
    *,
    action: str = "list",
    source: str | None = None,
    target: str | None = None,
    folder: str = ".",
    name: ExportFormat = "json",
) -> int:
    """Runs one of the actions. Returns the exit code: 0, or 1 if it failed."""
    database = Database(settings.documents_path or _default_path())
    try:
        if not database.exists:
            raise UsageError(f"there are no documents in {database.path}")
        _ACTIONS[action](database, _Options(source=source, target=target, folder=Path(folder), name=name))
    except (WeftError, UsageError, OSError) as error:
        print(f"documents: {error}", file=sys.stderr)
        return 1
    finally:
        database.close()
    return 0


def _default_path() -> Path:
    import platformdirs  # noqa: PLC0415 (not needed where a file is given)

    return platformdirs.user_data_path("weft", appauthor=False) / "documents.sqlite"


def _list(database: Database, options: _Options) -> None:
    if options.source is None:
        print(f"{'owner':<34}{'documents':>10}{'bytes':>14}")
        for owner, n, n_bytes in catalog.owners(database):
            print(f"{owner or NO_KEY:<34}{n:>10,}{n_bytes:>14,}")
        return
    print(f"{'id':<34}{'nodes':>10}{'bytes':>14}  title")
    for document in catalog.documents_of(database, _owner(database, options.source)):
        print(f"{document.id:<34}{document.n_nodes:>10,}{document.n_bytes:>14,}  {ascii(document.title)[1:-1]}")


def _move(database: Database, options: _Options) -> None:
    if options.source is None or options.target is None:
        raise UsageError("move needs --from and --to")
    source, target = _owner(database, options.source), _owner(database, options.target)
    print(f"moved {catalog.move(database, source, target)} documents")


def _export(database: Database, options: _Options) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    owners = [owner for owner, _, _ in catalog.owners(database)]
    for owner in owners if options.source is None else [_owner(database, options.source)]:
        for document in catalog.documents_of(database, owner):
            key = DocumentKey(None, document.id, owner)
            found: list[Stored] = []
            while page := nodes.stored_page(database, key, after=found[-1].node.id if found else 0, limit=PAGE):
                found += page
            path = options.folder / f"{document.id}.{EXPORTS[options.name].extension}"
            path.write_bytes(export(options.name, saved(document, found)))
            print(path)


def _owner(database: Database, who: str) -> str:
    """Returns the owner that the command line names.

    Raises:
        UsageError: There is no such owner, or several.
    """
    if who == NO_KEY:
        return WITHOUT_KEY
    if who.startswith("@"):
        lines = [line.strip() for line in Path(who[1:]).read_text(encoding="utf-8").splitlines()]
        keys = [line for line in lines if line and not line.startswith("#")]
        if len(keys) != 1:
            raise UsageError(f"{who[1:]} has {len(keys)} keys; it must have one")
        return database.owner(key_digest(keys[0]))
    found = [owner for owner, _, _ in catalog.owners(database) if owner and owner.startswith(who)]
    if len(found) != 1:
        raise UsageError(f"{len(found)} owners begin with {who!r}; one must")
    return found[0]


_ACTIONS = {"list": _list, "move": _move, "export": _export}
