"""A key and its certificate, which nobody has signed but itself, for `localhost` and `127.0.0.1` from 2020 to 2120.

They are files and not made for each run, so that no test needs the `openssl` command.
"""

from pathlib import Path

__all__ = ["CERTIFICATE", "ENCRYPTED_KEY", "KEY", "OTHER_KEY"]

_FOLDER = Path(__file__).parent / "certificates"

CERTIFICATE = str(_FOLDER / "one.crt")
KEY = str(_FOLDER / "one.key")
ENCRYPTED_KEY = str(_FOLDER / "encrypted.key")
"""The same key, under the password `word`."""
OTHER_KEY = str(_FOLDER / "other.key")
"""A key that the certificate does not belong to."""
