"""Owners of documents: API keys are stored as keyed hashes only."""

import hmac
from hashlib import sha256

WITHOUT_KEY = ""
"""Owner of documents that were made on a server without keys.

They are accessible while the server has no keys. No key of a server with keys has access, until `weft documents move` gives them
to a key.
"""


def key_digest(key: str) -> str:
    """Returns the SHA-256 digest of an API key, which the server uses in place of the key."""
    return sha256(key.encode()).hexdigest()


def owner_of(secret: bytes, digest: str | None) -> str:
    """Returns the owner of the documents of a key.

    Args:
        secret: Random secret of the file, so that equal keys have different owners in different files.
        digest: Digest of the key, see `key_digest`; None without a key.
    """
    return WITHOUT_KEY if digest is None else hmac.new(secret, digest.encode(), sha256).hexdigest()[:32]
