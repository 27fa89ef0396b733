"""What shadows cost, and how near they come to what the same policy would have done in the lead.

Usage: ``python bench/router/shadows.py [--seconds 60]``. A router before a mock pool without sockets: requests of a
synthetic trace come by the clock, steps last what they cost, every request gets a token a step. Each policy leads once,
and looks on once behind ``least_batch``; both means are over the same moments: all steps after the first third.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from equipoise import traces
from equipoise.cost import load
from equipoise.router import Arrival, Dispatch, InstanceSpec, Router, Settings

POLICIES = ("least_batch", "least_tokens", "round_robin", "dualpath", "equipoise")
RANKS = 64
SETTINGS = Settings(reports="none", slow_start_s=0.0, max_queued_requests=100_000)


def run(
    policy: str, shadows: tuple[str, ...], trace: traces.Trace, per_s: float, seconds: float
) -> dict[str, float]:
    """Mean price of a step, of the policy and of its shadows, in units of the cost."""
    cost = load("h200")
    router = Router([InstanceSpec("i", RANKS)], policy, cost, SETTINGS, shadows=shadows)
    rng = np.random.default_rng(7)
    arrivals = np.cumsum(rng.exponential(1 / per_s, len(trace.context_tokens)))
    lease: dict[int, int] = {}
    left: dict[int, int] = {}
    now, fed, prices = 0.0, 0, []
    while now < seconds:
        arrived = []
        while fed < len(arrivals) and arrivals[fed] <= now:
            arrived.append(Arrival(str(fed), int(trace.context_tokens[fed])))
            left[fed] = int(trace.output_tokens[fed])
            fed += 1
        assert fed < len(arrivals), "the trace is too short"
        for action in router.arrived_many(now, arrived):
            assert isinstance(action, Dispatch)
            lease[int(action.request_id)] = action.lease
        price = router.step_price(0)
        if now > seconds / 3:
            prices.append([price, *(one.step_price[0] for one in router.shadows(now))])
        now += price * cost.us_per_unit * 1e-6
        for k in list(lease):
            router.tokens(now, lease[k], 1)
            left[k] -= 1
            if not left[k]:
                router.finished(now, lease.pop(k))
                del left[k]
    means = np.mean(prices, axis=0)
    return dict(zip((policy, *shadows), means, strict=True)) | {"requests": len(lease)}


def decision_us(shadows: tuple[str, ...], ranks: int, per_rank: int, rounds: int) -> tuple[float, float]:
    """Processor time of one decision, median and 99th percentile, in microseconds."""
    router = Router([InstanceSpec("i", ranks)], "least_batch", load("h200"), SETTINGS, shadows=shadows)
    rng = np.random.default_rng(1)
    lengths = rng.integers(100, 50_000, ranks * per_rank + rounds)
    actions = router.arrived_many(0.0, [Arrival(f"s{k}", int(lengths[k])) for k in range(ranks * per_rank)])
    live = [action.lease for action in actions if isinstance(action, Dispatch)]
    spent = []
    for k in range(rounds):
        now = 1.0 + k * 1e-3
        router.finished(now, live.pop(int(rng.integers(len(live)))))
        began = time.process_time()
        (action,) = router.arrived(now, Arrival(f"q{k}", int(lengths[-1 - k])))
        spent.append(1e6 * (time.process_time() - began))
        assert isinstance(action, Dispatch)
        live.append(action.lease)
    late = np.array(spent[rounds // 5 :])
    return float(np.median(late)), float(np.quantile(late, 0.99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--per-second", type=float, default=60.0)
    parser.add_argument("--trace", default="agentic-coding")
    given = parser.parse_args()
    trace = traces.synth(given.trace, requests=int(given.per_second * given.seconds * 1.3), seed=3)
    behind = run("least_batch", POLICIES, trace, given.per_second, given.seconds)
    print(
        f"{given.trace}, {given.per_second:g} requests/s, DP{RANKS}, {behind['requests']:.0f} running at the end"
    )
    print(f"{'policy':14} {'leads':>9} {'looks on':>9} {'off by':>7}   {'gain led':>8} {'gain seen':>9}")
    base = None
    for policy in POLICIES:
        led = run(policy, (), trace, given.per_second, given.seconds)[policy]
        base = base or led
        seen = behind[policy]
        first = behind["least_batch"]
        print(
            f"{policy:14} {led:9.1f} {seen:9.1f} {seen / led - 1:7.2%}   {1 - led / base:8.2%} {1 - seen / first:9.2%}"
        )
    for ranks in (64, 640):
        for shadows in ((), ("least_tokens",), ("equipoise",), ("least_tokens", "dualpath", "equipoise")):
            median, late = decision_us(shadows, ranks, 30, 300)
            print(
                f"{ranks} ranks, {ranks * 30} requests, {' '.join(shadows) or '-'}: {median:.0f} us (p99 {late:.0f})"
            )


if __name__ == "__main__":
    main()
