"""`VerifyPrice`: what a step costs as a function of the query tokens that each rank verifies.

::

    step time = constant + sum over groups g of  max over ranks r of
                           ( batch price_g(Q_r) + context price_g * reads_r )          + EP(mean of Q)
    reads_r   = C_r + query_reads * sum over requests of (verified drafts * context)

A group is one barrier. The terms of a `StepCost` that do not look at contexts all have the same slowest rank, so they
are one group; with ``barrier = "step"`` all terms are. With captured graph sizes every rank runs the largest rank's
tokens, rounded up to a captured size: ``batch price_g`` is then the same for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from equipoise.control.kernel.room import VerifyPrices
from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError

__all__ = ["VerifyPrice"]

MOST_GRAPHS = 4096


@dataclass(frozen=True)
class VerifyPrice:
    """What a step costs when ranks verify drafts.

    Parameters
    ----------
    cost : StepCost
        Price of a step by batch and context; the batch counts query tokens here.
    graph_sizes : sequence of int
        Captured graph sizes, in query tokens. Every rank runs the smallest that holds the largest rank's; above the
        last, exactly the largest rank's tokens. None: ranks run ragged.
    query_reads : float
        How much of a further query token's context read is paid again: 1 where attention is bound by arithmetic (the
        counted models), 0 where one read of the cache serves all.
    ep_per_query : float
        Price of one more query token of the average rank in experts and communication, in the cost's unit.
    ep_free_queries : float
        Query tokens of the average rank up to which experts only read their weights and a further token is free there.

    Raises
    ------
    InputError
        A number out of bounds, or graph sizes that do not rise.

    Examples
    --------
    >>> from equipoise.cost import load
    >>> VerifyPrice(load("v2"), graph_sizes=[8, 16, 32]).unit
    'request'
    """

    cost: StepCost
    graph_sizes: Sequence[int] = ()
    query_reads: float = 1.0
    ep_per_query: float = 0.0
    ep_free_queries: float = 0.0

    def __post_init__(self) -> None:
        sizes = tuple(self.graph_sizes)
        if len(sizes) > MOST_GRAPHS:
            raise InputError(f"{len(sizes)} graph_sizes", fix=f"at most {MOST_GRAPHS}")
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 2**20:
                raise InputError(f"graph_sizes holds {size!r}", fix="must be whole numbers from 1 to 1048576")
        if any(b <= a for a, b in pairwise(sizes)):
            raise InputError("graph_sizes do not rise", fix="sort them and drop doubles")
        object.__setattr__(self, "graph_sizes", sizes)
        for name, high in (("query_reads", 1.0), ("ep_per_query", 1e12), ("ep_free_queries", 1e12)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= high:
                raise InputError(f"{name} = {value!r}", fix=f"must be a number from 0 to {high:g}")

    @property
    def unit(self) -> str:
        """Unit of the prices: that of the cost."""
        return self.cost.unit

    @cached_property
    def arrays(self) -> VerifyPrices:
        """The price as arrays, the form that compiled code takes."""
        prices = self.cost.prices()
        priced = (prices.context > 0) | (prices.saturated > 0).any(axis=1)
        groups = [np.flatnonzero(~priced)]
        if prices.barrier_step:  # one barrier: one group, and nothing beside it
            groups = [np.array([], dtype=np.int64), np.arange(len(priced))]
        else:
            groups += [np.array([t]) for t in np.flatnonzero(priced)]
        return VerifyPrices(
            constant=prices.constant,
            batch=np.ascontiguousarray([prices.batch[g].sum(axis=0) for g in groups]),
            tail=np.array([prices.batch_tail[g].sum() for g in groups]),
            context=np.array([prices.context[g].sum() for g in groups]),
            saturated=np.ascontiguousarray([prices.saturated[g].sum(axis=0) for g in groups]),
            saturation_tokens=prices.saturation_tokens,
            graphs=np.array(self.graph_sizes, dtype=np.int64),
            query_reads=float(self.query_reads),
            ep_per_query=float(self.ep_per_query),
            ep_free=float(self.ep_free_queries),
        )

    def us(self, price: float) -> float:
        """A price in microseconds."""
        return price * (1.0 if self.cost.unit == "us" else self.cost.us_per_unit)
