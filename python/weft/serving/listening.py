"""Listening addresses, exclusive claims on them, and TLS certificates."""

import errno
import os
import socket
import ssl
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from weft.errors import InvalidConfigError
from weft.installed.platform import can_list_handles, claim_name, open_handles, set_shared_port, unix_socket
from weft.settings import Settings

SOCKET_SUFFIX = ".sock"
"""Suffix of a host that is the path of a unix socket, as in llama-server."""


class CannotListenError(Exception):
    """The address is in use, or is not an address of this machine."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"cannot listen on {name}: {error.strerror or error}")


class Address(msgspec.Struct, frozen=True):
    """A numeric address with a port, or the path of a unix socket."""

    host: str
    port: int = 0
    path: Path | None = None

    @property
    def name(self) -> str:
        """Name of the address for log messages."""
        if self.path is not None:
            return str(self.path)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def url(self, *, is_tls: bool, prefix: str = "") -> str:
        """Returns the URL for clients; for a unix socket, its path."""
        return f"unix:{self.path}" if self.path is not None else f"{'https' if is_tls else 'http'}://{self.name}{prefix}"


def claim(settings: Settings) -> tuple[list[Address], ExitStack]:
    """Returns the addresses to listen on, in the order of the settings, and a claim on them that must be closed at the end.

    Granian binds with SO_REUSEPORT, so two servers on one port would each get some of the connections. A test bind detects other
    programs; an exclusive system-wide name detects another instance of this server that is not listening yet. With `reuse_port`,
    sharing is intended and nothing is claimed. Port 0 selects one port for all addresses.

    Raises:
        CannotListenError: An address is in use, or is not an address of this machine.
    """
    addresses: list[Address] = []
    port = settings.port
    with ExitStack() as claims:
        for host in settings.hosts:
            is_path = host.endswith(SOCKET_SUFFIX)
            try:
                address = Address(host, path=Path(host).absolute()) if is_path else _resolve(host, port)
                if address in addresses:  # For example `localhost` and `127.0.0.1`.
                    continue
                if is_path:
                    _claim_path(address, claims)
                else:
                    address = _claim_port(address, claims, reuse_port=settings.reuse_port)
            except OSError as error:
                raise CannotListenError(host if is_path else f"{host}:{port}", error) from error
            addresses.append(address)
            port = address.port or port
        return addresses, claims.pop_all()


def _resolve(host: str, port: int) -> Address:
    _, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return Address(str(address[0]), int(address[1]))


def _claim_port(address: Address, claims: ExitStack, *, reuse_port: bool) -> Address:
    """Returns the address with the port that was bound."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if reuse_port:
            set_shared_port(probe)
        else:
            # On Windows, SO_REUSEADDR would let the probe share the port with a listening server.
            probe.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        probe.bind((address.host, address.port))
        found = Address(address.host, probe.getsockname()[1])
        if not reuse_port:
            claims.enter_context(claim_name(found.name))
            probe.listen(1)
    return found


def _claim_path(address: Address, claims: ExitStack) -> None:
    path = address.path
    assert path is not None, "the address is a unix socket's"
    claims.enter_context(claim_name(address.name))
    if path.exists():
        _remove_abandoned(path)
    with unix_socket() as probe:
        probe.bind(str(path))
    path.unlink()
    claims.callback(path.unlink, missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes a socket file whose process no longer exists."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "a file with this name exists and is not a socket")
    with unix_socket() as probe:
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def is_listening(address: Address) -> bool:
    """Returns True if this process is listening on an address, regardless of which library created the socket.

    On Windows, where the handles of a process cannot be listed, any process that accepts connections there counts.
    """
    if not can_list_handles():
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
            return probe.connect_ex((address.host, address.port)) == 0
    place = str(address.path) if address.path is not None else (address.host, address.port)
    for number in open_handles():
        with suppress(OSError):  # Not a socket, or closed meanwhile.
            listener = socket.socket(fileno=number)
            try:
                bound, accepts = listener.getsockname(), listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            finally:
                listener.detach()  # The handle belongs to another object and must stay open.
            if accepts and (bound[:2] if isinstance(bound, tuple) else bound) == place:
                return True
    return False


def tls(settings: Settings) -> tuple[Path, Path] | None:
    """Returns the paths of the key and the certificate; None without TLS.

    Raises:
        InvalidConfigError: Only one is set, one cannot be read, or they do not belong together.
    """
    key, certificate = settings.ssl_key_file, settings.ssl_cert_file
    if key is None and certificate is None:
        return None
    if key is None or certificate is None:
        given, missing = ("ssl_cert_file", "key") if key is None else ("ssl_key_file", "certificate")
        raise InvalidConfigError(given, f"{given} is given without a {missing}; give both, or neither")
    for name, path in (("ssl_key_file", key), ("ssl_cert_file", certificate)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InvalidConfigError(name, f"cannot read {path}: {error.strerror or error}") from error
    try:
        # Without this callback, an encrypted key would prompt for a password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise InvalidConfigError("ssl_cert_file", f"cannot use {certificate} with the key {key}: {reason}") from error
    return Path(key), Path(certificate)
