"""The package imports where the system lacks what only Linux, or only POSIX, has; the fallbacks do what they state."""

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from weft.installed import platform
from weft.serving.listening import Address, is_listening

IMPORT_ALL = """
import importlib, os, pkgutil, signal, socket, sys

# The standard library and the dependencies are imported first: what they import on this platform does not count.
import asyncio, mailbox, multiprocessing.connection, subprocess, tempfile, webbrowser
import granian.server.embed, granian.server.mp, huggingface_hub, jinja2.sandbox, litestar, msgspec
import litestar.openapi.plugins, litestar.plugins, litestar.response
import weft

hidden = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "termios", "tty")
for module in hidden:
    sys.modules[module] = None
for module, names in {
    os: ("fork", "fchmod", "getuid", "geteuid", "sched_getaffinity", "sysconf", "uname", "register_at_fork", "mkfifo",
         "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "killpg", "getpgid", "setsid"),
    signal: ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGPIPE", "SIGCHLD", "SIGALRM"),
    socket: ("AF_UNIX", "SO_REUSEPORT", "AF_NETLINK"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

sys.platform = "win32"
for found in pkgutil.walk_packages(weft.__path__, "weft."):
    if found.name.split(".")[-1] == "__main__" or found.name.startswith("weft._native_"):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        # Ray and what comes with it are optional dependencies.
        if not found.name.startswith("weft.ray") or error.name in hidden:
            raise
print("imported", sum(name.startswith("weft.") for name in sys.modules))
"""


def test_every_module_imports_without_what_only_posix_has() -> None:
    ran = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[-1]) > 150


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The facilities that `weft.installed.platform` finds on Windows."""
    for name in ("fcntl", "resource", "termios"):
        monkeypatch.setattr(platform, name, None)
    for module, names in ((signal, ("SIGHUP",)), (socket, ("AF_UNIX", "SO_REUSEPORT")), (os, ("sysconf",))):
        for name in names:
            monkeypatch.delattr(module, name)
    for name in ("HANDLES", "MEMINFO", "STATM"):
        monkeypatch.setattr(platform, name, tmp_path / "missing")
    monkeypatch.setattr(os, "name", "nt")


@pytest.mark.usefixtures("windows")
class TestFallbacks:
    def test_the_limit_of_open_files_is_not_raised(self) -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert platform.raise_open_files(1 << 30) == 1 << 30
        assert platform.max_open_files() == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == before

    def test_no_handle_is_listed(self) -> None:
        assert not platform.can_list_handles()
        assert list(platform.open_handles()) == []

    def test_no_name_is_claimed(self) -> None:
        with platform.claim_name("127.0.0.1:8080"), platform.claim_name("127.0.0.1:8080"):
            pass

    def test_no_file_is_locked(self, tmp_path: Path) -> None:
        with (tmp_path / "lock").open("w") as first, (tmp_path / "lock").open("w") as second:
            platform.lock_file(first.fileno())
            platform.lock_file(second.fileno())

    def test_unix_sockets_and_shared_ports_are_refused_with_a_reason(self) -> None:
        with pytest.raises(OSError, match="unix sockets are not supported") as refused:
            platform.unix_socket()
        assert refused.value.errno == errno.EAFNOSUPPORT
        with socket.socket() as listener, pytest.raises(OSError, match="ports cannot be shared"):
            platform.set_shared_port(listener)

    def test_hangups_do_not_exist(self) -> None:
        platform.ignore_hangup()
        assert not platform.is_hangup_ignored()

    def test_memory_is_assumed(self) -> None:
        assert platform.resident_bytes() == 0
        assert platform.free_memory_bytes() == platform.ASSUMED_FREE_BYTES

    def test_bytes_in_flight_are_unknown(self) -> None:
        with socket.socket() as connection:
            assert platform.unacknowledged_bytes(connection) == 0

    def test_a_listening_server_is_found_by_connecting(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            address = Address("127.0.0.1", listener.getsockname()[1])
            assert not is_listening(address)
            listener.listen(1)
            assert is_listening(address)


def test_a_file_is_locked_by_one_open_file_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as first, path.open("w") as second:
        platform.lock_file(first.fileno())
        with pytest.raises(BlockingIOError):
            platform.lock_file(second.fileno())
    with path.open("w") as third:
        platform.lock_file(third.fileno())


def test_a_name_is_held_by_one_claim_at_a_time() -> None:
    name = f"a name of this test, {os.getpid()}"
    with platform.claim_name(name), pytest.raises(OSError, match="in use"):
        platform.claim_name(name)
    with platform.claim_name(name):
        pass
