"""Thin watchers over `equipoise.engines.discovery`: a list, a file, a DNS name.

Each has ``poll(now_s) -> Change``; `watch` calls it in a loop. The file is read whole when its identity changed (write
a new file and rename it over the old one; an unfinished one is a bad file, and the last good one stands).
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from equipoise.engines.discovery import Change, Members
from equipoise.engines.workers import WorkerSpec, parse_workers
from equipoise.errors import EngineError, InputError

__all__ = ["DnsName", "Resolver", "StaticList", "SystemResolver", "WatchedFile", "Watcher", "watch"]

MAX_FILE_BYTES = 16 << 20


class Watcher(Protocol):
    """A source of workers."""

    members: Members

    async def poll(self, now_s: float) -> Change:
        """Ask once."""
        ...


class StaticList:
    """Workers that do not change."""

    def __init__(self, workers: Iterable[WorkerSpec]) -> None:
        self.members = Members()
        self._workers = tuple(workers)

    async def poll(self, now_s: float) -> Change:
        """All of them the first time, no change after."""
        return self.members.answered(now_s, self._workers)


class WatchedFile:
    """Workers in a file of lines, TOML or JSON.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: str | Path) -> None:
        self.members = Members(keep_last=False)
        self._path = Path(path)
        self._stamp: tuple[int, ...] | None = None

    async def poll(self, now_s: float) -> Change:
        """Read it if it changed; a bad one changes nothing and is told once a version."""
        try:
            found = os.stat(self._path)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self._stamp:
                return Change(problem=self.members.problem)
            if found.st_size > MAX_FILE_BYTES:
                raise InputError(
                    f"{found.st_size:,} bytes", where=str(self._path), fix="it is no list of workers"
                )
            text = self._path.read_bytes().decode("utf-8")
            workers = parse_workers(text, str(self._path))
            if not workers and self.members.workers and not text.strip():
                # Editors and copies leave a file empty for a moment.
                raise InputError(
                    "the file is empty", where=str(self._path), fix="write '[]' to have no workers"
                )
        except OSError as error:
            self._stamp = None
            return self.members.failed(f"{self._path} cannot be read ({error.strerror or error})")
        except UnicodeDecodeError:
            self._stamp = stamp
            return self.members.failed(f"{self._path} is not UTF-8")
        except InputError as error:
            self._stamp = stamp
            return self.members.failed(str(error))
        self._stamp = stamp
        return self.members.answered(now_s, workers)


class Resolver(Protocol):
    """What a DNS name stands for; raises `EngineError` where it cannot tell."""

    async def addresses(self, host: str) -> list[str]:
        """IPv4 and IPv6 addresses (A, AAAA)."""
        ...

    async def services(self, name: str) -> list[tuple[str, int]]:
        """Hosts and ports (SRV)."""
        ...


class SystemResolver:
    """The running loop's resolver; SRV through ``aiodns`` where that is installed, since the system has no call."""

    async def addresses(self, host: str) -> list[str]:
        """A and AAAA."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise EngineError(f"{host} does not resolve ({error}).") from error
        return sorted({str(item[4][0]) for item in found})

    async def services(self, name: str) -> list[tuple[str, int]]:
        """SRV; of several priorities the lowest, as RFC 2782 says."""
        try:
            import aiodns
        except ImportError as error:
            raise EngineError(
                f"{name} is an SRV name; asking for it needs aiodns: pip install aiodns."
            ) from error
        try:
            answer = await aiodns.DNSResolver().query_dns(name, "SRV")
            records = [record.data for record in answer.answer if hasattr(record.data, "port")]
        except (aiodns.error.DNSError, OSError) as error:
            raise EngineError(f"{name} does not resolve ({error}).") from error
        first = min((r.priority for r in records), default=0)
        return sorted((str(r.target).rstrip("."), int(r.port)) for r in records if r.priority == first)


class DnsName:
    """Workers behind a DNS name, such as a headless service.

    Parameters
    ----------
    name : str
        A host name; with ``port=None`` an SRV name such as ``_http._tcp.decode.example``.
    port : int, optional
        Port of every address.
    template : WorkerSpec, optional
        What else is true of each of them; its address is replaced.
    resolver : Resolver, optional
    missing_for_s : float
        A resolver may leave out addresses for a while.
    """

    def __init__(
        self,
        name: str,
        port: int | None,
        template: WorkerSpec | None = None,
        *,
        scheme: str = "http",
        resolver: Resolver | None = None,
        missing_for_s: float = 30.0,
    ) -> None:
        self.members = Members(missing_for_s=missing_for_s)
        self._name, self._port, self._scheme = name, port, scheme
        self._template = template or WorkerSpec("http://unknown")
        self._resolver = resolver or SystemResolver()

    async def poll(self, now_s: float) -> Change:
        """Resolve it once."""
        try:
            if self._port is None:
                places = await self._resolver.services(self._name)
            else:
                places = [(address, self._port) for address in await self._resolver.addresses(self._name)]
        except EngineError as error:
            return self.members.failed(str(error))
        workers = [replace(self._template, url=f"{self._scheme}://{_host(h)}:{p}") for h, p in places]
        return self.members.answered(now_s, workers)


def _host(text: str) -> str:
    try:
        return f"[{text}]" if ipaddress.ip_address(text.partition("%")[0]).version == 6 else text
    except ValueError:
        return text


async def watch(
    source: Watcher,
    period_s: float,
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Change]:
    """Changes and new problems as they come, for ever; the first answer at once."""
    told = ""
    while True:
        change = await source.poll((clock or asyncio.get_running_loop().time)())
        if change or change.problem != told:
            yield change
        told = change.problem
        await sleep(period_s)
