"""Background work of an engine: cache operations and thread pools."""
