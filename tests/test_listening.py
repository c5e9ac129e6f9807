"""Addresses, claims on them, and certificates: what is found wrong before anything is served."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.certificates import CERTIFICATE, ENCRYPTED_KEY, KEY, OTHER_KEY
from tests.server.matchers import Json
from weft import InvalidConfigError
from weft.serving.listening import Address, CannotListenError, claim, is_listening, tls
from weft.settings import Settings


@pytest.fixture
def claims() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def claimed(claims: ExitStack, **settings: Json) -> list[Address]:
    addresses, held = claim(Settings(**settings))
    claims.enter_context(held)
    return addresses


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Somebody else, who listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other


def test_any_free_port_is_one_for_all_addresses(claims: ExitStack) -> None:
    first, second = claimed(claims, hosts=("127.0.0.1", "::1"), port=0)
    assert (first.host, second.host) == ("127.0.0.1", "::1")
    assert first.port == second.port > 0
    assert (first.name, second.name) == (f"127.0.0.1:{first.port}", f"[::1]:{first.port}")
    assert second.url(is_tls=True) == f"https://[::1]:{first.port}"
    assert first.url(is_tls=False, prefix="/llm") == f"http://127.0.0.1:{first.port}/llm"


def test_an_address_that_is_named_twice_is_one(claims: ExitStack) -> None:
    [address] = claimed(claims, hosts=("127.0.0.1", "localhost", "127.0.0.1"), port=0)
    assert address.host == "127.0.0.1"


def test_an_address_where_somebody_listens_is_taken(claims: ExitStack, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(CannotListenError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        claimed(claims, port=port)


def test_an_address_that_another_has_claimed_is_taken_until_it_is_given_up(claims: ExitStack) -> None:
    with ExitStack() as first:
        [address] = claimed(first, port=0)
        with pytest.raises(CannotListenError, match="Address already in use"):
            claimed(claims, port=address.port)
    assert claimed(claims, port=address.port) == [address]


def test_of_several_addresses_none_stays_claimed_where_one_is_taken(claims: ExitStack, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    for _ in range(2):
        with pytest.raises(CannotListenError, match=r"127\.0\.0\.1"):
            claimed(claims, hosts=("::1", "127.0.0.1"), port=port)


def test_reuse_port_shares_an_address_with_whoever_shares_it_too(claims: ExitStack, listener: socket.socket) -> None:
    with socket.socket() as sharing:
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sharing.bind(("127.0.0.1", 0))
        sharing.listen()
        port = sharing.getsockname()[1]
        assert claimed(claims, port=port, reuse_port=True) == claimed(claims, port=port, reuse_port=True)
    with pytest.raises(CannotListenError, match="Address already in use"):
        claimed(claims, port=listener.getsockname()[1], reuse_port=True)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_no_interface_here_is_an_error_that_names_it(claims: ExitStack, host: str) -> None:
    with pytest.raises(CannotListenError, match=f"cannot listen on {host}:8080: "):
        claimed(claims, hosts=(host,))


def test_a_path_is_claimed_and_its_file_goes_with_the_claim(tmp_path: Path) -> None:
    path = tmp_path / "weft.sock"
    with ExitStack() as held:
        [address] = claimed(held, hosts=(str(path),))
        assert (address.path, address.url(is_tls=False)) == (path, f"unix:{path}")
        with pytest.raises(CannotListenError, match="Address already in use"):
            claimed(held, hosts=(str(path),))
        path.touch()
    assert not path.exists()


def test_a_socket_that_a_dead_process_left_is_replaced(tmp_path: Path, claims: ExitStack) -> None:
    path = tmp_path / "weft.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert claimed(claims, hosts=(str(path),))[0].path == path


def test_a_socket_where_somebody_listens_is_left_alone(tmp_path: Path, claims: ExitStack) -> None:
    path = tmp_path / "weft.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(CannotListenError, match="Address already in use"):
            claimed(claims, hosts=(str(path),))
        assert path.exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path, claims: ExitStack) -> None:
    path = tmp_path / "notes.sock"
    path.write_text("mine")
    with pytest.raises(CannotListenError, match=r"notes\.sock: a file with this name exists and is not a socket"):
        claimed(claims, hosts=(str(path),))
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["no/such/folder.sock", f"{'x' * 200}.sock"])
def test_a_path_that_cannot_be_is_an_error_that_names_it(tmp_path: Path, claims: ExitStack, name: str) -> None:
    with pytest.raises(CannotListenError, match=r"cannot listen on .*\.sock: (No such file or directory|AF_UNIX path too long)"):
        claimed(claims, hosts=(str(tmp_path / name),))


def test_without_files_the_server_speaks_plainly() -> None:
    assert tls(Settings()) is None


def test_a_key_and_its_certificate_are_taken() -> None:
    assert tls(Settings(ssl_key_file=KEY, ssl_cert_file=CERTIFICATE)) == (Path(KEY), Path(CERTIFICATE))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ssl_key_file": "a"}, "ssl_key_file is given without a certificate; give both, or neither"),
        ({"ssl_cert_file": "a"}, "ssl_cert_file is given without a key; give both, or neither"),
        ({"ssl_key_file": "no", "ssl_cert_file": "no"}, "cannot read no: No such file or directory"),
    ],
    ids=["key", "certificate", "missing"],
)
def test_half_a_pair_is_an_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        tls(Settings(**given))  # type: ignore[arg-type]
    assert (raised.value.param, raised.value.message) == (next(iter(given)), message)


@pytest.mark.parametrize(
    ("key", "certificate"),
    [(OTHER_KEY, CERTIFICATE), (KEY, __file__), (__file__, CERTIFICATE), (CERTIFICATE, KEY), (ENCRYPTED_KEY, CERTIFICATE)],
    ids=["another key", "no certificate", "no key", "swapped", "encrypted"],
)
def test_files_that_do_not_belong_together_are_an_error(key: str, certificate: str) -> None:
    message = f"cannot use {re.escape(certificate)} with the key {re.escape(key)}: ."
    with pytest.raises(InvalidConfigError, match=message) as raised:
        tls(Settings(ssl_key_file=key, ssl_cert_file=certificate))
    assert raised.value.param == "ssl_cert_file"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_listening_is_seen_in_this_process_and_leaves_the_socket_open(family: socket.AddressFamily, tmp_path: Path) -> None:
    path = tmp_path / "weft.sock"
    with socket.socket(family) as held:
        held.bind(str(path) if family == socket.AF_UNIX else ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        address = Address(str(path), path=path) if family == socket.AF_UNIX else Address(*held.getsockname()[:2])
        assert not is_listening(address)
        held.listen()
        assert is_listening(address)
        assert not is_listening(Address("127.0.0.1", 1))
        with socket.socket(family) as client:
            client.connect(held.getsockname())
    assert not is_listening(address)
