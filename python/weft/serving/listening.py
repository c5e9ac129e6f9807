"""Where the server listens: its addresses, whether they are free, and the certificate that it shows there."""

import errno
import os
import socket
import ssl
import stat
from contextlib import ExitStack
from pathlib import Path

import msgspec

from weft.errors import InvalidConfig
from weft.installed.platform import can_list_handles, claim_name, open_handles, set_shared_port, unix_socket
from weft.settings import Settings

__all__ = ["Address", "CannotListenError", "claim", "is_listening", "tls"]

SOCKET_SUFFIX = ".sock"
"""A host that ends so is the path of a unix socket, as llama-server has it."""


class CannotListenError(Exception):
    """An address is taken, or is none of this machine's."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"cannot listen on {name}: {error.strerror or error}")


class Address(msgspec.Struct, frozen=True):
    """One place to listen at: a numeric address and a port, or the path of a unix socket."""

    host: str
    port: int = 0
    path: Path | None = None

    @property
    def name(self) -> str:
        """How a log says it."""
        if self.path is not None:
            return str(self.path)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def url(self, *, is_tls: bool, prefix: str = "") -> str:
        """How a client is told of it; of a unix socket only where it is."""
        return f"unix:{self.path}" if self.path is not None else f"{'https' if is_tls else 'http'}://{self.name}{prefix}"


def claim(settings: Settings) -> tuple[list[Address], ExitStack]:
    """The addresses to listen at, in the order of the settings, and a claim on them that holds until it is closed.

    Granian listens beside whoever does (SO_REUSEPORT), and each would get some of the connections. Trying to listen finds
    strangers; a claim, a name that one process at a time can have, finds a server like this one that does not listen yet.
    With `reuse_port` that is what is wanted, and nothing is claimed. Port 0 is one number for all addresses.

    Raises:
        CannotListenError: an address is taken, or is none of this machine's.
    """
    addresses: list[Address] = []
    port = settings.port
    with ExitStack() as claims:
        for host in settings.hosts:
            is_path = host.endswith(SOCKET_SUFFIX)
            try:
                address = Address(host, path=Path(host).absolute()) if is_path else _resolve(host, port)
                if address in addresses:  # As where both `localhost` and `127.0.0.1` are named.
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
    """The address with the port that was found for it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if reuse_port:
            set_shared_port(probe)
        else:
            # On Windows the option would let the probe share the port with a server that listens already.
            probe.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        probe.bind((address.host, address.port))
        found = Address(address.host, probe.getsockname()[1])
        if not reuse_port:
            _claim_name(found.name, claims)
            probe.listen(1)
    return found


def _claim_path(address: Address, claims: ExitStack) -> None:
    path = address.path
    assert path is not None, "the address is a unix socket's"
    _claim_name(address.name, claims)
    if path.exists():
        _remove_abandoned(path)
    with unix_socket() as probe:
        probe.bind(str(path))
    path.unlink()
    claims.callback(path.unlink, missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes a socket that a process left behind that is no more."""
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file of this name, and it is no socket")
    with unix_socket() as probe:
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def _claim_name(name: str, claims: ExitStack) -> None:
    if (claimed := claim_name(name)) is not None:
        claims.enter_context(claimed)


def is_listening(address: Address) -> bool:
    """Returns true if this process listens there, no matter which part of it made the socket.

    On Windows, where the handles of a process cannot be listed, any process that accepts connections there counts.
    """
    if not can_list_handles():
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET) as probe:
            return probe.connect_ex((address.host, address.port)) == 0
    place = str(address.path) if address.path is not None else (address.host, address.port)
    for number in open_handles():
        try:
            held = socket.socket(fileno=number)
        except OSError:  # No socket, or closed since.
            continue
        try:
            bound = held.getsockname()
            if (
                held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and (bound[:2] if isinstance(bound, tuple) else bound) == place
            ):
                return True
        except OSError:
            continue
        finally:
            held.detach()  # It stays open: it is another's.
    return False


def tls(settings: Settings) -> tuple[Path, Path] | None:
    """The files of the key and of the certificate; None where the server speaks plainly.

    Raises:
        InvalidConfig: one is given without the other, one cannot be read, or they do not belong together.
    """
    key, certificate = settings.ssl_key_file, settings.ssl_cert_file
    if key is None and certificate is None:
        return None
    if key is None or certificate is None:
        given, missing = ("ssl_cert_file", "key") if key is None else ("ssl_key_file", "certificate")
        raise InvalidConfig(given, f"{given} is given without a {missing}; give both, or neither")
    for name, path in (("ssl_key_file", key), ("ssl_cert_file", certificate)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InvalidConfig(name, f"cannot read {path}: {error.strerror or error}") from error
    try:
        # Nobody is there to type a password: an encrypted key is an error and no question.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise InvalidConfig("ssl_cert_file", f"cannot show {certificate} with the key {key}: {reason}") from error
    return Path(key), Path(certificate)
