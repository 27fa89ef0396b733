"""`Standing`: what decisions stand on (the fallback ladder), which instances are open, whether the sums are right."""

from __future__ import annotations

import logging

import numpy as np

from equipoise.policies.rules import UNLIMITED_BATCH
from equipoise.router.books import NEVER, RUNGS, Books
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, LIVE, QUEUED, SET
from equipoise.router.reasons import InstanceState
from equipoise.router.view import Integrity

__all__ = ["Standing"]

_log = logging.getLogger(__name__)


class Standing(Books):
    """Books that know how far they can be trusted."""

    def integrity(self, now_s: float | None = None) -> Integrity:
        """Compare the sums with what they are sums of, lease by lease; mend them, and say what was wrong.

        While they were found wrong, nothing is built on them: ranks are taken in turn until they are found right again.
        """
        tables, world = self._tables, self._tables.world
        batch, context, saturated = tables.sums()
        wrong = (world.ranks["batch"] != batch) | (world.ranks["context"] != context)
        wrong |= (world.saturated != saturated).any(axis=1)
        states = np.bincount(world.entries["state"], minlength=3)
        counts = (int(self._count_of[COUNT.LIVE]), int(self._count_of[COUNT.WAITING]))
        right = (int(states[LIVE]), int(states[QUEUED]))
        found = Integrity(
            ranks_wrong=int(wrong.sum()),
            counts_wrong=int(counts != right),
            missing=int(world.ranks["missing"].sum()),
        )
        self._sound = found.sound
        if not found.sound:
            _log.error("the ledger does not add up: %s; mended", found)
            world.ranks["batch"], world.ranks["context"] = batch, context
            world.saturated[:] = saturated
            self._count_of[COUNT.LIVE], self._count_of[COUNT.WAITING] = right
        if now_s is not None:
            if not found.sound:
                calls.show_all(self._at, now_s)
            self._update_rung(now_s)
        return found

    def _update_serving(self) -> None:
        """Whether anything can be served at all; if not, whether that is because of drains."""
        world = self._tables.world
        open_ranks = np.repeat(world.instances["closed"] == 0, world.instances["ranks"])
        undrained = world.ranks["drained"] == 0
        self._serving = bool((open_ranks & undrained).any())
        self._drained = bool(open_ranks.any())

    def _write_health(self, now_s: float) -> None:
        """Write what has changed in health to the tables."""
        if not self._health.changed:
            return
        instances = self._tables.world.instances
        for i, closed in enumerate(self._health.closed()):
            one = self._health.of[i]
            if i in self._health.changed:
                half = one.state is InstanceState.HALF_OPEN
                if half != bool(instances["probes_left"][i] < UNLIMITED_BATCH):
                    instances["probes_left"][i] = (
                        self.settings.half_open_requests if half else UNLIMITED_BATCH
                    )
                slow = one.state is InstanceState.SLOW_START
                instances["slow_until_s"][i] = one.until_s if slow else -NEVER
                instances["slow_from_s"][i] = one.until_s - self.settings.slow_start_s if slow else -NEVER
            if i in self._health.changed or bool(instances["closed"][i]) != closed:
                instances["closed"][i] = closed
                calls.show(self._at, i, now_s)
        self._health.changed.clear()
        self._update_serving()
        self._update_rung(now_s)

    def _update_rung(self, now_s: float) -> None:
        """Say what decisions stand on, and until when."""
        instances = self._tables.world.instances
        serving = instances["closed"] == 0
        trusted = [one.trusted for one, s in zip(self._health.of, serving, strict=True) if s]
        until_s = NEVER
        if not self._sound or (trusted and not any(trusted)):
            rung = 2
            if not self._sound:
                until_s = self._checked_s + self.settings.integrity_every_s
        elif self.settings.reports == "none" or not trusted:
            rung = 1
        else:
            oldest_s = float(instances["reported_s"][serving].min())
            rung = 0 if now_s - oldest_s <= self.settings.stale_after_s else 1
            if rung == 0:
                until_s = oldest_s + self.settings.stale_after_s
        if rung != self._rung:
            _log.info("decisions stand on %s now", RUNGS[rung])
        self._rung, self._rung_until_s = rung, until_s
        self._tables.world.settings[SET.RUNG] = rung
