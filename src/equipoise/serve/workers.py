"""`Workers`: the engines that are listed, wherever they are listed, joined into targets; lists may change meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from equipoise.engines import DnsName, WatchedFile, WorkerSpec
from equipoise.engines.discovery import Change
from equipoise.engines.watchers import Watcher
from equipoise.errors import InputError
from equipoise.serve.config import ServeConfig
from equipoise.serve.sockets import host_port
from equipoise.serve.targets import Target, targets_of

__all__ = ["Workers"]

_log = logging.getLogger(__name__)


class Workers:
    """The listed engines.

    Parameters
    ----------
    config : ServeConfig
    clock : callable
        Seconds, for the sources.
    on_change : callable
        Called when `targets` has changed. `InputError` of it is said, and the list before stands.
    """

    def __init__(
        self, config: ServeConfig, clock: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        self.config = config
        self.targets: dict[str, Target] = {}
        self._clock, self._on_change = clock, on_change
        self._sources: dict[str, Watcher] = {}
        self._listed: dict[str, tuple[WorkerSpec, ...]] = {"": config.workers}
        self._signs: dict[str, tuple[object, ...]] = {}

    @property
    def sized(self) -> list[Target]:
        """Those whose ranks are known."""
        return [target for target in self.targets.values() if target.sized]

    def sources(self) -> Iterator[asyncio.Task[None]]:
        """Begin to look at the file and the name; a task each."""
        config = self.config
        if config.workers_file is not None:
            self._sources[config.workers_file] = WatchedFile(config.workers_file)
        if config.workers_dns is not None:
            host, port = host_port(config.workers_dns)
            self._sources[config.workers_dns] = DnsName(host, port, missing_for_s=10 * config.discovery_s)
        for name, source in self._sources.items():
            yield asyncio.create_task(self._discover(name, source), name=f"discover {name}")

    def join(self) -> bool:
        """Join what is listed into targets; those that were there stay the same objects. Whether anything changed."""
        config = self.config
        listed = [worker for workers in self._listed.values() for worker in workers]
        made = targets_of(
            listed,
            config.engine,
            config.dp_size,
            kv_capacity_tokens=config.kv_capacity_tokens,
            max_batch=config.max_batch,
            header_overrides=config.sglang_header_overrides,
        )
        signs = {t.name: _sign(t) for t in made}
        before = self._signs
        if signs == before:
            return False
        self.targets = {
            t.name: self.targets[t.name] if before.get(t.name) == signs[t.name] else t for t in made
        }
        self._signs = signs
        return True

    async def reload(self) -> dict[str, Any]:
        """Ask every source anew; what changed and what is wrong."""
        changed, problems = 0, []
        for name, source in self._sources.items():
            change = await source.poll(self._clock())
            problem = change.problem
            if change:
                changed += len(change.added) + len(change.removed)
                problem = self._found(name, source, change) or problem
            if problem:
                problems.append(f"{name}: {problem}")
        return {"changed": changed, "problems": problems, "workers": len(self.targets)}

    async def _discover(self, name: str, source: Watcher) -> None:
        told = ""
        while True:
            change = await source.poll(self._clock())
            if change.problem and change.problem != told:
                _log.warning("%s: %s", name, change.problem)
            told = change.problem
            if change:
                self._found(name, source, change)
            await asyncio.sleep(self.config.discovery_s)

    def _found(self, name: str, source: Watcher, change: Change) -> str:
        """A source lists other workers; what is wrong with them, if they cannot be used."""
        before = self._listed.get(name, ())
        self._listed[name] = source.members.workers
        try:
            if self.join():
                self._on_change()
        except InputError as error:
            self._listed[name] = before
            _log.error("%s: %s; the last list stands", name, error)
            return str(error)
        _log.info("%s: %d workers, %d new", name, len(source.members.workers), len(change.added))
        return ""


def _sign(target: Target) -> tuple[object, ...]:
    """What makes a target another one when the list changes."""
    return tuple(
        (
            *(n.engine.urls, n.engine.kind, n.engine.first_rank, n.engine.worker_id, n.engine.metrics_urls),
            n.sized and n.engine.ranks,
        )
        for n in target.nodes
    )
