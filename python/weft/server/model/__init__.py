"""The model's life cycle, and what stays computed for it: pinned prefixes and the system prompt."""
