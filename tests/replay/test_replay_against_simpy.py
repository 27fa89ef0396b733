"""A SimPy model of the same pool, written from the rules alone, agrees request by request."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from replay_cases import run_unchecked, trace_of

from equipoise.cost.step_cost import StepCost, Term
from equipoise.replay import Pool

WEIGHTS, CONTEXT_PRICE, CONSTANT_S, SECONDS = (0.7, 0.3), 2e-3, 2.0, 0.01
COST = StepCost(
    "two barriers",
    (Term("shared", WEIGHTS[0]), Term("full", WEIGHTS[1], per_100k_context=CONTEXT_PRICE * 1e5)),
    constant=CONSTANT_S,
    us_per_unit=SECONDS * 1e6,
)


class SimPyPool:
    """Instances are processes that sleep a step at a time; requests are small lists ``[context, left]``."""

    def __init__(self, arrivals, contexts, outputs, instances, ranks, capacity, max_batch, rule):
        self.env = simpy.Environment()
        self.capacity, self.max_batch, self.rule = capacity, max_batch, rule
        self.queue, self.start, self.finish, self.rank = [], {}, {}, {}
        self.resident = [[[] for _ in range(ranks)] for _ in range(instances)]
        self.bell = [None] * instances  # set while an instance is idle
        for i in range(instances):
            self.env.process(self.instance(i))
        self.env.process(self.source(arrivals, contexts, outputs))
        self.env.run()

    def source(self, arrivals, contexts, outputs):
        for q, at in enumerate(arrivals):
            yield self.env.timeout(at - self.env.now)
            self.queue.append([q, int(contexts[q]), int(outputs[q])])
            if any(self.bell):
                self.route()

    def instance(self, i):
        while True:
            if not any(self.resident[i]):
                self.bell[i] = self.env.event()
                yield self.bell[i]
                self.bell[i] = None
            running = [list(rank) for rank in self.resident[i]]
            for request in (request for rank in running for request in rank):
                self.start.setdefault(request[0], self.env.now)
            load = [sum(request[1] for request in rank) for rank in running]
            shared = max(len(rank) for rank in running)
            full = max(len(rank) + CONTEXT_PRICE * tokens for rank, tokens in zip(running, load, strict=True))
            yield self.env.timeout(SECONDS * (CONSTANT_S + WEIGHTS[0] * shared + WEIGHTS[1] * full))
            for r, rank in enumerate(running):
                for request in rank:
                    request[1] += 1
                    request[2] -= 1
                    if request[2] == 0:
                        self.finish[request[0]] = self.env.now
                        self.resident[i][r].remove(request)
            self.route()

    def route(self):
        while self.queue:
            q, context, _ = self.queue[0]
            tokens = [sum(request[1] for request in rank) for group in self.resident for rank in group]
            batch = [len(rank) for group in self.resident for rank in group]
            fitting = [
                r
                for r in range(len(batch))
                if tokens[r] + context <= self.capacity and batch[r] < self.max_batch
            ]
            if not fitting:
                break
            self.rank[q] = min(fitting, key=(batch if self.rule == "least_batch" else tokens).__getitem__)
            i, r = divmod(self.rank[q], len(self.resident[0]))
            self.resident[i][r].append(self.queue.pop(0))
            if self.bell[i] is not None and not self.bell[i].triggered:
                self.bell[i].succeed()


@pytest.mark.parametrize("rule", ["least_batch", "least_tokens"])
@pytest.mark.parametrize(
    ("instances", "ranks", "capacity", "max_batch", "rate"),
    [
        (1, 1, None, 3, 3.0),
        (1, 4, None, None, 12.0),
        (3, 2, 900, None, 12.0),
        (2, 4, 600, 4, 18.0),
        (4, 1, None, 2, 8.0),
        (3, 2, None, None, 1.0),
    ],
)
def test_replay_agrees_with_simpy(rule, instances, ranks, capacity, max_batch, rate):
    rng = np.random.default_rng(instances * 10 + ranks)
    n = 400
    arrivals = np.cumsum(rng.exponential(1 / rate, n))
    arrivals -= arrivals[0]
    contexts, outputs = rng.integers(1, 300, n), rng.geometric(1 / 25, n)
    trace = trace_of(arrivals, contexts, outputs)
    pool = Pool(instances=instances, ranks=ranks, kv_capacity_tokens=capacity, max_batch=max_batch)
    run = run_unchecked(trace, pool, rule, COST, mode="timed")
    model = SimPyPool(
        arrivals, contexts, outputs, instances, ranks, capacity or np.inf, max_batch or np.inf, rule
    )
    for mine, theirs in ((run.outcome.rank, model.rank),):
        assert mine.tolist() == [theirs[q] for q in range(n)]
    for mine, theirs in ((run.outcome.start_s, model.start), (run.outcome.finish_s, model.finish)):
        assert np.allclose(mine, [theirs[q] for q in range(n)], rtol=1e-12, atol=1e-9)
    blocked = run.blocked_requests > 0
    assert blocked == (
        capacity is not None or max_batch is not None
    )  # the limits were felt where there are any
