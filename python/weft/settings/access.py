"""Who may ask, and over which connection."""

from dataclasses import dataclass

from weft.settings.flags import flag
from weft.settings.values import boolean, file, items, together

__all__ = ["AccessSettings"]

ACCESS = "access"


def _keys(text: str) -> tuple[str, ...]:
    keys = items(text)
    if not keys:
        # A server that was to be locked must not be open because a shell's variable was empty.
        raise ValueError("it holds no key; leave it out for a server without keys")
    return keys


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class AccessSettings:
    """Who may ask, and over which connection."""

    api_keys: tuple[str, ...] = flag(
        (),
        ACCESS,
        "--api-key",
        metavar="KEY",
        parse=_keys,
        join=together,
        env="LLAMA_API_KEY",
        help="keys of which a request must show one, with commas between them or each in a flag of its own (default: none)",
    )
    api_key_file: str | None = flag(
        None,
        ACCESS,
        "--api-key-file",
        metavar="FNAME",
        parse=file,
        env="LLAMA_ARG_API_KEY_FILE",
        help="file of more such keys, one a line; lines that begin with # are comments",
    )
    ssl_key_file: str | None = flag(
        None,
        ACCESS,
        "--ssl-key-file",
        metavar="FNAME",
        parse=file,
        env="LLAMA_ARG_SSL_KEY_FILE",
        help="PEM file of the private key; with --ssl-cert-file, the server speaks TLS",
    )
    ssl_cert_file: str | None = flag(
        None,
        ACCESS,
        "--ssl-cert-file",
        metavar="FNAME",
        parse=file,
        env="LLAMA_ARG_SSL_CERT_FILE",
        help="PEM file of the certificate",
    )
    cors_origins: tuple[str, ...] = flag(
        ("*",),
        ACCESS,
        "--cors-origins",
        metavar="ORIGINS",
        parse=items,
        separator=",",
        env="LLAMA_ARG_CORS_ORIGINS",
        help="origins whose pages may use the server; '*' is any, 'localhost' any on this machine (default: *)",
    )
    cors_methods: str = flag(
        "GET, POST, DELETE, OPTIONS",
        ACCESS,
        "--cors-methods",
        metavar="METHODS",
        env="LLAMA_ARG_CORS_METHODS",
        help="methods that pages of other origins may use (default: GET, POST, DELETE, OPTIONS)",
    )
    cors_headers: str = flag(
        "*",
        ACCESS,
        "--cors-headers",
        metavar="HEADERS",
        env="LLAMA_ARG_CORS_HEADERS",
        help="headers that pages of other origins may send (default: *)",
    )
    cors_credentials: bool = flag(
        True,
        ACCESS,
        constants={"--cors-credentials": True, "--no-cors-credentials": False},
        parse=boolean,
        env="LLAMA_ARG_CORS_CREDENTIALS",
        help="let pages of other origins send credentials (default: yes)",
    )
