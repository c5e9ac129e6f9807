"""Many replicas and one router, without a model: what is computed again because a prompt was sent elsewhere, and who waits."""
