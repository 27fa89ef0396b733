"""`PickerService`: all of `equipoise serve` but the bytes: engines are watched, Envoy asks, the admin port tells.

The main port stays: health, loads, and the decision API if wanted are there; what generates goes through Envoy.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from equipoise.engines.facts import GENERATING
from equipoise.errors import InputError
from equipoise.serve.config import ServeConfig
from equipoise.serve.edge import Routes
from equipoise.serve.envoy.ext_proc import PickerServer
from equipoise.serve.envoy.lengths import AnswerLengths
from equipoise.serve.envoy.options import socket_of, split_share
from equipoise.serve.envoy.picker import Picker
from equipoise.serve.service import Service
from equipoise.serve.targets import targets_of

__all__ = ["PickerService", "picker_config"]

_log = logging.getLogger(__name__)


def picker_config(config: ServeConfig, share: str | None = None) -> ServeConfig:
    """A configuration as a picker needs it: tokens are not seen, and of several pickers each has its own instances.

    Parameters
    ----------
    config : ServeConfig
    share : str, optional
        ``2/5``: of the instances in the order of their names, the second, seventh, ...; where the pickers share
        instances through Redis only its name, by which Envoy's log finds it.

    Raises
    ------
    InputError
        Workers are discovered, which Envoy's file could not know; or there are fewer instances than pickers.
    """
    if config.workers_file is not None or config.workers_dns is not None:
        raise InputError(
            "Envoy's file lists its endpoints, and discovered workers would not be in it",
            where="--mode ext-proc",
            fix="name the workers (--worker-urls, or workers in the file), for the picker and for envoy-config",
        )
    workers = config.workers
    if share is not None:
        k, n = split_share(share)
    if share is not None and not config.replicas.on:  # else they share their instances among themselves
        names = sorted(t.name for t in targets_of(workers, config.engine, config.dp_size))
        if len(names) < n:
            raise InputError(
                f"{len(names)} instances for {n} pickers", where="--share", fix="use fewer pickers"
            )
        own = set(names[k::n])
        workers = tuple(
            w for w in workers if {t.name for t in targets_of([w], config.engine, config.dp_size)} & own
        )
    return replace(config, workers=workers, router=replace(config.router, counts="extrapolated"))


class PickerService(Service):
    """Serves Envoy.

    Parameters
    ----------
    config : ServeConfig
        As `picker_config` makes it.
    address : str
        Where Envoy asks: ``HOST:PORT`` or ``unix:PATH``.
    share : str, optional
        The picker's name among several, ``2/5``.
    """

    def __init__(
        self, config: ServeConfig, address: str = "127.0.0.1:9100", share: str | None = None
    ) -> None:
        super().__init__(config)
        socket_of(address, "--picker", port_0=True)
        self.address, self._share = address, share
        self.picker: Picker
        self._picker_server: PickerServer | None = None

    @property
    def under_way(self) -> int:
        """Requests that hold a lease."""
        return len(self.driver.leases) + (len(self.owners.far) if self.owners is not None else 0)

    def also(self) -> list[str]:
        """Where Envoy asks."""
        share = f", as picker {self._share}" if self._share else ""
        return [
            *super().also(),
            f"Envoy asks on {self.address}{share}; its file: equipoise serve envoy-config",
        ]

    async def start(self) -> None:
        """Begin to look at the engines, and answer Envoy.

        Raises
        ------
        InputError
            A port cannot be used, or the workers make no instances.
        """
        await super().start()
        try:
            self.picker = Picker(
                self.driver,
                lengths=AnswerLengths(self.tokenizer),
                tally=self.tally,
                name=self._share or "",
                worker_key=self.config.forwarding.key_of,
                api_key=self.config.api_key,
            )
            server = PickerServer(
                self.picker, self.address, sign_of_life_s=min(self.config.router.lease_ttl_s / 4, 60.0)
            )
            await server.start()
        except BaseException:
            await self.close()
            raise
        self._picker_server = server
        self.address = server.address

    def _routes(self) -> Routes:
        return {path: methods for path, methods in super()._routes().items() if path not in GENERATING}

    async def drain(self) -> None:
        """Not ready any more, no new requests; wait for those under way. Envoy answers new ones 503 meanwhile."""
        self.public.draining = self.decide.draining = self.picker.draining = True
        await self.leave()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.config.drain_s
        while self.under_way and loop.time() < end_s:
            await asyncio.sleep(0.02)
        if self.under_way:
            _log.warning("%d requests are still under way: Envoy carries them to their end", self.under_way)

    async def stop_streams(self) -> None:
        """Nothing to stop: answers under way are Envoy's."""
        self.public.draining = self.decide.draining = self.picker.draining = True

    async def close(self) -> None:
        """End everything; answers under way are Envoy's and go on."""
        server, self._picker_server = self._picker_server, None
        if server is not None:
            await server.close()
        await super().close()
