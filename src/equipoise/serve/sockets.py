"""Addresses to listen on and to look up."""

from __future__ import annotations

import socket

from equipoise.errors import InputError

__all__ = ["BACKLOG", "host_port", "listen"]

BACKLOG = 4096


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening socket.

    Raises
    ------
    InputError
        The port is taken, may not be used, or the host is not one of this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"{host!r} is no address of this machine", where=f"--{option}", fix=str(error)
        ) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise InputError(
            f"port {port} on {host} cannot be used ({(error.strerror or str(error)).lower()})",
            where=f"--{option}",
            fix="something else listens there, or it takes rights: name another, or 0 for any free one",
        ) from error
    return sock


def host_port(text: str) -> tuple[str, int | None]:
    """``HOST:PORT``, or an SRV name without a port."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise InputError(f"{text!r} is no HOST:PORT", where="--workers-dns", fix="such as decode.svc:8000")
    return host, int(port)
