"""`Upkeep`: what time alone brings about."""

from __future__ import annotations

import numpy as np

from equipoise.router.books import NEVER
from equipoise.router.events import Action
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, KEY_BITS, NOBODY
from equipoise.router.pool import PoolEvents
from equipoise.router.reasons import AbortReason, RejectReason

__all__ = ["Upkeep"]

TTL_PARTS = 8
"""Looks at the leases in the time one of them may be silent."""


class Upkeep(PoolEvents):
    """The router's clockwork; it has no clock."""

    def tick(self, now_s: float) -> list[Action]:
        """Do what is due: requests that waited too long, silent leases, health, old reports; offer the queue again."""
        self._health.tick(now_s)
        self._write_health(now_s)
        actions = self._expire_queue(now_s)
        if now_s - self._swept_s >= self.settings.lease_ttl_s / TTL_PARTS:
            self._swept_s = now_s
            actions += self._expire_leases(now_s)
        if now_s - self._checked_s >= self.settings.integrity_every_s:
            self._checked_s = now_s
            self.integrity(now_s)
            actions += self._end_leaks(now_s)
        calls.sweep(self._at, now_s)
        self._update_rung(now_s)
        return actions + self._place(now_s)

    def next_wakeup_s(self) -> float | None:
        """When `tick` has something to do if nothing else happens; none: never."""
        due = min(self._health.next_s(), self._rung_until_s)
        if self._count_of[COUNT.LIVE]:
            due = min(due, self._swept_s + self.settings.lease_ttl_s / TTL_PARTS)
            due = min(due, self._checked_s + self.settings.integrity_every_s)
        if self._count_of[COUNT.WAITING]:
            heads = self._kinds["first"][self._kinds["waiting"] > 0]
            oldest_s = float(self._tables.world.entries["arrived_s"][heads].min())
            due = min(due, oldest_s + self.settings.queue_ttl_s)
            if self.settings.round_every_s and self._count_of[COUNT.DIRTY]:
                due = min(due, self._round_s + self.settings.round_every_s)
        return due if due < NEVER else None

    def _expire_queue(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        before_s = now_s - self.settings.queue_ttl_s
        reason = RejectReason.QUEUE_TIMEOUT
        if not self._serving:
            reason = RejectReason.DRAINING if self._drained else RejectReason.NO_INSTANCE
        for kind in range(len(self._kinds)):
            while (e := calls.oldest(self._at, kind, before_s)) != NOBODY:
                key = (int(self._tables.world.entries["generation"][e]) << KEY_BITS) | e
                name = self._names[e] or ""
                calls.cancel(self._at, key)
                self._forget(key)
                actions.append(self._reject(now_s, name, reason))
        return actions

    def _expire_leases(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        e, before_s = -1, now_s - self.settings.lease_ttl_s
        while (e := calls.expire(self._at, e + 1, before_s)) != NOBODY:
            actions += self._abort_all(now_s, np.array([e]), AbortReason.EXPIRED)
            self._count_of[COUNT.EXPIRED] += 1
        return actions

    def _end_leaks(self, now_s: float) -> list[Action]:
        """End leases on ranks that have been reported idle since long after they were last heard of."""
        world, live = self._tables.world, self._tables.live()
        live = live[world.entries["rank"][live] != NOBODY]
        ranks = world.ranks[world.entries["rank"][live]]
        silent_s = ranks["reported_s"] - world.entries["heard_s"][live]
        leaks = live[(ranks["reported_batch"] == 0) & (silent_s > self.settings.leak_after_s)]
        return self._abort_all(now_s, leaks, AbortReason.LEAKED)
