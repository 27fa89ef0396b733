"""One policy, one repeat: a router of its own, looks at the engine meanwhile, and the load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

from equipoise import cost as costs
from equipoise.engines import Client
from equipoise.live.about import RunAbout
from equipoise.live.load import Load
from equipoise.live.looking import ClockWatch, RecordingDriver
from equipoise.live.parts import PartWriter, RequestRow
from equipoise.live.plan import ENGINE, LivePlan
from equipoise.live.preflight import Found
from equipoise.live.prompts import Prompts
from equipoise.live.rows import ANSWERED, Outcome
from equipoise.live.sender import Prepared, Sender
from equipoise.live.wire import Connections
from equipoise.policies import parse
from equipoise.router import RejectReason, Router, Settings
from equipoise.serve.polling import Polling
from equipoise.serve.tally import Tally
from equipoise.serve.watch import Watch
from equipoise.traces.trace import Trace

__all__ = ["GONE", "OneRun", "router_of"]

FLUSH_S = 0.5
DEAD_AFTER = 20
"""Requests in a row that nobody took, until the engine counts as dead."""
GONE = (Outcome.UNREACHABLE, Outcome.RESET)
NOBODY = (RejectReason.NO_INSTANCE.value, RejectReason.DRAINING.value)
LATE_MS = 5.0
"""Requests handed on later than this, at the 99th percentile, are worth a word."""
STRANGE = 0.25
"""Share of looks at ranks that do not show what was sent there, above which pins are doubted."""


def router_of(plan: LivePlan, policy: str, found: Found, seed: int) -> Router:
    """The router of a run: as ``equipoise serve`` would have it, but for queues that hold the whole trace."""
    patient_s = plan.timeout_s + 1.0
    return Router(
        [target.spec() for target in found.targets],
        parse("least_batch" if policy == ENGINE else policy),
        costs.load(plan.cost),
        Settings(
            max_queued_requests=1 << 18,
            queue_ttl_s=patient_s,
            lease_ttl_s=patient_s,
            stale_after_s=max(2.0, 4 * plan.scrape_period_s),
            # nobody but us: a request that just failed does not close an instance to the others
            breaker_failures=1_000_000,
        ),
        time.monotonic(),
        seed,
    )


@dataclass(slots=True)
class OneRun:
    """Runs one policy once.

    Parameters
    ----------
    plan : LivePlan
    trace : Trace
        What is sent.
    found : Found
    prompts : Prompts
    connections : Connections
    session : aiohttp.ClientSession
        To look at the engine.
    client : Client
    folder : Path

    Attributes
    ----------
    trouble : str
        Why it ended before its end; empty: it did not.
    dead : bool
        Whether the engine is.
    """

    plan: LivePlan
    trace: Trace
    found: Found
    prompts: Prompts
    connections: Connections
    session: aiohttp.ClientSession
    client: Client
    folder: Path
    trouble: str = ""
    dead: bool = False
    _in_a_row: int = 0
    _task: asyncio.Task[None] | None = None

    async def run(self, about: RunAbout, tell: Callable[[int], None]) -> None:
        """Run it; rows go to the parts of the folder, what is to be said of it into `about`.

        Parameters
        ----------
        about : RunAbout
        tell : callable
            Told how many requests have ended.
        """
        plan, found = self.plan, self.found
        router = router_of(plan, about.policy, found, about.seed)
        writer = PartWriter(self.folder, f"{about.order:03d}")
        clock = ClockWatch()
        about.attempts += 1
        about.requests = about.failed = 0
        pinned = about.policy != ENGINE
        start_s = time.monotonic()

        def done(row: RequestRow) -> None:
            writer.add(row)
            about.requests += 1
            about.failed += row.outcome not in ANSWERED
            tell(about.requests)
            self._judge(row)

        driver = RecordingDriver(
            router,
            list(found.targets),
            label=(about.policy, about.repeat),
            start_s=start_s,
            keep=writer.add,
        )
        sender = Sender(
            driver,
            self.connections,
            engine=plan.engine,
            route=plan.route,
            model=found.model,
            timeout_s=plan.timeout_s,
            start_s=start_s,
            label=(about.policy, about.repeat, about.order),
            done=done,
            pinned=pinned,
            key=plan.worker_key,
        )
        salt = 1 + about.order * 64 + about.attempts  # no run meets the prefixes of another one
        load = Load(
            self.trace,
            plan.mode,
            scale=plan.scale,
            concurrency=plan.concurrency,
            prepare=lambda row: self._prepare(row, salt),
            send=sender.send,
            start_s=start_s,
        )
        watch = Watch(
            driver, self.session, self.client, Polling(period_s=plan.scrape_period_s, health_path=""), Tally()
        )
        watch.set_targets(found.targets)
        for target in found.targets:  # the first decision stands on a report, as later ones do
            await watch.look(target)

        async def beside() -> None:
            while True:
                await asyncio.sleep(FLUSH_S)
                writer.flush()
                clock.look()

        flushing = asyncio.create_task(beside())
        # The clock of the rows begins when the load does.
        begin_s = time.monotonic()
        sender.start_s = driver.start_s = load.start_s = begin_s
        self._task = asyncio.create_task(load.run())
        try:
            await asyncio.wait({self._task})
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            flushing.cancel()
            await watch.close()
            driver.close()
            about.wall_s = round(time.monotonic() - begin_s, 3)
            about.clock_steps = clock.steps
            writer.close()
            self._say(about, driver, load)
        if not self._task.cancelled():
            self._task.result()

    def stop(self, why: str, *, dead: bool = False) -> None:
        """End it before its end."""
        if not self.trouble:
            self.trouble, self.dead = why, dead
            if self._task is not None:
                self._task.cancel()

    def _prepare(self, row: int, salt: int) -> Prepared:
        trace = self.trace
        return Prepared(
            row,
            self.prompts.prompt(row, salt),
            int(trace.context_tokens[row]),
            int(trace.output_tokens[row]),
            int(trace.session[row]),
        )

    def _judge(self, row: RequestRow) -> None:
        """Whether what became of a request ends the run."""
        outcome = row.outcome
        if outcome in ANSWERED or outcome == Outcome.STOPPED:
            self._in_a_row = 0 if outcome in ANSWERED else self._in_a_row
            return
        words = f"request {row.request} ended as {outcome}"
        if row.message:
            words += f" ({row.message})"
        gone = outcome in GONE or (outcome == Outcome.REJECTED and row.message in NOBODY)
        self._in_a_row = self._in_a_row + 1 if gone else 0
        if outcome == Outcome.PIN_REFUSED:
            self.stop(f"the engine refused a pin: {words}")
        elif self.plan.on_failure == "stop":
            self.stop(words, dead=gone)
        elif self._in_a_row >= DEAD_AFTER:
            self.stop(f"{DEAD_AFTER} requests in a row found nobody: {words}", dead=True)

    def _say(self, about: RunAbout, driver: RecordingDriver, load: Load) -> None:
        notes = []
        if load.late_s:
            late_ms = np.array(load.late_s) * 1e3
            about.late_p99_ms = round(float(np.quantile(late_ms, 0.99)), 3)
            about.late_max_ms = round(float(late_ms.max()), 3)
            if about.late_p99_ms > LATE_MS:
                notes.append(
                    f"This process was late: a request in a hundred was handed on {about.late_p99_ms:.1f} ms or more "
                    "after its time, which counts as latency."
                )
        if about.clock_steps:
            notes.append(
                "The system clock was set while it ran; times are those of a clock that is not, so they stand."
            )
        if driver.looks >= 8 and driver.strange > STRANGE * driver.looks:
            notes.append(
                "Ranks showed less than half of the requests that were pinned to them: the engine may not honour pins, "
                "or publishes late."
            )
        if self.trouble:
            notes.append(f"It ended early: {self.trouble}.")
        about.notes = tuple(notes)
