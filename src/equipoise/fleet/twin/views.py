"""What routers see, in the slow twin: the exact view, each replica's picture, and the reports between them.

Loads are kept in channels: 0 requests, 1 context tokens, 2 resident tokens, 3 ... K, last the dispatches ever made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from equipoise.fleet.kernel.layout import ERASED, EXACT, EXTRAPOLATED, LEDGER
from equipoise.fleet.twin.state import Fleet, Instance, Rank, Request
from equipoise.policies.views import empty_ranks
from equipoise.types import Ints, Ints3D, Ranks

__all__ = ["Views"]


class _Report(NamedTuple):
    step: int
    time_s: float
    told: Ints
    """int64[channels, width]"""
    own: Ints
    """int64[replicas, channels, width]"""


class Views:
    """One exact view, and one picture a replica where routers do not know all."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        settings, ranks = fleet.settings, len(fleet.ranks)
        self.lengths: list[int] = np.asarray(fleet.prices.saturation_tokens).tolist()
        self.knows = settings.knows if settings.knows != EXACT else EXACT
        channels = 4 + len(self.lengths)
        shape = (settings.replicas, channels, ranks)
        self.own: Ints3D = np.zeros(shape, dtype=np.int64)
        self.base: Ints3D = np.zeros(shape, dtype=np.int64)
        self.told: Ints = np.zeros(shape[1:], dtype=np.int64)
        self.told_step = [0] * len(fleet.instances)
        self.on_their_way: list[list[_Report]] = [[] for _ in fleet.instances]
        self.places = settings.report_delay_steps // settings.report_period_steps + 3
        if settings.report_delay_s > 0:
            self.places = max(self.places, 64)

        def blank() -> Ranks:
            ranks_of_all: Ranks = empty_ranks(ranks, fleet.width, len(self.lengths), 0, 0)
            return ranks_of_all

        self.exact = blank()
        self.pictures = [self.exact if self.knows == EXACT else blank() for _ in range(settings.replicas)]
        for rank in fleet.ranks:
            self.refresh_exact(rank)
            for k in range(settings.replicas):
                self.refresh_picture(k, rank)

    # What is true, and what a replica counts.

    def loads(self, rank: Rank, pick: Callable[[Request], bool]) -> list[int]:
        """Loads of a rank over the requests that a test picks, its engine's queue included; dispatches are left 0."""
        live = [q for q in (*rank.rows, *rank.queue) if pick(q)]
        return [
            len(live),
            sum(q.size for q in live),
            sum(self.fleet.hold(q.size) for q in live),
            *(sum(min(q.size, n) for q in live) for n in self.lengths),
            0,
        ]

    def estimate(self, rank: Rank, replica: int) -> list[int]:
        """The same of a replica's own requests, by one that does not count tokens: it goes by the usual pace."""
        live = [q for q in (*rank.rows, *rank.queue) if q.replica == replica]
        pace = self.fleet.instance_of(rank.number).tpot_s
        grown = 0
        if pace > 0:
            since = len(live) * int(self.fleet.now * 1e6) - sum(int(q.placed_s * 1e6) for q in live)
            grown = max(0, int(since / (1e6 * pace)))
        context = sum(q.dispatched_size for q in live) + grown
        saturated = [sum(min(q.dispatched_size, n) for q in live) for n in self.lengths]
        return [len(live), context, context, *saturated, 0]

    def bring_up_to_date(self, instance: Instance) -> None:
        """A step of an instance has ended, or something happened to it: all that is known of it at once."""
        for rank in instance.ranks:
            for k in range(len(self.own)):
                counted = None
                if self.knows == LEDGER:
                    counted = self.loads(rank, lambda q, k=k: q.replica == k)  # type: ignore[misc]
                elif self.knows == EXTRAPOLATED:
                    counted = self.estimate(rank, k)
                if counted is not None:
                    self.own[k, :-1, rank.number] = counted[:-1]
        self.refresh(instance)

    def dispatched(self, q: Request, *, lost: bool) -> None:
        """A replica has sent a request to a rank."""
        rank, column = self.fleet.ranks[q.rank], self.own[q.replica, :, q.rank]
        if not lost or self.knows not in (LEDGER, EXTRAPOLATED):
            resident = q.size if self.knows == EXTRAPOLATED else self.fleet.hold(q.size)
            column[:-1] += [1, q.size, resident, *(min(q.size, n) for n in self.lengths)]
        column[-1] += 1
        self.refresh_exact(rank)
        self.refresh_picture(q.replica, rank)

    # Reports.

    def step_ended(self, instance: Instance) -> None:
        """Send a report if one is due, or if the instance has fallen idle."""
        settings, period_s, now = self.fleet.settings, self.fleet.life.report_period_s, self.fleet.now
        if period_s > 0:
            due = now >= instance.next_report_s
            if due:
                instance.next_report_s = (math.floor(now / period_s) + 1) * period_s
        else:
            due = instance.steps % settings.report_period_steps == 0
        if not due and not instance.empty:
            return
        queue = self.on_their_way[instance.number]
        if len(queue) == self.places:
            queue.pop()
        told = np.array([self.loads(rank, lambda q: True) for rank in instance.ranks], dtype=np.int64).T
        queue.append(_Report(instance.steps, now, told, self.own[:, :, self._here(instance)].copy()))

    def deliver(self) -> None:
        """Take in the reports that are due; those of an idle instance do not wait for steps that never come."""
        settings = self.fleet.settings
        for instance, queue in zip(self.fleet.instances, self.on_their_way, strict=True):
            here, delivered = self._here(instance), False
            while queue:
                report = queue[0]
                idle = not instance.busy and instance.empty
                if instance.steps - report.step < settings.report_delay_steps and not idle:
                    break
                if self.fleet.now < report.time_s + settings.report_delay_s:
                    break
                self.told[:, here] = report.told
                self.base[:, :, here] = self.own[:, :, here] if self.knows == ERASED else report.own
                self.told_step[instance.number] = report.step
                queue.pop(0)
                delivered = True
            if delivered:
                self.refresh(instance)

    def next_delivery_s(self) -> float:
        """When the first report on its way comes in, if nothing else happens."""
        delay_s = self.fleet.settings.report_delay_s
        return min((queue[0].time_s + delay_s for queue in self.on_their_way if queue), default=math.inf)

    def _here(self, instance: Instance) -> slice:
        return slice(instance.number * self.fleet.width, (instance.number + 1) * self.fleet.width)

    # What is shown.

    def refresh(self, instance: Instance) -> None:
        """Show an instance anew, to all."""
        for rank in instance.ranks:
            self.refresh_exact(rank)
            for k in range(len(self.pictures)):
                self.refresh_picture(k, rank)

    def refresh_exact(self, rank: Rank) -> None:
        """Show a rank as it is."""
        self._show(self.exact, rank, self.loads(rank, lambda q: True))

    def refresh_picture(self, replica: int, rank: Rank) -> None:
        """Show a rank as a replica pictures it: the last report, and what the replica counts beyond it."""
        if self.knows == EXACT:
            return
        picture, r = self.pictures[replica], rank.number
        drift = self.own[replica, :, r] - self.base[replica, :, r]
        # A guess of one's own share may be above what is reported of all.
        self._show(picture, rank, np.maximum(self.told[:, r] + drift, 0).tolist())
        picture.unseen_requests[r] = 0 if self.knows in (LEDGER, EXTRAPOLATED) else drift[-1]
        instance = self.fleet.instance_of(r)
        picture.report_age_steps[r] = instance.steps - self.told_step[instance.number]

    def _show(self, view: Ranks, rank: Rank, loads: list[int]) -> None:
        r = rank.number
        view.batch[r], view.context_tokens[r] = loads[0], loads[1]
        view.saturated_tokens[r] = loads[3:-1]
        slots = 0 if rank.closed else rank.max_batch - loads[0]
        free = rank.capacity - self.fleet.layout.growth_reserve_tokens - loads[2]
        view.free_slots[r] = slots
        view.free_tokens[r] = free if slots > 0 else -1

    def show_starts(self) -> None:
        """Show when what is placed now would start; one instance alone is asked at its own boundary."""
        if len(self.fleet.instances) == 1:
            return
        for instance in self.fleet.instances:
            self.exact.starts_in_s[self._here(instance)] = (
                instance.end_s - self.fleet.now if instance.busy else 0.0
            )
