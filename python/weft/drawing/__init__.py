"""Generic drawings of trees: `svg` with its own layout, and `dot` for Graphviz."""
