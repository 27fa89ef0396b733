"""What the next step of every instance costs, what it would cost if its load were spread evenly, and who waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.types import Floats, Ints, Ints2D

__all__ = ["Priced", "over_mean", "priced"]


@dataclass(frozen=True, slots=True)
class Priced:
    """Prices in units of the cost.

    Parameters
    ----------
    price, even : float64[instances]
        Of the next step, and were the same load spread evenly.
    bubble : float64[instances]
        Mean over its ranks of the share of the step that they wait.
    wait : float64[ranks]
        That share of each.
    slowest : int64[instances]
        The rank, inside its instance, with the most to do.
    """

    price: Floats
    even: Floats
    bubble: Floats
    wait: Floats
    slowest: Ints


def priced(
    cost: StepCost,
    instance: Ints,
    batch: Ints,
    context_tokens: Ints,
    saturated_tokens: Ints2D,
    instances: int,
) -> Priced:
    """Price every instance, those of one width together.

    Parameters
    ----------
    cost : StepCost
    instance : int64[ranks]
        Ascending.
    batch, context_tokens : int64[ranks]
        B and C.
    saturated_tokens : int64[ranks, saturations]
    instances : int
    """
    price, even, bubble = np.zeros(instances), np.zeros(instances), np.zeros(instances)
    wait, slowest = np.zeros(len(instance)), np.zeros(instances, np.int64)
    widths = np.bincount(instance, minlength=instances)
    first = np.concatenate([[0], np.cumsum(widths)])[:-1]
    for width in np.unique(widths[widths > 0]).tolist():
        which = np.flatnonzero(widths == width)
        ranks = first[which][:, None] + np.arange(width)
        loads = (batch[ranks], context_tokens[ranks], saturated_tokens[ranks])
        own = cost.constant + cost.work(*loads).sum(axis=0)
        total = cost.cost(*loads)
        price[which], even[which] = total, cost.ideal(*loads)
        share = 1.0 - own / np.where(total > 0, total, 1.0)[:, None]
        share = np.where(total[:, None] > 0, np.clip(share, 0.0, 1.0), 0.0)
        wait[ranks] = share
        bubble[which], slowest[which] = share.mean(axis=1), own.argmax(axis=1)
    return Priced(price, even, bubble, wait, slowest)


def over_mean(loads: Ints) -> float:
    """The largest over the mean; 1 where there is nothing."""
    mean = float(loads.mean()) if len(loads) else 0.0
    return float(loads.max()) / mean if mean > 0 else 1.0
