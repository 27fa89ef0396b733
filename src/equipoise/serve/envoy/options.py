"""What an Envoy configuration is made from, and what does not go together."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from equipoise.errors import InputError

__all__ = ["MOST_BODY_BYTES", "EnvoyOptions", "Socket", "socket_of", "split_share"]

MOST_BODY_BYTES = 60 << 20
"""The picker takes gRPC messages of 64 MiB, and a body is one message."""
MOST_PICKERS = 64


@dataclass(frozen=True, slots=True)
class Socket:
    """An address Envoy listens on or connects to: host (an IP address) and port, or a path."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def yaml(self) -> str:
        """As Envoy's ``address``."""
        if self.path:
            return f'{{pipe: {{path: "{self.path}"}}}}'
        return f'{{socket_address: {{address: "{self.host}", port_value: {self.port}}}}}'


def socket_of(text: str, where: str, *, port_0: bool = False) -> Socket:
    """Read ``HOST:PORT`` or ``unix:PATH``.

    Raises
    ------
    InputError
        The host is a name, or there is no port. Envoy compares the picker's choice with resolved addresses, so names
        would have to resolve alike in two places.

    Examples
    --------
    >>> str(socket_of("127.0.0.1:8000", "--listen"))
    '127.0.0.1:8000'
    """
    if text.startswith("unix:"):
        path = text[5:]
        if not path.isascii() or not path.startswith("/") or any(c <= " " or c in '"\\' for c in path):
            raise InputError(f"{text[:80]!r} is no socket path", where=where, fix="write unix:/PATH")
        if len(path) > 100:
            raise InputError(f"the path of {len(path)} characters", where=where, fix="Linux allows 107")
        return Socket(path=path)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port[:6]) < 65_536 and (port_0 or int(port))):
        raise InputError(
            f"{text[:80]!r} has no port", where=where, fix="write HOST:PORT, e.g. 127.0.0.1:10000"
        )
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise InputError(
            f"{host[:80]!r} is no IP address",
            where=where,
            fix="write the address: Envoy compares addresses, and a name may resolve otherwise in the picker",
        ) from None
    return Socket(host, int(port))


def split_share(text: str) -> tuple[int, int]:
    """Read ``2/5``: the second of five pickers; it owns every fifth instance.

    Examples
    --------
    >>> split_share("2/5")
    (1, 5)
    """
    first, _, second = text.partition("/")
    if first.isascii() and first.isdigit() and second.isascii() and second.isdigit() and len(text) < 8:
        one, of = int(first), int(second)
        if 1 <= one <= of <= MOST_PICKERS:
            return one - 1, of
    raise InputError(f"{text[:20]!r} is no share", where="--share", fix="write 1/5 to 5/5 for five pickers")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyOptions:
    """What `equipoise.serve.envoy.envoy_config` writes down.

    Parameters
    ----------
    workers : sequence of str
        ``http://ADDRESS:PORT`` of every worker (with a port a rank: of every rank).
    listen : str
        Where clients come in.
    admin : str
        Envoy's own admin page; empty: none.
    pickers : sequence of str
        Addresses of the pickers; with several, each owns a share of the instances (``--share 1/2``).
    message_timeout_s : float
        How long Envoy waits for the picker: longer than it may queue.
    queue_ttl_s : float
        How long the picker queues.
    connect_timeout_s : float
        To a worker.
    idle_timeout_s : float
        Without a byte in either direction; 0: for ever.
    most_body_bytes : int
        A longer request is answered with 413.
    most_connections : int
        Open at once to workers, and requests likewise.
    access_log : bool
        Whether the picker is told how requests ended.
    usage : bool
        Whether Envoy reads the token counts in answers (``sse_to_metadata``, which its makers call work in progress).
    behind_pd_proxy : bool
        The clients are a proxy that has chosen the prefill side: its headers about that pass.
    class_header : str
        Header that the picker takes the class of a request from.

    Raises
    ------
    InputError
        Values that do not go together.
    """

    workers: Sequence[str]
    listen: str = "127.0.0.1:10000"
    admin: str = "127.0.0.1:9901"
    pickers: Sequence[str] = ("127.0.0.1:9100",)
    message_timeout_s: float = 35.0
    queue_ttl_s: float = 30.0
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 600.0
    most_body_bytes: int = 32 << 20
    most_connections: int = 100_000
    access_log: bool = True
    usage: bool = False
    behind_pd_proxy: bool = False
    class_header: str = "x-request-class"

    def __post_init__(self) -> None:
        taken: dict[str, str] = {}
        entrances = [(self.listen, "--listen"), *((p, "--picker") for p in self.pickers)]
        for text, where in [*entrances, *([(self.admin, "--admin")] if self.admin else [])]:
            socket = str(socket_of(text, where))
            if socket in taken:
                raise InputError(f"{socket} is {taken[socket]} too", where=where, fix="give it its own port")
            taken[socket] = where
        if not self.workers:
            raise InputError("no worker", where="--worker-urls", fix="give the addresses of the engines")
        for worker in self.endpoints():
            if str(worker) in taken:
                raise InputError(
                    f"the worker {worker} is {taken[str(worker)]} too",
                    where="--worker-urls",
                    fix="give each its own",
                )
        if not 1 <= len(self.pickers) <= MOST_PICKERS:
            raise InputError(
                f"{len(self.pickers)} pickers", where="--picker", fix=f"give 1 to {MOST_PICKERS}"
            )
        if not self.message_timeout_s > self.queue_ttl_s:
            raise InputError(
                f"Envoy would wait {self.message_timeout_s:g} s for a picker that may queue for {self.queue_ttl_s:g} s",
                where="--message-timeout",
                fix=f"use more than {self.queue_ttl_s:g}, or a shorter queue_ttl_s",
            )
        for name, low, high in (
            ("message_timeout_s", 0.01, 86_400),
            ("connect_timeout_s", 0.01, 3_600),
            ("idle_timeout_s", 0, 1e7),
            ("most_body_bytes", 1 << 10, MOST_BODY_BYTES),
            ("most_connections", 1, 10_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{name} = {value}", fix=f"use {low} to {high}")
        if self.usage and not self.access_log:
            raise InputError(
                "usage without the access log", where="--usage", fix="it is the log that carries it"
            )
        if (
            not all(c.islower() or c.isdigit() or c == "-" for c in self.class_header)
            or not self.class_header
        ):
            raise InputError(
                f"{self.class_header[:40]!r} is no header", fix="use lower-case letters, digits, hyphens"
            )

    def endpoints(self) -> list[Socket]:
        """Addresses of the workers, each once, in the order given."""
        found: dict[str, Socket] = {}
        for text in self.workers:
            parts = urlsplit(text)
            if parts.scheme != "http":
                raise InputError(
                    f"the worker {text[:80]!r} is not http",
                    where="--worker-urls",
                    fix="for TLS towards workers add a transport_socket to the cluster 'workers' by hand",
                )
            address = parts.netloc if parts.port else f"{parts.netloc}:80"
            socket = socket_of(address, "--worker-urls")
            found[str(socket)] = socket
        return list(found.values())
