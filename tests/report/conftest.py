"""Small comparisons that several tests look at."""

from __future__ import annotations

import pytest
from small_comparisons import POLICIES, run, trace_file

from equipoise.cost import load
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import Comparison


@pytest.fixture(scope="session")
def usual() -> Comparison:
    """Six policies, two costs, three seeds."""
    return run()


@pytest.fixture(scope="session")
def single() -> Comparison:
    """One policy, one cost, one seed: intervals over blocks."""
    return run(costs=[load("v1")], policies=[parse("least_batch")], seeds=1)


@pytest.fixture(scope="session")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """So short that no interval can be given: every bound is NaN."""
    trace = trace_file(tmp_path_factory.mktemp("brief"))
    policies = [parse(p) for p in POLICIES[:2]]
    return run(traces=[trace], policies=policies, seeds=1, requests=40, concurrency=8)


@pytest.fixture(scope="session")
def grouped() -> Comparison:
    """Four instances cut into 1, 2 and 4 groups, chosen in both ways."""
    return run(
        costs=[load("v1")],
        policies=[parse(p) for p in (POLICIES[0], POLICIES[4])],
        pool=Pool(instances=4, ranks=4),
        groups=(1, 2, 4),
        group_policies=("least_batch", "least_tokens"),
        seeds=2,
    )


@pytest.fixture(scope="session")
def timed() -> Comparison:
    """Arrivals by the clock: latencies are there."""
    return run(costs=[load("h200")], policies=[parse(p) for p in POLICIES[:2]], mode="timed", seeds=2)
