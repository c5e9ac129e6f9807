"""Order of the children of a node, within a transaction."""

from itertools import pairwise

from weft.documents.catalog import Located
from weft.documents.database import Database
from weft.errors import InvalidRequestError


def children(database: Database, located: Located, parent: int | None, without: int = 0) -> list[tuple[int, float]]:
    """Returns the ids and positions of a node's children, in order."""
    return database.connection.execute(
        "SELECT id, position FROM nodes WHERE document = ? AND parent IS ? AND id != ? ORDER BY position, id",
        (located.key, parent, without),
    ).fetchall()


def positions(
    database: Database, located: Located, parent: int | None, index: int | None, *, n: int = 1, without: int = 0
) -> list[float]:
    """Returns positions for `n` new children from an index on. Renumbers the siblings if there is no space between two."""
    siblings = children(database, located, parent, without)
    index = len(siblings) if index is None else index
    if not 0 <= index <= len(siblings):
        raise InvalidRequestError("index", f"index is {index}; it must be 0 to {len(siblings)}, the number of siblings")
    if index == len(siblings):
        first = siblings[-1][1] + 1 if siblings else 0.0
        return [first + nth for nth in range(n)]
    high = siblings[index][1]
    low = siblings[index - 1][1] if index else high - n - 1
    found = [low + (high - low) * (nth + 1) / (n + 1) for nth in range(n)]
    if all(one < other for one, other in pairwise([low, *found, high])):
        return found
    database.connection.executemany(
        "UPDATE nodes SET position = ? WHERE document = ? AND id = ?",
        ((float(nth + n * (nth >= index)), located.key, each) for nth, (each, _) in enumerate(siblings)),
    )
    return [float(index + nth) for nth in range(n)]
