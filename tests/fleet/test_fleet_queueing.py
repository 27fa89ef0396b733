"""Queueing theory as oracle on the fleet: whole deployments that are textbook queues.

Where every step takes a second a request of S tokens is in service for S steps from the next boundary on. All runs are
seeded; tolerances are multiples of the standard error that theory gives, or that twenty batches of the run itself give.
"""

from __future__ import annotations

import numpy as np
import pytest
from fleet_proofs import CONSTANT, simulated, trace_of
from scipy import stats

from equipoise.fleet import Deployment, KvMemory, Prefill, Transfer
from equipoise.replay import Pool

pytestmark = pytest.mark.proof

STEPS = 60_000
FINE = 50.0
"""Steps of a mean service where the discrete clock is to look like a continuous one."""


def poisson(rng, rate_per_s, n):
    return np.cumsum(rng.exponential(1 / rate_per_s, n))


def batch_error(values, batches=20):
    """Standard error of a mean over a correlated series, from the means of twenty stretches."""
    means = [part.mean() for part in np.array_split(values, batches)]
    return np.std(means, ddof=1) / np.sqrt(batches)


@pytest.mark.parametrize("law", ["geometric", "two lengths"])
@pytest.mark.parametrize("instances", [1, 3])
def test_without_limits_it_is_an_m_g_infinity_queue(law, instances):
    """Requests that run at a boundary are Poisson with mean lambda E[S], whatever the law of S and however many queues
    the routers make of the stream; prefill and transfer before it leave a Poisson stream Poisson."""
    rng, rate = np.random.default_rng(11 + instances), 1.5
    n = int(rate * STEPS)
    outputs = rng.geometric(1 / 20, n) if law == "geometric" else rng.choice([4, 40], n)
    mean, square = (20.0, 780.0) if law == "geometric" else (22.0, 808.0)
    run = simulated(
        trace_of(poisson(rng, rate, n), rng.integers(1, 400, n), outputs),
        Deployment(
            Pool(instances, 2),
            prefill=Prefill(
                "delay", fixed_s=3.0, s_per_token=0.01
            ),  # a random delay: M/G/infinity of its own
            transfer=Transfer(0.7, 0.002),
        ),
        "least_batch",
        CONSTANT,
        mode="timed",
    )
    o = run.outcome
    # counted from the recorded times: running at mid-step, over the time after a transient and before the drain
    at = np.arange(500, STEPS - 2000) + 0.5
    running = np.searchsorted(np.sort(o.start_s), at) - np.searchsorted(np.sort(o.finish_s), at)
    # an instance whose ranks are empty starts a step at once, else at its next boundary: service is S steps whole
    spent = o.finish_s - o.start_s
    assert np.allclose(spent, outputs, atol=1e-6)
    error = np.sqrt(rate * square / len(running))
    assert error < 0.02 * rate * mean
    assert abs(running.mean() - rate * mean) < 4 * error
    apart = running[:: 300 if law == "geometric" else 40]  # independent: hardly a request lives that long
    dispersion = apart.var(ddof=1) / apart.mean() * (len(apart) - 1)
    assert 1e-4 < stats.chi2.cdf(dispersion, len(apart) - 1) < 1 - 1e-4
    edges = stats.poisson(rate * mean).ppf([0.1, 0.3, 0.5, 0.7, 0.9])
    cumulative = stats.poisson(rate * mean).cdf([-1, *edges, 1e6])
    counts = np.histogram(apart, [-1, *(edges + 0.5), 1e6])[0]
    assert stats.chisquare(counts, np.diff(cumulative) * len(apart)).pvalue > 1e-4
    # what is before the routers is M/G/infinity too: mean number is lambda times the mean delay
    before = run.more.queued_s - run.more.came_s
    expected = 3.7 + 0.012 * 200
    within = np.searchsorted(run.more.came_s, at) - np.searchsorted(np.sort(run.more.queued_s), at)
    assert before.mean() == pytest.approx(expected, rel=0.02)
    assert within.mean() == pytest.approx(rate * expected, rel=0.03)


def erlang_c_wait(rate, mean_s, servers):
    """Mean wait of M/M/k in seconds (Erlang C)."""
    offered = rate * mean_s
    terms = np.cumprod([1.0, *(offered / k for k in range(1, servers + 1))])
    waiting = terms[-1] / (1 - offered / servers)
    chance = waiting / (terms[:-1].sum() + waiting)
    return chance * mean_s / (servers - offered)


def waits(run, first=2000):
    """Seconds at the routers and in engine queues, from joining to the first step."""
    return (run.outcome.start_s - run.more.queued_s)[first:]


def served_one_by_one(rng, rate, outputs, deployment, policy="least_batch"):
    trace = trace_of(poisson(rng, rate, len(outputs)), 10, outputs)
    return simulated(trace, deployment, policy, CONSTANT, mode="timed")


SHAPES = {
    "ranks of one instance": lambda k: Pool(1, k, max_batch=1),
    "slots of one rank": lambda k: Pool(1, 1, max_batch=k),
    "instances of one rank": lambda k: Pool(k, 1, max_batch=1),
}
"""Ways to have k servers before one queue."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("servers", [1, 5])
def test_waits_follow_erlang_c(shape, servers):
    """Geometric outputs of fifty steps, load 0.75, against M/M/k. The grid is left: at most a step a wait.

    Instances of one rank have clocks of their own: an idle one starts at once, so it has no grid at all.
    """
    rng = np.random.default_rng(3)
    rate = 0.75 * servers / FINE
    run = served_one_by_one(rng, rate, rng.geometric(1 / FINE, 40_000), Deployment(SHAPES[shape](servers)))
    found, wanted = waits(run), erlang_c_wait(rate, FINE, servers)
    error = batch_error(found)
    assert error < 0.09 * wanted
    assert abs(found.mean() - wanted) < 4 * error + 1.0
    if shape == "instances of one rank" or servers == 1:
        # Only then is a server free at any moment, not at boundaries; the chance to wait is Erlang's C itself.
        offered = rate * FINE
        chance = wanted * (servers - offered) / FINE
        assert (found > 1e-9).mean() == pytest.approx(chance, abs=0.03)
    # Burke: an M/M/k queue passes its jobs on in a Poisson stream
    gaps = np.diff(np.sort(run.outcome.finish_s))[2000:]
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1, abs=0.05)


def pollaczek_khinchine(rate, mean_s, square_s):
    """Mean wait of M/G/1."""
    return rate * square_s / (2 * (1 - rate * mean_s))


OUTPUTS = {
    "always the same": lambda rng, n: np.full(n, 20),
    "two lengths": lambda rng, n: rng.choice([5, 80], n, p=[0.8, 0.2]),
    "geometric": lambda rng, n: rng.geometric(1 / 20, n),
}


@pytest.mark.parametrize("law", OUTPUTS)
def test_one_server_waits_by_pollaczek_and_khinchine(law):
    """A rank with a batch of one starts whenever it is free: M/G/1 exactly, no grid."""
    rng, n = np.random.default_rng(7), 60_000
    outputs = OUTPUTS[law](rng, n)
    rate = 0.7 / outputs.mean()
    found = waits(served_one_by_one(rng, rate, outputs, Deployment(Pool(1, 1, max_batch=1))))
    wanted = pollaczek_khinchine(rate, outputs.mean(), (outputs.astype(float) ** 2).mean())
    error = batch_error(found)
    assert error < 0.09 * wanted
    assert abs(found.mean() - wanted) < 4 * error
    assert (found > 1e-9).mean() == pytest.approx(0.7, abs=0.015)  # who comes finds it busy as often as it is


def d_servers_wait(rate, service_s, servers, most=400):
    """Mean wait of M/D/k (Crommelin): the number present moves on by whole service times."""
    arrive = stats.poisson(rate * service_s).pmf(np.arange(most))
    move = np.zeros((most, most))
    for n in range(most):  # all that are in service now have left after a service time
        left = max(n - servers, 0)
        move[n, left:] = arrive[: most - left]
    move /= move.sum(axis=1, keepdims=True)
    weights = np.full(most, 1 / most)
    for _ in range(14):
        move = move @ move
    present = weights @ move @ np.arange(most)
    return (present - rate * service_s) / rate


@pytest.mark.parametrize("servers", [1, 2, 6])
def test_equal_requests_wait_as_in_m_d_k(servers):
    """Instances of one rank, a batch of one, all outputs alike: M/D/k against Crommelin's chain."""
    rng, service, n = np.random.default_rng(13), 16.0, 50_000
    rate = 0.8 * servers / service
    deployment = Deployment(Pool(servers, 1, max_batch=1))
    found = waits(served_one_by_one(rng, rate, np.full(n, 16), deployment))
    wanted = d_servers_wait(rate, service, servers)
    if servers == 1:
        assert wanted == pytest.approx(pollaczek_khinchine(rate, service, service**2), rel=1e-6)
    error = batch_error(found)
    assert error < 0.09 * wanted
    assert abs(found.mean() - wanted) < 4 * error


@pytest.mark.parametrize("block", [1, 16])
def test_memory_that_holds_k_is_a_queue_of_k_servers(block):
    """No batch limit, but KV for k requests: the same Erlang queue, and one block is not enough for two."""
    rng, servers = np.random.default_rng(21), 4
    outputs = rng.geometric(1 / FINE, 40_000)
    longest = int(outputs.max())
    rate = 0.7 * servers / FINE
    # A context of 1000 blocks, a growth that never makes room for a fifth, and none that outgrows the four.
    context = 100 * longest
    pool = Pool(1, 1, kv_capacity_tokens=servers * (context + longest + block) + context // 2)
    trace = trace_of(poisson(rng, rate, len(outputs)), context, outputs)
    run = simulated(
        trace, Deployment(pool, memory=KvMemory(block, "swap")), "least_tokens", CONSTANT, mode="timed"
    )
    assert run.counts["preemptions"] == 0
    found, wanted = waits(run), erlang_c_wait(rate, FINE, servers)
    error = batch_error(found)
    assert error < 0.08 * wanted
    assert abs(found.mean() - wanted) < 4 * error + 1.0


PROMPTS = {
    "always the same": lambda rng, n: np.full(n, 500),
    "two lengths": lambda rng, n: rng.choice([200, 2000], n, p=[0.8, 0.2]),
    "geometric": lambda rng, n: rng.geometric(1 / 500, n),
}


@pytest.mark.parametrize("law", PROMPTS)
def test_a_prefill_rank_of_small_chunks_is_m_g_1(law):
    """One prefill rank: the wait before prefill is Pollaczek and Khinchine's.

    A step takes up to `chunk_tokens`, of several prompts; its price is in proportion to tokens, so the rank works at
    one pace, in order of arrival. A prompt leaves at the end of the step that computes its last token: at most one
    chunk later than a server without chunks would let it go.
    """
    rng, n, pace = np.random.default_rng(29), 30_000, 1e-3
    prompts = PROMPTS[law](rng, n)
    rate = 0.6 / (prompts.mean() * pace)
    prefill = Prefill("pool", instances=1, ranks=1, s_per_token=pace, chunk_tokens=20)
    run = simulated(
        trace_of(poisson(rng, rate, n), prompts, 1),
        Deployment(Pool(1, 1), prefill=prefill),
        "least_batch",
        CONSTANT,
        mode="timed",
    )
    sojourn = run.more.queued_s - run.more.came_s
    found = (sojourn - prompts * pace)[1000:]
    wanted = pollaczek_khinchine(rate, prompts.mean() * pace, (prompts.astype(float) ** 2).mean() * pace**2)
    error = batch_error(found)
    step = 20 * pace
    assert error < 0.1 * wanted
    assert -4 * error < found.mean() - wanted < 4 * error + 2 * step
    # exactly: Lindley's recursion, up to the grid of chunks (a prompt waits for the step it falls into)
    free, exact = 0.0, np.zeros(n)
    for q, (came, work) in enumerate(zip(run.more.came_s.tolist(), (prompts * pace).tolist(), strict=True)):
        free = max(free, came) + work
        exact[q] = free - came
    late = sojourn - exact
    assert late.min() > -1e-7
    assert late.max() < step + 1e-7


def test_prefill_with_one_prompt_a_step_is_lindleys_queue():
    """A prompt fills a chunk, so each is a step of its own: Lindley's recursion, request by request."""
    rng, n, pace = np.random.default_rng(31), 5000, 1e-3
    prompts = np.full(n, 600)
    prefill = Prefill("pool", instances=1, ranks=1, s_per_token=pace, chunk_tokens=600)
    arrivals = poisson(rng, 0.7 / 0.6, n)
    deployment = Deployment(Pool(1, 1), prefill=prefill, transfer=Transfer(0.25, 1e-4))
    run = simulated(trace_of(arrivals, prompts, 1), deployment, "least_batch", CONSTANT, mode="timed")
    free, wanted = 0.0, []
    for came in run.more.came_s.tolist():
        free = max(free, came) + 0.6
        wanted.append(free + 0.25 + 0.06)
    assert np.allclose(run.more.queued_s, wanted, rtol=1e-12, atol=1e-9)
    assert run.counts["prefill_steps"] == n


def test_stations_in_tandem():
    """Prefill pool, transfer, decode: each stage is the queue it would be alone, by Little and by theory.

    Equal prompts, one a step: an M/D/1 queue. Its output feeds a decode server whose outputs are geometric; what is
    exact there is its load, and that no work is made or lost between the stages.
    """
    rng, n = np.random.default_rng(37), 40_000
    outputs, rate = rng.geometric(1 / 20, n), 0.6 / 20
    prefill = Prefill("pool", instances=1, ranks=1, s_per_token=20 / 500, chunk_tokens=500)
    deployment = Deployment(Pool(1, 1, max_batch=1), prefill=prefill, transfer=Transfer(5.0))
    run = simulated(
        trace_of(poisson(rng, rate, n), 500, outputs), deployment, "least_batch", CONSTANT, mode="timed"
    )
    m, o = run.more, run.outcome
    stages = {
        "prefill": (m.came_s, m.queued_s - 5.0),
        "transfer": (m.queued_s - 5.0, m.queued_s),
        "wait": (m.queued_s, o.start_s),
        "decode": (o.start_s, o.finish_s),
    }
    end = float(o.finish_s.max())
    number = {
        stage: (leave - enter).sum() / end for stage, (enter, leave) in stages.items()
    }  # Little: L = lambda W
    wait = pollaczek_khinchine(rate, 20.0, 400.0)
    error = batch_error((m.queued_s - m.came_s)[1000:])
    assert abs((m.queued_s - m.came_s)[1000:].mean() - (wait + 25.0)) < 4 * error
    assert number["transfer"] == pytest.approx(n * 5.0 / end)
    assert number["decode"] == pytest.approx(outputs.sum() / end, rel=1e-9)
    total = sum(number.values())
    assert total == pytest.approx((o.finish_s - m.came_s).sum() / end, rel=1e-12)
    # departures of M/D/1 are smoother than Poisson, so the second stage waits less than M/M/1 would, yet it waits
    second = (o.start_s - m.queued_s)[1000:]
    assert 0.3 * erlang_c_wait(rate, 20.0, 1) < second.mean() < 0.97 * erlang_c_wait(rate, 20.0, 1)
