"""Small runs of whole deployments, by the slow twin: nothing to compile."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from equipoise.cost import load
from equipoise.fleet import (
    Change,
    Clients,
    Deployment,
    FleetResult,
    KvMemory,
    Prefill,
    Slo,
    Speculation,
    StepExtras,
    Transfer,
    simulate,
)
from equipoise.replay import Pool
from equipoise.traces import Trace

SLO = Slo(ttft_ms=60.0, tpot_ms=12.5)
POOL = Pool(2, 4, kv_capacity_tokens=90_000, max_batch=12)
DEPLOYMENTS = {
    "plain": Deployment(POOL, slo=SLO),
    "prefill": Deployment(
        POOL,
        prefill=Prefill("pool", instances=2, ranks=2, s_per_token=2e-6),
        transfer=Transfer(1e-3, 1e-8),
        speculation=Speculation(2, 0.6),
        slo=SLO,
    ),
    "stormy": Deployment(
        replace(POOL, kv_capacity_tokens=45_000),
        memory=KvMemory(1024, "swap", swap_s_per_token=1e-7),
        step=StepExtras(overhead_us=200.0),
        clients=Clients(abort_share=0.1, patience_s=0.05),
        changes=(
            Change(0.25, "die", 0, 1, notice_s=0.05, stall_s=0.01),
            Change(0.30, "drain", 1, notice_s=0.01),
            Change(0.40, "resume", 1),
            Change(0.45, "return", 0, 1),
        ),
        slo=SLO,
    ),
}


def workload(requests: int = 240, seconds: float = 0.8, seed: int = 1) -> Trace:
    """Conversations of short answers."""
    rng = np.random.default_rng(seed)
    session = rng.integers(0, requests // 4, requests)
    turn = np.array([(session[:i] == s).sum() for i, s in enumerate(session)], dtype=np.int32)
    return Trace.from_columns(
        "small",
        np.sort(rng.uniform(0, seconds, requests)),
        rng.integers(1, 20_000, requests),
        rng.integers(1, 50, requests),
        session=session,
        turn=turn,
        think_s=rng.uniform(0.0, 0.05, requests),
    )


def run(deployment: Deployment, **how: Any) -> FleetResult:
    """One run of the workload by the slow twin."""
    how = {"warmup_turnovers": 0.5, "engine": "reference", **how}
    return simulate(workload(), deployment, how.pop("policy", "dualpath"), load("h200"), **how)


@cache
def known(name: str) -> FleetResult:
    """A run of `DEPLOYMENTS`, or of ``sessions``."""
    if name == "sessions":
        return run(DEPLOYMENTS["prefill"], mode="sessions")
    return run(DEPLOYMENTS[name])


NAMES = (*DEPLOYMENTS, "sessions")


def by_hand() -> FleetResult:
    """Seven requests with times that were made up, in a counted window from 1 to 11 s.

    0: 4 tokens, first at 2 s, last at 5 s; 1: its only token at 4 s; 2: lost once, first 3 s, last 8 s of 11 tokens;
    3: first token before the window; 4: rejected inside it; 5: tired of waiting inside it; 6: left during its answer.
    """
    base = known("plain")
    nan = np.nan
    first, last = 1.0, 11.0
    totals = base.outcome.totals.copy()
    totals[10], totals[11] = first, last
    more = base.more._replace(
        status=np.array([1, 1, 1, 1, 3, 2, 2], np.int32),
        came_s=np.array([1.0, 2.0, 1.0, 0.0, 2.0, 2.0, 3.0]),
        queued_s=np.array([1.5, 2.5, 2.9, 0.1, nan, 2.0, 3.0]),
        placed_s=np.array([1.6, 2.6, 2.9, 0.1, nan, nan, 3.0]),
        first_s=np.array([2.0, 4.0, 3.0, 1.0, nan, nan, 4.0]),
        ended_s=np.array([5.0, 4.0, 8.0, 9.0, 2.0, 3.0, 5.0]),
        preemptions=np.zeros(7, np.int32),
        tries=np.array([0, 0, 1, 0, 0, 0, 0], np.int32),
        tokens=np.array([4, 1, 11, 5, 0, 0, 2], np.int32),
    )
    outcome = base.outcome._replace(totals=totals, start_s=np.array([1.75, 3.0, 2.0, 0.5, nan, nan, 3.5]))
    return replace(
        base,
        more=more,
        outcome=outcome,
        context_tokens=np.array([100, 9000, 8000, 5, 40_000, 7, 7]),
        output_tokens=np.array([4, 1, 11, 5, 9, 9, 9]),
        turn=np.array([0, 1, 2, 0, 1, 0, 0], np.int32),
        deployment=Deployment(POOL, slo=Slo(ttft_ms=1000.0)),
    )
