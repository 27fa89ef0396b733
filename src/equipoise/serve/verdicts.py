"""What looks at an engine amount to: it is lost, one of its ranks is, it is back; the router is told.

A look that fails says little: metrics are slow or off while requests run well. An instance is called lost when nothing
answers at its address, several times in a row, and no stream has brought a byte meanwhile; when it says itself that it
is not well (``/health``); and when a rank has left its page. Everything else shows as the age of its reports, and the
router falls back by itself.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from msgspec import structs

from equipoise.router import RankReport
from equipoise.serve.driver import Driver
from equipoise.serve.polling import Polling
from equipoise.serve.quiet import QuietLog
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Target

__all__ = ["RANK_GONE", "UNHEALTHY", "UNREACHABLE", "State", "Verdicts"]

UNREACHABLE, UNHEALTHY, RANK_GONE = "unreachable", "unhealthy", "rank_gone"


@dataclass(slots=True)
class State:
    """What the looks at one target have shown."""

    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    failures: int = 0
    unwell: int = 0
    lost: set[str] = field(default_factory=set)
    """Why it is lost: nobody answers, it is not well, a rank is gone."""
    problem: str = ""
    seen: set[int] = field(default_factory=set)
    missing: dict[int, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    preempted: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Preemptions that each rank has counted, by node, address and number."""
    reports: list[RankReport] = field(default_factory=list)
    """Of the last look, while another router places on it."""


class Verdicts:
    """Judges targets by their states.

    Parameters
    ----------
    driver : Driver
        Is told.
    polling : Polling
    tally : Tally
    quiet : QuietLog
    """

    def __init__(self, driver: Driver, polling: Polling, tally: Tally, quiet: QuietLog) -> None:
        self.driver, self.polling, self.tally, self._quiet = driver, polling, tally, quiet

    def again(self, state: State, i: int) -> None:
        """The router has newly got instance `i`: it is told what the last looks have shown."""
        if state.reports:
            self.driver.report([structs.replace(one, instance=i) for one in state.reports])
        for rank, count in state.missing.items():
            if count >= self.polling.lost_after:
                self.driver.rank_lost(i, rank, RANK_GONE)
        for why in sorted(state.lost - {RANK_GONE}):
            self.driver.instance_lost(i, why)

    def failed(self, target: Target, state: State, error: Exception) -> None:
        """A look came to nothing."""
        state.failures += 1
        state.problem = str(error)
        gone = _nobody_there(error)
        self.tally.poll_failures.add("unreachable" if gone else "unreadable")
        self._quiet(f"look {target.name}", f"{target.name} cannot be read: {error}")
        if not gone or state.failures < self.polling.lost_after:
            return
        if self.driver.now_s() - target.heard_s < self.polling.quiet_s:
            return  # its streams say otherwise
        self.lost(target, state, UNREACHABLE)

    def lost(self, target: Target, state: State, why: str) -> None:
        """It serves no more, for one reason or another."""
        i = self.driver.index(target.name)
        if why in state.lost or (i is None and self.driver.owners is None):
            return
        first = not state.lost
        state.lost.add(why)
        for node in target.nodes:
            if node.probe is not None:
                node.probe.lost()
                node.engine = replace(node.engine, numbering=node.probe.numbering)
                target.renumber()
        if first:
            self._quiet(f"lost {target.name}", f"{target.name} is lost: {state.problem or why}")
            if i is not None:
                self.driver.instance_lost(i, why)

    def well(self, target: Target, state: State, why: str) -> None:
        """A reason is no more; without any it is back."""
        if why not in state.lost:
            return
        state.lost.discard(why)
        i = self.driver.index(target.name)
        if not state.lost:
            self._quiet(f"back {target.name}", f"{target.name} is back", logging.INFO)
            if i is not None:
                self.driver.instance_ok(i)

    def missing_ranks(self, target: Target, state: State, i: int | None, present: set[int]) -> None:
        """A rank that was on the page and is not any more has died, and its instance stalls."""
        if not present:
            return  # an engine that drains what it tells: nothing new
        for rank in present:
            state.missing.pop(rank, None)
        state.seen |= present
        for rank in state.seen - present:
            count = state.missing[rank] = state.missing.get(rank, 0) + 1
            if count == self.polling.lost_after:
                self._quiet(f"rank {target.name} {rank}", f"rank {rank} of {target.name} is gone")
                if i is not None:
                    self.driver.rank_lost(i, rank, RANK_GONE)
                state.lost.add(RANK_GONE)
        if not state.missing:
            self.well(target, state, RANK_GONE)


def _nobody_there(error: BaseException) -> bool:
    """Whether nothing answered at all: refused, reset, unknown host, no route; not slow, not an odd answer."""
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, TimeoutError)
