"""`ControlRun`: what a simulated run came to, and the sums it is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.control.evaluate import Worth
from equipoise.control.slack import Slack
from equipoise.types import Ints

__all__ = ["ControlRun", "Sums"]


@dataclass(frozen=True, slots=True)
class ControlRun:
    """Sums over the measured steps of a run.

    Parameters
    ----------
    tokens : int
        Tokens the requests got: accepted drafts, and the one that every running request gets anyway.
    time_us : float
    steps : int
    drafts_verified, drafts_accepted : int
    bubble_share : float
        Share of the barriers' time that the average rank waited.
    slack_turned : float
        Of the waiting that each rank's own argmax (or another strategy) would leave, the share gone under this one, in
        the same states and on the ranks whose best draft it leaves unverified survives more often than 0.3; NaN where
        no such rank waited.
    slack_filled : float
        The part of it that is gone because these ranks verify more; the rest, because the slowest rank does less.
    finished : int
        Requests that ended.
    sat_out_share : float
        Of the steps of all requests, those that one was paused in or held back from its rank.
    longest_pause_steps, longest_wait_steps : int
        Most steps in a row that a request was paused, and that a new one was held back; warm-up included.
    least_share_run : float
        Of the requests that ended after 64 steps or more, the smallest share of its steps that one ran in;
        NaN where there is none.
    """

    tokens: int
    time_us: float
    steps: int
    drafts_verified: int
    drafts_accepted: int
    bubble_share: float
    slack_turned: float
    slack_filled: float = float("nan")
    finished: int = 0
    sat_out_share: float = 0.0
    longest_pause_steps: int = 0
    longest_wait_steps: int = 0
    least_share_run: float = float("nan")

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, of the whole instance."""
        return self.tokens / self.time_us * 1e6 if self.time_us else 0.0


@dataclass(slots=True)
class Sums:
    """Counts of the steps so far."""

    tokens: int = 0
    verified: int = 0
    accepted: int = 0
    time_us: float = 0.0
    waited: float = 0.0
    barrier: float = 0.0
    before: float = 0.0
    gone: float = 0.0
    filled: float = 0.0
    finished: int = 0
    sat_out: int = 0
    least_share_run: float = float("nan")

    def step(
        self, found: Worth, lengths: Ints, got: Ints, gained: Ints, time_us: float, sat_out: int
    ) -> None:
        """Count a step."""
        self.tokens += int(gained.sum())
        self.verified += int(lengths.sum())
        self.accepted += int(got.sum())
        self.time_us += time_us
        self.waited += found.barrier - float(found.work.mean())
        self.barrier += found.barrier
        self.sat_out += sat_out

    def slack(self, found: Slack) -> None:
        """Count a comparison with other lengths."""
        self.before += found.before
        self.gone += found.gone
        self.filled += found.filled

    def ended(self, ran: Ints, there: Ints, least_steps: int) -> None:
        """Count requests that ended, with the steps that each ran in and was there for."""
        self.finished += len(ran)
        long = there >= least_steps
        if long.any():
            self.least_share_run = float(np.fmin(self.least_share_run, (ran[long] / there[long]).min()))

    def run(self, steps: int, slots: int, longest_pause_steps: int, longest_wait_steps: int) -> ControlRun:
        """The run they come to."""
        return ControlRun(
            tokens=self.tokens,
            time_us=self.time_us,
            steps=steps,
            drafts_verified=self.verified,
            drafts_accepted=self.accepted,
            bubble_share=self.waited / self.barrier if self.barrier else 0.0,
            slack_turned=self.gone / self.before if self.before else float("nan"),
            slack_filled=self.filled / self.before if self.before else float("nan"),
            finished=self.finished,
            sat_out_share=self.sat_out / (steps * slots),
            longest_pause_steps=longest_pause_steps,
            longest_wait_steps=longest_wait_steps,
            least_share_run=self.least_share_run,
        )
