"""`RankControl`: one rank's scheduler in a plan that all ranks of an instance compute alike.

Engines with data parallelism run a scheduler a rank, and none of them sees the others' requests. So each publishes a
few hundred bytes after a step, all gather them, and each computes the same plan and keeps its own part of it, by the
names its engine gives to requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from equipoise.control import OwnCurve, RankDrafts, SharedPlan, VerifyPrice, agree, message_bytes
from equipoise.control.verify import check_horizon
from equipoise.errors import InputError
from equipoise.types import Floats

__all__ = ["RankControl", "survival_of"]


def survival_of(confidence: ArrayLike) -> Floats:
    """Survivals from the chances of one draft after another, as confidence heads report them.

    Parameters
    ----------
    confidence : float[requests, drafts]
        Chance that each draft is accepted, those before it given.

    Raises
    ------
    InputError
        No matrix of probabilities.
    """
    given = np.asarray(confidence, dtype=np.float64)
    if given.ndim != 2:
        raise InputError(f"confidence has shape {given.shape}", fix="it must be [requests, drafts]")
    if not ((given >= 0) & (given <= 1)).all():
        raise InputError("confidence holds what is no probability", fix="give numbers from 0 to 1")
    return np.asarray(np.cumprod(given, axis=1))


class RankControl:
    """What one rank's scheduler keeps between steps.

    In this order, once a step, on every rank, idle ones too: `observe`, gather the messages, `agree`; then `lengths`
    when the step that the plan is for is scheduled.

    Parameters
    ----------
    price : VerifyPrice
        The same on all ranks.
    drafts : int
        Draft positions of a request.
    horizon : int
        Steps from the one that survivals are of to the one that is planned: 1, or 2 where the engine schedules a step
        before it has the last one's output.
    """

    def __init__(self, price: VerifyPrice, drafts: int, horizon: int = 1) -> None:
        check_horizon(horizon)
        if isinstance(drafts, bool) or not isinstance(drafts, int) or not 1 <= drafts <= 64:
            raise InputError(f"drafts = {drafts!r}", fix="must be a whole number from 1 to 64")
        self.price, self.drafts, self.horizon = price, drafts, horizon
        self.plan: SharedPlan | None = None
        self._own: OwnCurve | None = None
        self._names: tuple[Hashable, ...] = ()
        self._planned: dict[Hashable, int] = {}

    @property
    def message_bytes(self) -> int:
        """Size of what `observe` returns, always the same: collectives want it so."""
        return message_bytes(self.price)

    def observe(
        self, step: int, names: Sequence[Hashable], context_tokens: ArrayLike, survival: ArrayLike
    ) -> bytes:
        """Take in how the rank stands, and return what it publishes.

        Parameters
        ----------
        step : int
            The step these survivals are of: the last one whose drafts any of them depends on. All ranks must count
            alike.
        names : sequence
            The requests that decode, by whatever the engine calls them; none on an idle rank.
        context_tokens : int64[requests]
        survival : float32[requests, drafts]

        Raises
        ------
        InputError
            As `OwnCurve`; names of another number than requests, or of no use as names.
        """
        own = OwnCurve(RankDrafts(context_tokens, self._width(survival), step), self.price)
        if len(names) != own.requests or len(set(names)) != len(names):
            raise InputError(
                f"{len(names)} names, {len(set(names))} of them different, for {own.requests} requests",
                fix="give each request one of its own",
            )
        self._own, self._names = own, tuple(names)
        return own.message()

    def agree(self, messages: Sequence[bytes]) -> SharedPlan:
        """Compute the plan from all ranks' messages, in rank order.

        Raises
        ------
        InputError
            As `equipoise.control.agree`; nothing observed yet.
        """
        if self._own is None:
            raise InputError("nothing was observed", fix="call observe first, on idle ranks with no requests")
        self.plan = agree(messages, self.price, self.horizon)
        lengths = self._own.lengths(self.plan, self.plan.for_step).tolist()
        self._planned = dict(zip(self._names, lengths, strict=True))
        self._own = None
        return self.plan

    def lengths(self, step: int) -> Mapping[Hashable, int]:
        """Drafts to verify at a step, by request: empty unless the last plan is for that very step.

        A request that is not in it came later: the engine does with it as it always does.
        """
        if self.plan is None or step != self.plan.for_step:
            return {}
        return self._planned

    def _width(self, survival: ArrayLike) -> ArrayLike:
        given = np.asarray(survival, dtype=np.float32)
        if given.size == 0:
            return np.zeros((0, self.drafts), dtype=np.float32)
        if given.ndim != 2 or given.shape[1] != self.drafts:
            raise InputError(f"survival has shape {given.shape}", fix=f"it must be [requests, {self.drafts}]")
        return given
