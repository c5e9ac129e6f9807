"""Trees of texts over one engine; common prefixes are computed once."""

from weft.tree.extension import Extension
from weft.tree.node import Node
from weft.tree.tree import Tree

__all__ = ["Extension", "Node", "Tree"]
