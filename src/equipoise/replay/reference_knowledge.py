"""What router replicas know, in the slow twin: all of it counted from the requests (`knowledge` is the fast one)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from equipoise.replay.layout import ERASED, EXACT, LEDGER, PoolLayout, Settings
from equipoise.types import Ints

__all__ = ["Replicas"]

Loads = Callable[[Callable[[Any], bool]], tuple[Ints, Ints, Ints]]
"""B, C and K of every rank over the requests that a test picks."""


class _Report(NamedTuple):
    step: int
    time_s: float
    loads: Ints
    """int64[channels, width]"""
    own: Ints
    """int64[replicas, channels, width]"""


class Replicas:
    """The replicas' counts, the reports they have, and those on their way."""

    def __init__(self, settings: Settings, layout: PoolLayout, saturations: int, loads: Loads) -> None:
        self.settings, self.layout, self.loads = settings, layout, loads
        ranks = layout.instances * layout.ranks_per_instance
        shape = (settings.replicas, 3 + saturations, ranks)
        self.sent = np.zeros(shape, dtype=np.int64)
        self.base = np.zeros(shape, dtype=np.int64)
        self.told = np.zeros(shape[1:], dtype=np.int64)
        self.told_step = [0] * layout.instances
        self.steps = [0] * layout.instances
        self.on_their_way: list[list[_Report]] = [[] for _ in range(layout.instances)]
        self.places = settings.report_delay_steps // settings.report_period_steps + 3
        if settings.report_delay_s > 0:
            self.places = max(self.places, 64)

    def replica_of(self, row: int, session: int) -> int:
        """Replica that a request comes to."""
        return (session if session >= 0 else row) % self.settings.replicas

    def channels(self, pick: Callable[[Any], bool]) -> Ints:
        """Loads as channels; the count of dispatches is left 0."""
        batch, context, saturated = self.loads(pick)
        return np.vstack([batch, context, *saturated.T, np.zeros_like(batch)])

    def own(self, replica: int) -> Ints:
        """What a replica counts itself."""
        if self.settings.knows != LEDGER:
            return self.sent[replica]
        counted = self.channels(lambda q: q.replica == replica)
        counted[-1] = self.sent[replica, -1]
        return counted

    def dispatched(self, request: Any, lengths: Ints) -> None:
        """Count a placement for the replica that made it."""
        column = [1, request.context, *(min(request.context, int(n)) for n in lengths), 1]
        self.sent[request.replica, :, request.rank] += column

    def here(self, instance: int) -> slice:
        """Ranks of an instance."""
        width = self.layout.ranks_per_instance
        return slice(instance * width, (instance + 1) * width)

    def step_ended(self, instance: int, now: float, empty: bool) -> None:
        """Send a report if one is due, or if the instance has fallen idle."""
        self.steps[instance] += 1
        if self.steps[instance] % self.settings.report_period_steps and not empty:
            return
        here, queue = self.here(instance), self.on_their_way[instance]
        if len(queue) == self.places:
            queue.pop()
        own = np.stack([self.own(k)[:, here] for k in range(self.settings.replicas)])
        queue.append(_Report(self.steps[instance], now, self.channels(lambda q: True)[:, here], own))

    def deliver(self, now: float, idle: list[bool]) -> None:
        """Take in the reports that are due; those of an idle instance do not wait for steps that never come."""
        for i, queue in enumerate(self.on_their_way):
            while queue:
                report, here = queue[0], self.here(i)
                if self.steps[i] - report.step < self.settings.report_delay_steps and not idle[i]:
                    break
                if now < report.time_s + self.settings.report_delay_s:
                    break
                self.told[:, here] = report.loads
                for k in range(self.settings.replicas):
                    erased = self.settings.knows == ERASED
                    self.base[k][:, here] = self.own(k)[:, here] if erased else report.own[k]
                self.told_step[i] = report.step
                queue.pop(0)

    def next_delivery_s(self) -> float:
        """When the first report on its way comes in, if nothing else happens."""
        first = [queue[0].time_s + self.settings.report_delay_s for queue in self.on_their_way if queue]
        return min(first, default=math.inf)

    def picture(self, replica: int) -> tuple[Ints, Ints, Ints]:
        """Loads as channels, dispatches not yet seen, and the age of the reports in steps."""
        width, ranks = self.layout.ranks_per_instance, self.told.shape[1]
        if self.settings.knows == EXACT:
            return self.channels(lambda q: True), np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
        loads = self.told + self.own(replica) - self.base[replica]
        age = np.repeat(np.array(self.steps) - np.array(self.told_step), width)
        unseen = self.own(replica)[-1] - self.base[replica, -1]
        return loads, unseen * (self.settings.knows != LEDGER), age
