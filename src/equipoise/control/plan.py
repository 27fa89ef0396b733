"""`Plan`: how many drafts each request verifies at a step to come, and at no other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.control.state import check_step
from equipoise.errors import InputError
from equipoise.types import Ints

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Verify lengths for one step, decided on what an earlier step knew.

    Speculative decoding keeps the model's distribution only if how many drafts are verified does not depend on the
    drafts themselves. So a plan names the step it was observed at and the later one it is for, and lengths are handed
    out for that step alone.

    Parameters
    ----------
    observed_step : int
        The step the survivals are of.
    for_step : int
        The step it is for; always later.
    tokens : float
        Expected tokens of the step, the one that every request gets anyway included.
    price : float
        The step's expected price, in the cost's unit.
    cap_queries : int
        Query tokens no rank exceeds.
    deadline : float
        Price no rank exceeds in the groups that look at contexts.
    trim : float
        Survival below which a draft does not pay for its experts and communication.
    """

    observed_step: int
    for_step: int
    tokens: float
    price: float
    cap_queries: int
    deadline: float
    trim: float
    _lengths: Ints
    _first: Ints

    @property
    def rate(self) -> float:
        """Expected tokens per unit of the cost."""
        return self.tokens / self.price if self.price > 0 else 0.0

    @property
    def ranks(self) -> int:
        """Ranks of the instance."""
        return len(self._first) - 1

    @property
    def queries(self) -> Ints:
        """int64[ranks], query tokens: one a request and its verified drafts."""
        ends = np.concatenate([[0], np.cumsum(1 + self._lengths)])
        return np.asarray(ends[self._first[1:]] - ends[self._first[:-1]])

    def lengths(self, step: int, rank: int | None = None) -> Ints:
        """Drafts each request verifies at a step.

        Parameters
        ----------
        step : int
            The step about to run: it must be the one the plan is for.
        rank : int, optional
            One rank's requests; all ranks' by default.

        Returns
        -------
        int64[requests]
            In the order of the snapshot. Requests that have left since are passed over; a new one has no length yet.

        Raises
        ------
        InputError
            Another step, or no such rank.
        """
        step = check_step("step", step)
        if step != self.for_step:
            raise InputError(
                f"lengths for step {step} of a plan for step {self.for_step}, observed at {self.observed_step}",
                fix="verify lengths may depend on earlier steps only: plan again from the latest one",
            )
        if rank is None:
            return self._lengths.copy()
        if not 0 <= rank < self.ranks:
            raise InputError(f"rank = {rank}", fix=f"must be from 0 to {self.ranks - 1}")
        return self._lengths[self._first[rank] : self._first[rank + 1]].copy()
