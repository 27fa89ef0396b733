"""`PoolEvents`: what engines report, and what becomes of instances and ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from equipoise.errors import InputError
from equipoise.policies.rules import UNLIMITED_BATCH, UNLIMITED_TOKENS
from equipoise.router.books import NEVER, check_specs
from equipoise.router.events import Action, InstanceSpec, RankReport
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import COUNT, NOBODY
from equipoise.router.reasons import AbortReason, InstanceState
from equipoise.router.rounds import Rounds
from equipoise.types import Ints

__all__ = ["PoolEvents"]


class PoolEvents(Rounds):
    """The router's pool."""

    def report(self, now_s: float, report: RankReport) -> list[Action]:
        """An engine says what runs on a rank."""
        return self.report_many(now_s, (report,))

    def report_many(self, now_s: float, reports: Iterable[RankReport]) -> list[Action]:
        """The same of several ranks; the queue is offered once."""
        for report in reports:
            self._report(now_s, report)
        self._write_health(now_s)
        if now_s >= self._rung_until_s:
            self._update_rung(now_s)
        return self._offer(now_s) if self._count_of[COUNT.WAITING] else []

    def others(
        self, now_s: float, batch: Sequence[int] | Ints, context_tokens: Sequence[int] | Ints
    ) -> list[Action]:
        """Whoever knows it now says what runs on every rank of the pool beside own leases; replaces what reports said.

        For a router inside an engine, whose peers share their sums. A report is of the past, and has own leases in it.
        """
        world = self._tables.world
        ranks, width = world.ranks, len(world.ranks)
        for name, values in (("others_batch", batch), ("others_context", context_tokens)):
            if len(values) != width:
                raise InputError(f"{len(values)} values for {width} ranks", fix="give one a rank of the pool")
            ranks[name] = np.clip(values, 0, UNLIMITED_BATCH)
        ranks["reported_s"] = now_s
        ranks["reported_step"] = world.instances["steps"][world.view.instance]
        world.instances["reported_s"] = now_s
        calls.show_all(self._at, now_s)
        return self._offer(now_s) if self._count_of[COUNT.WAITING] else []

    def step_ended(self, now_s: float, instance: int, steps: int = 1) -> list[Action]:
        """An instance is at its step boundary: for drivers that know; from then on its steps are not inferred."""
        if 0 <= instance < len(self._specs):
            calls.stepped(self._at, instance, max(steps, 0), NEVER, now_s)
        return self._offer(now_s) if self._count_of[COUNT.WAITING] else []

    def step_started(self, now_s: float, instance: int, ends_s: float) -> list[Action]:
        """An instance has begun a step that will end then."""
        if 0 <= instance < len(self._specs):
            calls.stepped(self._at, instance, 0, ends_s, now_s)
        return []

    def instance_lost(self, now_s: float, instance: int, reason: str = "lost") -> list[Action]:
        """An instance is gone, and all that ran there."""
        if not 0 <= instance < len(self._specs):
            return []
        self._health.lost(instance, reason)
        first, width = self._first[instance], self._specs[instance].width
        self._write_health(now_s)
        return [*self._lose(now_s, first, first + width, AbortReason.INSTANCE_LOST), *self._offer(now_s)]

    def instance_ok(self, now_s: float, instance: int) -> list[Action]:
        """An instance is well (again): one that was lost starts slowly, one that was ejected is tried."""
        if 0 <= instance < len(self._specs):
            self._health.well(instance, now_s, self._specs[instance].width)
            self._write_health(now_s)
        return self._offer(now_s)

    def rank_lost(self, now_s: float, instance: int, rank: int, reason: str = "lost") -> list[Action]:
        """A rank is gone, and all that ran there; its instance stalls, so nothing more is sent to it."""
        r = self._rank(instance, rank)
        if r is None:
            return []
        self._health.lost(instance, reason)
        self._write_health(now_s)
        return [*self._lose(now_s, r, r + 1, AbortReason.RANK_LOST), *self._offer(now_s)]

    def drain(self, now_s: float, instance: int, rank: int | None = None) -> list[Action]:
        """Send nothing more to an instance, or a rank of it; what runs there runs on."""
        return self._drain(now_s, instance, rank, 1)

    def undrain(self, now_s: float, instance: int, rank: int | None = None) -> list[Action]:
        """Send there again."""
        return self._drain(now_s, instance, rank, 0)

    def set_instances(
        self,
        now_s: float,
        specs: Sequence[InstanceSpec],
        *,
        warm: Collection[str] = (),
        offer: bool = True,
    ) -> list[Action]:
        """These are the instances now. What runs on one that is gone runs on; a changed number of ranks ends it.

        A new one starts slowly, unless its name is in `warm`: it is under load, and only new to this router. Without
        `offer` requests that wait are not placed yet: what runs on the new ones is still to be told.
        """
        check_specs(specs)
        was = {spec.name: i for i, spec in enumerate(self._specs)}
        position = {spec.name: i for i, spec in enumerate(specs)}
        actions: list[Action] = []
        for name, i in was.items():
            j = position.get(name)
            if j is not None and specs[j].width != self._specs[i].width:
                first = self._first[i]
                actions += self._lose(
                    now_s, first, first + self._specs[i].width, AbortReason.INSTANCE_CHANGED
                )
                del position[name]
        instances_to = [position.get(spec.name, -1) for spec in self._specs]
        first_new = np.concatenate([[0], np.cumsum([spec.width for spec in specs])]).tolist()
        ranks_to = [
            -1 if instances_to[i] < 0 else int(first_new[instances_to[i]]) + k
            for i, spec in enumerate(self._specs)
            for k in range(spec.width)
        ]
        health = [self._health.new(now_s, spec.width) for spec in specs]
        for i, j in enumerate(instances_to):
            if j >= 0:
                health[j] = self._health.of[i]
        fresh = [j for j in range(len(specs)) if j not in instances_to]
        if self._specs and len(fresh) < len(specs) and self.settings.slow_start_s > 0:
            for j in fresh:
                if specs[j].name in warm:
                    continue
                health[j].state = InstanceState.SLOW_START
                health[j].until_s = now_s + self.settings.slow_start_s
        self._tables.cut(specs, ranks_to, instances_to)
        self._sessions.move(ranks_to)
        self._specs, self._health.of = list(specs), health
        self._adopt_tables()
        if self._scribe is not None:
            self._scribe.shadows.begin(self)
        self._health.changed = set(range(len(specs)))
        self._write_health(now_s)
        calls.show_all(self._at, now_s)
        self._update_serving()  # there may be none
        self._update_rung(now_s)
        return actions + (self._offer(now_s) if offer else [])

    def _lose(self, now_s: float, first: int, last: int, reason: AbortReason) -> list[Action]:
        """End all leases on ranks `first` to before `last`, and forget what else ran there."""
        world = self._tables.world
        live = self._tables.live()
        on = world.entries["rank"][live]
        actions = self._abort_all(now_s, live[(on >= first) & (on < last)], reason)
        for name in ("others_batch", "others_context", "missing"):
            world.ranks[name][first:last] = 0
        calls.show_all(self._at, now_s)
        return actions

    def _report(self, now_s: float, report: RankReport) -> None:
        r = self._rank(report.instance, report.rank)
        if r is None or not report.taken_at_s > -NEVER:  # NaN is not
            self._count_of[COUNT.OLD_REPORTS] += 1
            return
        ranks = self._tables.world.ranks
        context = report.context_tokens
        capacity = report.kv_capacity_tokens
        if (
            capacity is not None
            and 0 < capacity <= UNLIMITED_TOKENS
            and capacity != ranks["kv_capacity_tokens"][r]
        ):
            ranks["kv_capacity_tokens"][r] = capacity
            self._measure()
        if report.max_batch is not None and 0 < report.max_batch <= UNLIMITED_BATCH:
            ranks["max_batch"][r] = report.max_batch
        if context is None and report.kv_usage is not None and 0.0 <= report.kv_usage <= 1.0:
            known = int(ranks["kv_capacity_tokens"][r])
            context = int(report.kv_usage * known) if known < UNLIMITED_TOKENS else None
        news = calls.report(
            self._at,
            r,
            min(max(report.running, 0) + max(report.waiting, 0), UNLIMITED_BATCH),
            NOBODY if context is None else min(max(context, 0), UNLIMITED_TOKENS),
            report.taken_at_s,
            _number(report.sequence),
            _number(report.seen_dispatches),
            now_s,
        )
        if news:
            one = self._health.of[report.instance]
            if one.unheard:
                self._health.heard(report.instance, report.rank)
            if self._rung:
                self._rung_until_s = now_s

    def _drain(self, now_s: float, instance: int, rank: int | None, value: int) -> list[Action]:
        if not 0 <= instance < len(self._specs):
            return []
        first, width = self._first[instance], self._specs[instance].width
        ranks = range(first, first + width) if rank is None else [self._rank(instance, rank)]
        for r in ranks:
            if r is not None:
                self._tables.world.ranks["drained"][r] = value
        calls.show(self._at, instance, now_s)
        self._update_serving()
        return self._offer(now_s)


def _number(value: int | None) -> int:
    """A count of the engine's; -1: it has none that can be one."""
    return NOBODY if value is None or not 0 <= value < 1 << 62 else value
