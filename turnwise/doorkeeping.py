"""Who may talk to a server of ours: programs on this machine, or whoever knows its token."""

from __future__ import annotations

import hmac
import socket

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names of this machine that no other machine can reach."""
_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Hosts that stand for all addresses of this machine, and one of them."""
_UNREAD_SECONDS = 60


def is_loopback(host: str) -> bool:
    """Whether a server on this address can be reached from this machine only."""
    return host in LOOPBACK


def from_elsewhere(host: str) -> str:
    """How others reach a server that listens on all addresses, in words; empty for any other."""
    return f" (from elsewhere with this machine's name in place of {_ALL[host]})" if host in _ALL else ""


def names_loopback(header: str) -> bool:
    """Whether a request's Host header names this machine: a page elsewhere whose name was rebound here has its own."""
    host, colon, port = header.rpartition(":")
    name = host if colon and port.isdigit() and not (header.startswith("[") and header.endswith("]")) else header
    return name.removeprefix("[").removesuffix("]") in LOOPBACK


def is_token(given: str, token: str) -> bool:
    """Whether somebody knows the token; the time it takes tells nothing about it."""
    return hmac.compare_digest(given.encode(), token.encode())


def listen(host: str, port: int, *, waiting: int = 2048) -> socket.socket:
    """A socket that listens there; port 0 is any free one."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is {port}; choose one from 0 to 65535")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it the second part of an answer waits 40 ms for the receipt of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # whoever reads nothing for so long is cut off
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_SECONDS * 1000)
        listener.bind((host, port))
        listener.listen(waiting)
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Where a browser or a client on this machine finds it: `http://127.0.0.1:8100`."""
    host = _ALL.get(host, host)  # nobody can open an address that stands for all of this machine's
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
