"""How much of the ranks' waiting a plan turns into verified drafts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.control.evaluate import Worth
from equipoise.control.state import Snapshot
from equipoise.types import Ints

__all__ = ["MARGIN", "Slack", "slack_turned"]

MARGIN = 0.3
"""Survival of the best unverified draft above which a rank's waiting counts as worth turning into tokens."""


class Slack(NamedTuple):
    """Waiting of a step, in the cost's unit, on ranks that have a draft worth verifying left."""

    before: float
    """What they would wait under the lengths compared with."""
    gone: float
    """How much of that they do not wait under the plan."""
    filled: float
    """The part of that in which they work; in the rest the slowest rank is done earlier."""


def slack_turned(snapshot: Snapshot, instead: Ints, alone: Worth, plan: Worth) -> Slack:
    """Compare waiting under a plan with waiting under other lengths, such as what each rank would choose for itself.

    ``gone = before - after = filled + (barrier of the others - barrier of the plan) summed over these ranks``.

    Parameters
    ----------
    snapshot : Snapshot
    instead : int64[requests]
        The other verify lengths.
    alone, plan : Worth
        The step under these lengths, and under the plan.
    """
    n, drafts = len(instead), snapshot.drafts
    best = np.zeros(snapshot.ranks)
    if n and drafts:
        next_one = snapshot.survival[np.arange(n), np.minimum(instead, drafts - 1)]
        rank_of = np.repeat(np.arange(snapshot.ranks), np.diff(snapshot.first))
        np.maximum.at(best, rank_of, np.where(instead < drafts, next_one, 0.0))
    chosen = best > MARGIN
    before = float((alone.barrier - alone.work)[chosen].sum())
    after = float((plan.barrier - plan.work)[chosen].sum())
    return Slack(before, before - after, float((plan.work - alone.work)[chosen].sum()))
