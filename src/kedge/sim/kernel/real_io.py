"""Real I/O is rejected on a simulated loop, at the call site, with an error that names the alternative.

`SimLoop` overrides the methods that it can simulate. The audit hook catches code that bypasses the loop: real sockets,
processes and threads, even if a library opens them.
"""

from __future__ import annotations

import _thread
import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from kedge.errors import Bug


class RealIORefused(Bug):
    """Simulated code tried to do real I/O; nothing was done. Use the alternative that the message names."""


def _refuse(what: str, instead: str) -> Any:
    def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ARG001
        raise RealIORefused(f"{what} is real I/O, and this loop is simulated: {instead}")

    refuse.__name__ = what
    return refuse


_USE_NETWORK = "use create_connection and create_server, which use the simulated network"
_USE_DRIVER = "pass a process driver in as a port, and a simulated one here"
_USE_HOSTS = "use Host.crash, Host.pause and Host.restart"


class RefusingLoop(asyncio.AbstractEventLoop):
    """Rejects every method of an event loop that needs real I/O."""

    add_reader = _refuse("add_reader", _USE_NETWORK)
    remove_reader = _refuse("remove_reader", _USE_NETWORK)
    add_writer = _refuse("add_writer", _USE_NETWORK)
    remove_writer = _refuse("remove_writer", _USE_NETWORK)
    sock_recv = _refuse("sock_recv", _USE_NETWORK)
    sock_recv_into = _refuse("sock_recv_into", _USE_NETWORK)
    sock_recvfrom = _refuse("sock_recvfrom", _USE_NETWORK)
    sock_recvfrom_into = _refuse("sock_recvfrom_into", _USE_NETWORK)
    sock_sendall = _refuse("sock_sendall", _USE_NETWORK)
    sock_sendto = _refuse("sock_sendto", _USE_NETWORK)
    sock_connect = _refuse("sock_connect", _USE_NETWORK)
    sock_accept = _refuse("sock_accept", _USE_NETWORK)
    sock_sendfile = _refuse("sock_sendfile", _USE_NETWORK)
    sendfile = _refuse("sendfile", "write the bytes to the transport")
    connect_accepted_socket = _refuse("connect_accepted_socket", _USE_NETWORK)
    create_datagram_endpoint = _refuse("create_datagram_endpoint", "use Host.send for messages that may be lost")
    create_unix_connection = _refuse("create_unix_connection", _USE_NETWORK)
    create_unix_server = _refuse("create_unix_server", _USE_NETWORK)
    start_tls = _refuse("start_tls", "send plain bytes: the simulated network needs no encryption")
    connect_read_pipe = _refuse("connect_read_pipe", _USE_DRIVER)
    connect_write_pipe = _refuse("connect_write_pipe", _USE_DRIVER)
    subprocess_shell = _refuse("subprocess_shell", _USE_DRIVER)
    subprocess_exec = _refuse("subprocess_exec", _USE_DRIVER)
    add_signal_handler = _refuse("add_signal_handler", _USE_HOSTS)
    remove_signal_handler = _refuse("remove_signal_handler", _USE_HOSTS)
    getaddrinfo = _refuse("getaddrinfo", _USE_NETWORK)
    getnameinfo = _refuse("getnameinfo", _USE_NETWORK)
    create_connection = _refuse("create_connection", "make the loop with `kedge.sim.kernel.run`")
    create_server = _refuse("create_server", "make the loop with `kedge.sim.kernel.run`")


# -- code that bypasses the loop -------------------------------------------------------------------

_AUDITED = {
    "socket.__new__": ("a real socket", _USE_NETWORK),
    "socket.connect": ("a real connection", _USE_NETWORK),
    "socket.bind": ("a real socket", _USE_NETWORK),
    "socket.getaddrinfo": ("a real name lookup", _USE_NETWORK),
    "socket.gethostbyname": ("a real name lookup", _USE_NETWORK),
    "subprocess.Popen": ("a real process", _USE_DRIVER),
    "os.system": ("a real process", _USE_DRIVER),
    "os.fork": ("a real process", _USE_DRIVER),
    "os.forkpty": ("a real process", _USE_DRIVER),
    "os.posix_spawn": ("a real process", _USE_DRIVER),
    "os.exec": ("a real process", _USE_DRIVER),
    "os.kill": ("a real signal", _USE_HOSTS),
    "_thread.start_new_thread": ("a thread", "use env.spawn, or run_in_executor, which runs inline here"),
    "_thread.start_joinable_thread": ("a thread", "use env.spawn, or run_in_executor, which runs inline here"),
    "time.sleep": ("a real sleep", "use await asyncio.sleep"),
}
_installed = False


def install_audit_hook() -> None:
    """Install the audit hook, once for the interpreter. It acts only while a simulated loop runs in the thread."""
    global _installed  # noqa: PLW0603
    if _installed:
        return
    _installed = True
    sys.addaudithook(_audit)
    if sys.version_info < (3, 13):  # these versions do not audit new threads
        for module, name in ((threading, "_start_new_thread"), (_thread, "start_new_thread")):
            setattr(module, name, _audited_thread_start(getattr(module, name)))


def _audited_thread_start(start: Callable[..., int]) -> Callable[..., int]:
    def start_new_thread(*args: Any, **kwargs: Any) -> int:
        _audit("_thread.start_new_thread", args)
        return start(*args, **kwargs)

    return start_new_thread


def _audit(event: str, args: tuple[Any, ...]) -> None:  # noqa: ARG001
    refusal = _AUDITED.get(event)
    if refusal is not None and isinstance(asyncio._get_running_loop(), RefusingLoop):
        what, instead = refusal
        raise RealIORefused(f"{what} ({event}) is real I/O, and this loop is simulated: {instead}")
