"""`weft top`: terminal display of a running server's state, over HTTP and without importing the engine."""
