"""What an engine does beside its streams: work on the cache, and what has to wait on a thread."""
