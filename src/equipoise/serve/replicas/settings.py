"""`Replicas`: what a router is told of the others before its pool, as plain values."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from equipoise.errors import InputError
from equipoise.serve.replicas.ownership import Timing

__all__ = ["Replicas", "host_and_port"]

SCHEMES = ("redis", "rediss", "unix")
ANY_HOST = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Several routers before one pool; without an address of Redis there is one.

    Parameters
    ----------
    redis : str, optional
        Address of the Redis or Valkey that keeps who owns which instance, ``redis://HOST:PORT``.
    pool : str
        Routers of one name share their instances.
    advertise : str
        ``HOST:PORT`` at which the other routers reach this one; port 0: any free one.
    listen : str
        ``HOST:PORT`` where it listens for them, if that is another one.
    token : str, optional
        What routers show each other; left out, the first of them draws one and keeps it in Redis.
    ttl_s : float
        How long an owner may be silent until others take its instances.
    rebuild_s : float
        A new owner waits so long at most for what the others say before it places.
    hold_s : float
        A request waits so long at most for its instance to have an owner that answers.
    call_s : float
        A call between routers may take so long.
    gone_s : float
        A router that has been silent for so long is gone, and its requests with it.
    """

    redis: str | None = field(default=None, repr=False)
    pool: str = "default"
    advertise: str = "127.0.0.1:0"
    listen: str = ""
    token: str | None = field(default=None, repr=False)
    ttl_s: float = 3.0
    rebuild_s: float = 2.0
    hold_s: float = 10.0
    call_s: float = 2.0
    gone_s: float = 6.0

    @property
    def on(self) -> bool:
        """Whether there are others."""
        return self.redis is not None

    @property
    def timing(self) -> Timing:
        """How long things may take."""
        return Timing(
            ttl_s=self.ttl_s,
            rebuild_s=self.rebuild_s,
            hold_s=self.hold_s,
            call_s=self.call_s,
            gone_s=self.gone_s,
        )

    @property
    def shown(self) -> str:
        """The address of Redis without what is secret in it."""
        parts = urlsplit(self.redis or "")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def check(self) -> None:
        """See whether it goes together.

        Raises
        ------
        InputError
            An address is none, a time is out of bounds, or the token is no key.
        """
        for name, low, high in (
            ("ttl_s", 0.1, 3_600.0),
            ("rebuild_s", 0.0, 3_600.0),
            ("hold_s", 0.0, 3_600.0),
            ("call_s", 0.01, 3_600.0),
            ("gone_s", self.ttl_s, 86_400.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"{name} = {value}", where="[replicas]", fix=f"use {low:g} to {high:g}")
        if self.redis is not None:
            _check_redis(self.redis)
        if not self.pool or not self.pool.isprintable() or any(c in "{}: " for c in self.pool):
            raise InputError(
                f"pool = {self.pool[:40]!r}", where="[replicas]", fix="use a word, such as decode-eu"
            )
        host, _ = host_and_port(self.advertise, "advertise")
        if host in ANY_HOST:
            raise InputError(
                f"advertise = {self.advertise!r} is no address that others can call",
                where="[replicas]",
                fix="name this machine's own, and listen = for where it binds",
            )
        if self.listen:
            host_and_port(self.listen, "listen")
        if self.token is not None and (
            len(self.token) < 8 or not self.token.isascii() or not self.token.isprintable()
        ):
            raise InputError(
                "the token of the routers is no key",
                where="[replicas]",
                fix="use 8 or more printable ASCII characters",
            )


def host_and_port(text: str, name: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; brackets around an IPv6 address are taken off.

    Examples
    --------
    >>> host_and_port("[::1]:30001", "listen")
    ('::1', 30001)
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    good = bool(colon) and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65_536
    if good and ":" in host:
        try:
            good = bare != host and ipaddress.ip_address(bare).version == 6
        except ValueError:
            good = False
    if not good or not bare or any(c <= " " or c in "/@?#" for c in bare):
        raise InputError(
            f"{name} = {text[:80]!r} is no HOST:PORT", where="[replicas]", fix="such as 10.0.0.5:30001"
        )
    return bare, int(port)


def _check_redis(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in SCHEMES and bool(parts.path if parts.scheme == "unix" else parts.hostname)
        good = good and (parts.scheme == "unix" or parts.port != 0)
    except ValueError:
        good = False
    if not good:  # what it is is not said: there may be a password in it
        raise InputError(
            "the address of Redis is none",
            where="--replicas-redis",
            fix="write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH",
        )
