"""What a plan of verify lengths costs: ``python bench/control.py [REPEATS]``, one core.

Prints wall and processor time of `allocate` on a snapshot, median and 99th percentile, and the parts of the distributed
form. The bars: 64 ranks x 128 requests x 5 drafts in 300 us, 256 x 256 x 5 in 5 ms, both p99.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from equipoise.control import OwnCurve, Snapshot, VerifyPrice, agree, allocate, message_bytes
from equipoise.cost import load


def snapshot(ranks: int, requests: int, drafts: int = 5) -> Snapshot:
    rng = np.random.default_rng(0)
    n = ranks * requests
    chance = np.clip(rng.beta(5, 2, (n, 1)) + rng.normal(0, 0.1, (n, drafts)), 0.02, 0.99)
    context = rng.lognormal(np.log(40_000), 1.0, n).astype(np.int64)
    survival = np.cumprod(chance, axis=1).astype(np.float32)
    return Snapshot(context, survival, np.arange(ranks + 1) * requests)


def timed(name: str, call: Callable[[], object], repeats: int) -> None:
    call()
    wall, own = np.empty(repeats), np.empty(repeats)
    for i in range(repeats):
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        call()
        wall[i], own[i] = time.perf_counter_ns() - began, time.thread_time_ns() - used
    of = [f"{np.percentile(t, p) / 1e3:8.0f}" for t in (wall, own) for p in (0, 50, 99)]
    print(
        f"{name:44} wall us min {of[0]} p50 {of[1]} p99 {of[2]}   cpu us min {of[3]} p50 {of[4]} p99 {of[5]}"
    )


def main(repeats: int) -> None:
    for ranks, requests, times in ((64, 128, repeats), (256, 256, max(20, repeats // 10))):
        whole = snapshot(ranks, requests)
        prices = {
            "h200": VerifyPrice(load("h200")),
            "h200, graphs of 8": VerifyPrice(load("h200"), tuple(range(8, requests * 6 + 8, 8))),
            "h200, one read a request": VerifyPrice(load("h200"), query_reads=0.0),
            "h200, priced experts": VerifyPrice(load("h200"), ep_per_query=40.0),
        }
        for name, price in prices.items():
            timed(f"{ranks} x {requests} x 5, {name}", lambda p=price, s=whole: allocate(s, p), times)  # type: ignore[misc]
        price = prices["h200"]
        own = [OwnCurve(whole.rank(r), price) for r in range(ranks)]
        messages = [curve.message() for curve in own]
        plan = agree(messages, price)
        print(f"a rank's message: {message_bytes(price)} bytes, {ranks * message_bytes(price)} gathered")
        timed("a rank's curve and message", lambda s=whole, p=price: OwnCurve(s.rank(0), p).message(), times)  # type: ignore[misc]
        timed("the plan from all messages", lambda m=messages, p=price: agree(m, p), times)  # type: ignore[misc]
        timed("a rank's own lengths", lambda o=own[0], q=plan: o.lengths(q, q.for_step), times)  # type: ignore[misc]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
