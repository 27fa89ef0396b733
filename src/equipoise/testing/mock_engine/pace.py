"""`Pace`: a mock engine's steps, as its clock says or as it is told, and the picture of them that it publishes."""

from __future__ import annotations

import asyncio
import math

from equipoise.testing.mock_engine.core import LockStep
from equipoise.testing.mock_engine.faults import Faults
from equipoise.testing.mock_engine.shapes import Picture, Sglang, Vllm
from equipoise.testing.mock_engine.streams import Stream

__all__ = ["Pace"]

MAX_LATE_S = 1.0
"""Behind its clock by more than this, it forgets what it owes."""


class Pace:
    """The lowest layer of `MockEngine`.

    Parameters
    ----------
    core : LockStep
    shape : Shape
    speed_up : float
    publish_steps : int, optional
    """

    def __init__(
        self, core: LockStep, shape: Vllm | Sglang, speed_up: float, publish_steps: int | None
    ) -> None:
        self.core, self.faults = core, Faults()
        self._shape = shape
        self._speed_up = speed_up
        self._publish_steps = shape.publish_steps if publish_steps is None else publish_steps
        self._picture = Picture.of(core)
        self._pictured_at = 0
        self._streams: dict[int, Stream] = {}
        self._work = asyncio.Event()
        self.late_s = 0.0
        """Time it could not keep up with its clock."""

    def step(self, steps: int = 1) -> None:
        """Do steps at once, whatever the clock says."""
        for _ in range(steps):
            self.core.begin()
            self._end_step()

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.core.busy or self._stalled():
                self._work.clear()
                self._publish()
                await self._work.wait()
                due = max(due, loop.time())
                continue
            due += self.core.begin() / self._speed_up
            if math.isinf(self._speed_up):
                await asyncio.sleep(0)
            else:
                behind = loop.time() - due
                if behind > MAX_LATE_S:
                    self.late_s += behind
                    due += behind
                await asyncio.sleep(max(-behind, 0.0))
            self._end_step()

    def _end_step(self) -> None:
        self.core.end()
        if self.core.steps - self._pictured_at >= self._publish_steps or not self.core.busy:
            self._publish()

    def _publish(self) -> None:
        if self.faults.active("freeze_metrics") is None:
            self._picture = Picture.of(self.core)
            self._pictured_at = self.core.steps

    def _stalled(self) -> bool:
        return self.faults.active("stall") is not None or self.faults.active("rank_lost") is not None

    def _break_lost(self) -> None:
        fault = self.faults.active("rank_lost")
        if fault is not None:
            for job in [j for j in self.core.jobs() if j.rank == fault.rank]:
                self._streams[job.number].reset()
