"""What ranks say of themselves while a run goes on, and whether an engine is empty."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from equipoise.engines import Client
from equipoise.engines.reports import rank_reports
from equipoise.errors import EngineError, InputError
from equipoise.live.parts import ScrapeRow
from equipoise.router import RankReport, Router
from equipoise.serve.driver import Driver
from equipoise.serve.targets import Target

__all__ = ["ClockWatch", "RecordingDriver", "drain"]

JUMP_S = 0.25
"""The system clock was set if it moved so much more or less than the one that is never set."""
DRAIN_PERIOD_S = 0.1
QUIET_LOOKS = 2
"""In a row that show nothing, before an engine counts as empty: what it publishes may be a step old."""


class RecordingDriver(Driver):
    """A driver that also keeps what engines report, beside what its own ledger has at that moment.

    Parameters
    ----------
    router, targets
        As for `Driver`.
    label : tuple of (str, int)
        Policy and repeat, for the rows.
    start_s : float
        Beginning of the run on `time.monotonic`.
    keep : callable
        Takes every row.
    """

    def __init__(
        self,
        router: Router,
        targets: Sequence[Any],
        *,
        label: tuple[str, int],
        start_s: float,
        keep: Callable[[ScrapeRow], None],
    ) -> None:
        super().__init__(router, targets, clock=lambda: time.monotonic())
        self._label, self.start_s, self._keep = label, start_s, keep
        self.looks = self.strange = 0
        """Reports of ranks with requests of ours, and those that show less than half of them."""

    def report(self, reports: Iterable[RankReport]) -> None:
        """What engines say of their ranks."""
        reports = list(reports)
        super().report(reports)
        now_s = self.now_s()
        view = self.router.view(now_s)
        own = {
            (int(i), int(r)): (int(b), int(c))
            for i, r, b, c in zip(
                view.instance, view.rank, view.own_batch, view.own_context_tokens, strict=True
            )
        }
        policy, repeat = self._label
        for one in reports:
            requests, tokens = own.get((one.instance, one.rank), (0, 0))
            if requests >= 4:
                self.looks += 1
                self.strange += 2 * (one.running + one.waiting) < requests
            self._keep(
                ScrapeRow(
                    policy=policy,
                    repeat=repeat,
                    at_s=round(now_s - self.start_s, 6),
                    instance=self.targets[one.instance].name,
                    rank=one.rank,
                    running=one.running,
                    waiting=one.waiting,
                    context_tokens=one.context_tokens,
                    kv_usage=one.kv_usage,
                    own_requests=requests,
                    own_context_tokens=tokens,
                )
            )


class ClockWatch:
    """Counts how often the system clock is set."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()
        self.steps = 0

    def look(self) -> None:
        """Compare it with the clock that is never set."""
        offset_s = time.time() - time.monotonic()
        if abs(offset_s - self._offset_s) > JUMP_S:
            self.steps += 1
        self._offset_s = offset_s


async def drain(client: Client, targets: Sequence[Target], timeout_s: float) -> int:
    """Wait until every rank reports that nothing runs or waits there.

    Parameters
    ----------
    client : Client
    targets : sequence of Target
    timeout_s : float

    Returns
    -------
    int
        Requests that are left; 0: it is empty.

    Raises
    ------
    EngineError
        It cannot be asked any more.
    """
    end_s = time.monotonic() + timeout_s
    quiet = 0
    while True:
        left = await _left(client, targets)
        quiet = 0 if left else quiet + 1
        if quiet >= QUIET_LOOKS:
            return 0
        if time.monotonic() > end_s and left:
            return left
        await asyncio.sleep(DRAIN_PERIOD_S)


async def _left(client: Client, targets: Sequence[Target]) -> int:
    total = 0
    for i, target in enumerate(targets):
        for node in target.nodes:
            try:
                seen = await client.observe(node.engine, node.adapter)
                reports = rank_reports(node.engine, i, seen, 0.0)
            except InputError as error:
                raise EngineError(str(error)) from error
            total += sum(report.running + report.waiting for report in reports)
    return total
