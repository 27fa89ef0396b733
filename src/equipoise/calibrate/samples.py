"""`Samples`: the decode steps that a fit looks at, packed: one row a (step, rank), one time a step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc

from equipoise.types import Floats, Ints

__all__ = ["Samples", "saturated_tokens"]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Loads of every rank and the observed time of every step.

    Parameters
    ----------
    starts : int64[steps + 1]
        First row of every step, then the number of rows.
    batch : int64[rows]
        B.
    context : float64[rows]
        C, in tokens.
    extra_queries : float64[rows]
        Q - B: tokens verified beyond one a request; no rows at all where nobody speculates.
    context_variance : float64[rows]
        Variance of the context length over a rank's requests, in tokens squared; NaN: unknown. No rows at all
        where every request of a rank has the same context.
    time_us : float64[steps]
        Observed length of the step: the slowest rank's.
    weight : float64[steps]
        How many steps a row stands for; 1 for a plain step.
    instance : int64[steps]
    is_grid : bool
        A measured table: every row is a step of one rank, and neighbours in the table are not neighbours in time.
    """

    starts: Ints
    batch: Ints
    context: Floats
    extra_queries: Floats
    context_variance: Floats
    time_us: Floats
    weight: Floats
    instance: Ints
    is_grid: bool = False

    def __len__(self) -> int:
        return len(self.time_us)

    @property
    def rows(self) -> int:
        """Rows over all steps."""
        return len(self.batch)

    @property
    def one_rank(self) -> bool:
        """Whether every step has a single rank: no maximum, an ordinary regression."""
        return self.rows == len(self)

    @property
    def extra_a_request(self) -> float:
        """Verified tokens beyond one a request, per request, over all busy ranks."""
        if not len(self.extra_queries):
            return 0.0
        return float(self.extra_queries.sum() / max(self.batch.sum(), 1))

    def mean(self, column: Floats | Ints) -> Floats:
        """float64[steps], mean of a row column over the ranks of each step."""
        if self.one_rank:
            return np.asarray(column, dtype=np.float64)
        return np.asarray(np.add.reduceat(column, self.starts[:-1], dtype=np.float64) / np.diff(self.starts))

    def take(self, steps: NDArray[np.int64] | NDArray[np.bool_]) -> Samples:
        """The steps of a mask or an index array, in the order given."""
        steps = np.flatnonzero(steps) if steps.dtype == np.bool_ else steps
        sizes = np.diff(self.starts)[steps]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        rows = np.repeat(self.starts[:-1][steps] - starts[:-1], sizes) + np.arange(starts[-1])
        return replace(
            self,
            starts=starts,
            batch=self.batch[rows],
            context=self.context[rows],
            extra_queries=self.extra_queries[rows] if len(self.extra_queries) else self.extra_queries,
            context_variance=self.context_variance[rows]
            if len(self.context_variance)
            else self.context_variance,
            time_us=self.time_us[steps],
            weight=self.weight[steps],
            instance=self.instance[steps],
        )

    def thin(self, steps: int, run: int = 16) -> Samples:
        """At most about `steps` of the steps: runs of `run` neighbours, evenly spread over time."""
        if len(self) <= steps:
            return self
        runs = max(1, steps // run)
        firsts = np.linspace(0, len(self) - run, runs).astype(np.int64)
        return self.take(np.unique((firsts[:, None] + np.arange(run)).ravel()))


def saturated_tokens(samples: Samples, tokens: int) -> Floats:
    """K of every row: sum over its requests of min(context, saturation length), in tokens.

    Exact where a rank's requests all have the same context. Otherwise the lengths of a rank are taken to follow a
    gamma law with the logged mean m and variance v, whose limited expected value is in closed form (shape a =
    m^2 / v, scale v / m, P the regularised lower incomplete gamma function)::

        E min(X, s) = m P(a + 1, s m / v) + s (1 - P(a, s m / v))

    An unknown variance counts as 0, which by Jensen's inequality is the largest K possible.

    Parameters
    ----------
    samples : Samples
    tokens : int
        Saturation length s.

    Returns
    -------
    float64[rows]
    """
    mean = samples.context / np.maximum(samples.batch, 1)
    limited = np.minimum(mean, tokens)
    if len(samples.context_variance):
        spread = np.flatnonzero((samples.context_variance > 0) & (mean > 0))
        m, v = mean[spread], samples.context_variance[spread]
        # A spread below a millionth of the length is none; the gamma functions would only lose digits on it.
        wide = v > 1e-6 * m**2
        spread, m, v = spread[wide], m[wide], v[wide]
        shape, at = m**2 / v, tokens * m / v
        limited[spread] = m * gammainc(shape + 1, at) + tokens * (1 - gammainc(shape, at))
    return np.asarray(samples.batch * limited)
