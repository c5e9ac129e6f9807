"""Facilities of the operating system that not every platform has, each with a stated fallback.

Linux has all of them. No other module imports `fcntl`, `resource` or `termios`, or names a signal, a socket option or a file of
`/proc` that is missing elsewhere.
"""

import errno
import os
import signal
import socket
import struct
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

resource: Any
termios: Any
fcntl: Any
try:
    import fcntl
    import resource
    import termios
except ImportError:  # Windows.
    fcntl = resource = termios = None

HANDLES = Path("/dev/fd")
MEMINFO = Path("/proc/meminfo")
STATM = Path("/proc/self/statm")

OPEN_WITHOUT_WAITING: int = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open` that read a file, follow no symbolic link, and do not wait for the writer of a pipe (both POSIX only)."""

ASSUMED_FREE_BYTES = 1 << 30
"""Free memory, in bytes, where the system does not report it."""


def raise_open_files(n_wanted: int) -> int:
    """Raises the limit of open files (`ulimit -n`) to `n_wanted`, up to the system's limit.

    Returns:
        The limit afterwards, at most `n_wanted`. Windows has no such limit for sockets: `n_wanted`.
    """
    if resource is None:
        return n_wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= n_wanted:
        return n_wanted
    soft = n_wanted if hard == resource.RLIM_INFINITY else min(n_wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    except (OSError, ValueError):  # macOS refuses more than kern.maxfilesperproc, whatever the hard limit is.
        return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return int(soft)


def max_open_files() -> int:
    """Returns the limit of open files; 0 on platforms without one."""
    return 0 if resource is None else int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def can_list_handles() -> bool:
    """Returns true if `open_handles` lists the open handles of this process, which it does not on Windows."""
    return HANDLES.is_dir()


def open_handles() -> Iterable[int]:
    """Returns the numbers of the open handles of this process, and possibly some that are closed; none on Windows."""
    try:
        return map(int, os.listdir(HANDLES))  # noqa: PTH208 (only the names are needed)
    except OSError:  # Listing takes a handle, and none may be left.
        return range(max_open_files())


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Returns the bytes sent on a TCP connection that its peer has not acknowledged; 0 where the system does not report them."""
    if termios is None or not hasattr(termios, "TIOCOUTQ"):
        return 0
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, struct.pack("i", 0)))[0])


def unix_socket() -> socket.socket:
    """Returns a new unix socket.

    Raises:
        OSError: The platform has none (Windows).
    """
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError(errno.EAFNOSUPPORT, "unix sockets are not supported on this platform")
    return socket.socket(family)


def claim_name(name: str) -> AbstractContextManager[object]:
    """Claims a name that one process at a time can hold, until the socket is closed or the process ends.

    Returns:
        The claim: a socket with an abstract address (unix(7)). Without effect on other systems than Linux: two servers that start
        at the same moment detect each other there when the second one binds.

    Raises:
        OSError: Another process holds the name.
    """
    if os.name != "posix" or not Path("/proc/self").exists():
        return nullcontext()
    claim = unix_socket()
    try:
        # The leading zero makes the address abstract. Its length is limited, the name's is not.
        claim.bind(f"\0weft-{sha256(name.encode()).hexdigest()}")
    except OSError:
        claim.close()
        raise
    return claim


def lock_file(descriptor: int) -> None:
    """Locks an open file exclusively (flock(2)), until it is closed or the process ends; without effect on Windows.

    Raises:
        BlockingIOError: Another open file of the same path holds the lock.
        OSError: The file system has no locks.
    """
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def set_shared_port(listener: socket.socket) -> None:
    """Lets several processes listen on the port that `listener` will be bound to.

    Raises:
        OSError: The platform cannot (Windows).
    """
    option = getattr(socket, "SO_REUSEPORT", None)
    if option is None:
        raise OSError(errno.ENOPROTOOPT, "ports cannot be shared on this platform")
    listener.setsockopt(socket.SOL_SOCKET, option, 1)


def ignore_hangup() -> None:
    """Ignores SIGHUP; without effect where there is no such signal."""
    if (hangup := getattr(signal, "SIGHUP", None)) is not None:
        signal.signal(hangup, signal.SIG_IGN)


def is_hangup_ignored() -> bool:
    """Returns true if SIGHUP is ignored, as under `nohup`; false where there is no such signal."""
    hangup = getattr(signal, "SIGHUP", None)
    return hangup is not None and signal.getsignal(hangup) is signal.SIG_IGN


def resident_bytes() -> int:
    """Returns the resident memory of this process, in bytes; 0 where there is no `/proc`."""
    with suppress(OSError):
        return int(STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def free_memory_bytes() -> int:
    """Returns the memory, in bytes, that a process could take without swapping: Linux's estimate, or the unused memory.

    `ASSUMED_FREE_BYTES` where the system reports neither.
    """
    try:
        lines = MEMINFO.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return ASSUMED_FREE_BYTES
