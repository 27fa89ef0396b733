"""Limit cases with known answers: with a constant step cost a rank is a textbook queue.

Arrivals are Poisson and every step takes a second, so a request that needs S tokens is in service for S steps from the
next boundary on. All runs are seeded; tolerances are multiples of the standard error that theory gives, or that twenty
batches of the run itself give where theory gives none.
"""

from __future__ import annotations

import numpy as np
import pytest
from replay_cases import CONSTANT, LINEAR, run_unchecked, trace_of
from scipy import stats

from equipoise.replay import Pool
from equipoise.replay.layout import SERIES
from equipoise.testing.strategies import lengths

STEPS = 60_000


def poisson_trace(rng, rate_per_s, outputs):
    """As many requests as there are outputs, at a rate."""
    return trace_of(np.cumsum(rng.exponential(1 / rate_per_s, len(outputs))), 50, outputs)


def per_step(run):
    """B and the queue at every step of a one-rank run."""
    rows = run.series
    assert (rows[:, SERIES.STEPS] == 1).all()
    return rows[:, SERIES.MAX_BATCH], rows[:, SERIES.QUEUED]


@pytest.mark.parametrize("name", ["geometric", "two lengths"])
def test_without_limits_it_is_an_m_g_infinity_queue(name):
    """Running requests at a boundary are Poisson with mean lambda E[S], whatever the law of S."""
    rng, rate = np.random.default_rng(11), 1.5
    n = int(rate * STEPS)
    outputs = rng.geometric(1 / 20, n) if name == "geometric" else rng.choice([4, 40], n)
    mean, square = (20.0, 780.0) if name == "geometric" else (22.0, 808.0)
    run = run_unchecked(
        poisson_trace(rng, rate, outputs),
        Pool(ranks=1),
        "least_batch",
        CONSTANT,
        mode="timed",
        series_rows=1 << 17,
    )
    running, queued = per_step(run)
    running, queued = running[500 : STEPS - 2000], queued[500 : STEPS - 2000]
    assert (queued == 0).all()
    assert (
        np.diff(run.series[:STEPS, SERIES.START_S]) == 1
    ).all()  # it never ran dry, the grid of steps has no gap
    # the autocovariance at lag k is rate * E[max(S - k, 0)], which sums to rate * E[S^2]
    error = np.sqrt(rate * square / len(running))
    assert abs(running.mean() - rate * mean) < 4 * error
    assert error < 0.02 * rate * mean
    apart = running[:: 300 if name == "geometric" else 40]  # independent: hardly a request lives that long
    dispersion = apart.var(ddof=1) / apart.mean() * (len(apart) - 1)
    assert 1e-4 < stats.chi2.cdf(dispersion, len(apart) - 1) < 1 - 1e-4
    edges = stats.poisson(rate * mean).ppf([0.1, 0.3, 0.5, 0.7, 0.9])
    cumulative = stats.poisson(rate * mean).cdf([-1, *edges, 1e6])
    counts = np.histogram(apart, [-1, *(edges + 0.5), 1e6])[0]
    assert stats.chisquare(counts, np.diff(cumulative) * len(apart)).pvalue > 1e-4


def batch_error(values, batches=20):
    """Standard error of a mean over a correlated series, from the means of twenty stretches."""
    means = [part.mean() for part in np.array_split(values, batches)]
    return np.std(means, ddof=1) / np.sqrt(batches)


def stationary_mean(arrivals_per_step, finish, servers, states=400):
    """Mean number in a discrete queue: up to ``servers`` finish with a chance each step, then Poisson many arrive.

    Counted as replay counts: at a boundary, arrivals of the step before included.
    """
    arrive = stats.poisson(arrivals_per_step).pmf(np.arange(states))
    move = np.zeros((states, states))
    for n in range(states):
        busy = min(n, servers)
        leave = stats.binom(busy, finish).pmf(np.arange(busy + 1))
        left = np.zeros(states)
        left[n - np.arange(busy + 1)] = leave
        move[n] = np.convolve(left, arrive)[:states]
    move /= move.sum(axis=1, keepdims=True)
    weights = np.full(states, 1 / states)
    for _ in range(15):
        move = move @ move
    return float(weights @ move @ np.arange(states))


@pytest.mark.parametrize("servers", [1, 4])
def test_with_a_batch_limit_it_is_the_discrete_queue_with_as_many_servers(servers):
    """Number in the system against the exact chain; geometric outputs, load 0.8."""
    rng, mean = np.random.default_rng(5), 10.0
    rate = 0.8 * servers / mean
    outputs = rng.geometric(1 / mean, 40_000)
    run = run_unchecked(
        poisson_trace(rng, rate, outputs),
        Pool(ranks=1, max_batch=servers),
        "least_tokens",
        CONSTANT,
        mode="timed",
        series_rows=1 << 19,
    )
    running, queued = per_step(run)
    assert running.max() == servers
    begins, busy_steps = run.series[:, SERIES.START_S], len(running)
    span = begins[-1]
    # steps are only taken while there is work: time between them counts as empty
    present = (running + queued)[1000:]
    average = present.sum() / (span - begins[1000])
    wanted = stationary_mean(rate, 1 / mean, servers)
    error = batch_error(present) * busy_steps / span
    assert error < 0.06 * wanted
    assert abs(average - wanted) < 4 * error


def erlang_c_wait(rate, mean_s, servers):
    """Mean wait of M/M/k in seconds (Erlang C)."""
    offered = rate * mean_s
    terms = np.cumprod([1.0, *(offered / k for k in range(1, servers + 1))])
    waiting = terms[-1] / (1 - offered / servers)
    chance = waiting / (terms[:-1].sum() + waiting)
    return chance * mean_s / (servers - offered)


@pytest.mark.parametrize("servers", [1, 5])
def test_waits_follow_erlang_c(servers):
    """Mean queue wait with a batch limit k, against M/M/k.

    A step is a fiftieth of the mean service, so a geometric output is all but exponential. What is left of the grid:
    a request that finds a free slot waits half a step for the boundary; one that queues takes over a slot at a
    boundary, its server's own end being rounded up: half a step again.
    """
    rng, mean = np.random.default_rng(3), 50.0
    rate = 0.75 * servers / mean
    outputs = rng.geometric(1 / mean, 60_000)
    run = run_unchecked(
        poisson_trace(rng, rate, outputs),
        Pool(ranks=1, max_batch=servers),
        "least_batch",
        CONSTANT,
        mode="timed",
    )
    waits = (run.outcome.start_s - run.arrival_s)[2000:]
    wanted = erlang_c_wait(rate, mean, servers)
    error = batch_error(waits)
    assert error < 0.06 * wanted
    assert abs(waits.mean() - wanted) < 4 * error + 1.0  # the grid: at most a step
    # an M/M/k queue passes its jobs on in a Poisson stream (Burke): the gaps between finishes are exponential
    gaps = np.diff(np.sort(run.outcome.finish_s))[2000:]
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    "pool", [Pool(ranks=1), Pool(ranks=4, max_batch=5), Pool(instances=3, ranks=2, max_batch=6)]
)
def test_littles_law_from_the_recorded_requests(pool):
    """L = lambda W: requests running, summed over steps and their lengths, are the time requests spent running."""
    rng = np.random.default_rng(1)
    n = 3000
    trace = trace_of(np.cumsum(rng.exponential(0.05, n)), lengths(rng, n, 400), lengths(rng, n, 60))
    run = run_unchecked(trace, pool, "dualpath", LINEAR, mode="timed", series_rows=1 << 17)
    rows, o = run.series, run.outcome
    length_s = rows[:, SERIES.COST] * run.cost.us_per_unit * 1e-6
    in_service = (rows[:, SERIES.MEAN_BATCH] * pool.ranks * length_s).sum()
    spent = (o.finish_s - o.start_s).sum()
    horizon, rate = o.finish_s.max(), n / o.finish_s.max()
    assert in_service / horizon == pytest.approx(rate * spent / n, rel=1e-9)
    if pool.instances == 1:  # the same for the queue, as it stood at the boundaries
        boundaries = np.append(rows[:, SERIES.START_S], np.inf)
        waited = o.start_s - np.minimum(o.start_s, boundaries[np.searchsorted(boundaries, run.arrival_s)])
        assert (rows[:, SERIES.QUEUED] * length_s).sum() == pytest.approx(waited.sum(), rel=1e-9, abs=1e-6)
        assert (pool.max_batch is None) == (waited.sum() == 0)
