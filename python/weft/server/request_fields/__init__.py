"""Request fields that all APIs share, since llama-server accepts its own sampling fields on OpenAI's routes too.

Null is equivalent to a missing field, and unknown fields are ignored. A field for an unsupported feature is refused by name
unless its value disables the feature.
"""
