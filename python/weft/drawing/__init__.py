"""Trees as pictures: `svg` with a layout of our own, and `dot` for Graphviz. They know nothing of what a tree is of."""
