"""Hypothesis strategies for fleets: any mixture of what can be switched on."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args
from zlib import crc32

import numpy as np
from fleet_cases import CURSOR, case_of, changes_of
from hypothesis import strategies as st

from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.cost.step_cost import Saturation
from equipoise.fleet.kernel.layout import (
    BY_INSTANCE,
    DELAYED,
    DIE,
    DRAIN,
    NO_PREEMPTION,
    NO_PREFILL,
    NOTICED,
    ON_RANKS,
    PREFILL_POOL,
    RECOMPUTE,
    RESUME,
    RETURN,
    SWAP,
)
from equipoise.replay import Information, Pool, SnapshotPlan
from equipoise.replay.information import Knows
from equipoise.testing.strategies import costs, policies, pools, traces
from equipoise.traces.trace import Trace

FEATURES = (
    "sessions", "leaving", "patience", "prefill", "transfer", "blocks", "preemption", "uneven", "graphs", "ffn",
    "speculation", "changes", "information", "by_instance", "report_period", "few_rows",
)  # fmt: skip


@st.composite
def fleets(draw, *, always=(), never=(), drain=None):
    """A case with a random subset of features on; None where nothing fits.

    Hypothesis repeats its draws on purpose, seeds among them; the generator is seeded by all of them, so that no two
    cases switch the same things on.
    """
    drawn = draw(traces()), draw(pools()), draw(policies()), draw(costs()), draw(st.integers(0, 2**32 - 1))
    trace, pool, policy, cost, seed = drawn
    columns = trace.arrival_s.tobytes() + trace.context_tokens.tobytes() + trace.output_tokens.tobytes()
    rng = np.random.default_rng([seed, crc32(columns), crc32(repr((pool, policy.params, cost)).encode())])
    likely = float(rng.choice([0.1, 0.3, 0.6]))
    on = {f for f in FEATURES if rng.random() < likely} | set(always)
    on -= set(never)
    crowded = "preemption" in on and rng.random() < 0.8
    if crowded:
        trace, pool = crowd(rng)
    if "by_instance" in on:
        pool = replace(pool, groups=pool.instances)
    informed = information(rng) if "information" in on else None
    guesses = (
        informed is not None and informed.knows == "extrapolated"
    )  # from when requests started: those are kept
    case = case_of(
        trace,
        pool,
        policy,
        cost,
        mode="timed" if "sessions" in on or rng.random() < 0.6 else "saturated",
        concurrency=int(rng.integers(1, 30)),
        seed=int(rng.integers(0, 9)),
        rate_scale=float(rng.choice([0.5, 1.0, 7.0])) * (1e4 if crowded and rng.random() < 0.5 else 1),
        group_policy=str(rng.choice(["least_batch", "least_tokens"])),
        information=informed,
        warmup_turnovers=float(rng.choice([0.0, 0.5, 1.0])),
        drain=rng.random() < 0.7 if drain is None else drain,
        keep_requests=rng.random() < 0.8 or guesses,
        snapshots=SnapshotPlan(
            int(rng.integers(0, 5)), first=int(rng.integers(0, 5)), every=int(rng.integers(1, 4))
        ),
        series_rows=int(rng.choice([2, 16, 64])),
    )
    return None if case is None else switched_on(case, on, rng)


def information(rng):
    """Any kind of picture, young and old, on time and late."""
    knows, replicas = str(rng.choice(get_args(Knows))), int(rng.integers(1, 4))
    if knows == "exact":
        return Information(knows, replicas)
    return Information(
        knows,
        replicas,
        period_steps=int(rng.integers(1, 5)),
        delay_steps=int(rng.integers(0, 5)),
        delay_s=float(rng.choice([0.0, 0.0, 1e-3, 0.3])),
    )


def crowd(rng):
    """Few ranks that fill up while what runs on them grows."""
    n = int(rng.integers(8, 25))
    arrival_s = np.cumsum(rng.random(n) * rng.integers(0, 2, n))
    session = rng.integers(-1, 9, n)
    trace = Trace.from_columns(
        "crowd", arrival_s, rng.integers(1, 60, n), rng.integers(3, 40, n), session=session
    )
    return trace, Pool(
        instances=int(rng.integers(1, 3)),
        ranks=int(rng.integers(1, 3)),
        kv_capacity_tokens=int(rng.integers(90, 250)),
    )


def switched_on(case, on, rng):
    """The case with features on; their numbers come from the generator."""
    n = len(case.work.context_tokens)
    life, ranked, extras, draws = {}, {}, {}, {}
    step_s = (2.0 + 2.0 * rng.random()) * case.settings.seconds_per_unit
    if "sessions" in on:
        life |= conversations(case.work.session, rng, step_s)
    if "leaving" in on:
        life["leaves_after"] = np.where(rng.random(n) < 0.3, rng.integers(1, 10, n), 1 << 40)
    if "patience" in on:
        life["patience_s"] = step_s * rng.choice([0.0, 1.0, 6.0])
    if "prefill" in on:
        life |= prefill(rng, step_s, n)
        life["prefill"] = int(rng.choice([NO_PREFILL, DELAYED, PREFILL_POOL, ON_RANKS]))
        if case.settings.saturated and life["prefill"] == PREFILL_POOL:
            life["prefill"] = DELAYED
    if "transfer" in on:
        life |= {"transfer_s": step_s * rng.choice([0.0, 0.3, 3.0]), "transfer_s_per_token": step_s * 0.01}
    if "blocks" in on:
        shift = int(rng.integers(0, 5))
        life |= {"block_tokens": 1 << shift, "block_shift": shift}
    if "preemption" in on:
        life |= {
            "preemption": int(rng.choice([NO_PREEMPTION, RECOMPUTE, RECOMPUTE, SWAP, SWAP])),
            "swap_s_per_token": step_s * rng.choice([0.0, 0.02, 0.05]),
            "freeze_steps": int(rng.integers(0, 4)),
        }
        life.setdefault("chunk_tokens", int(rng.integers(1, 60)))
    if "by_instance" in on:
        life["split"] = BY_INSTANCE
    if "report_period" in on:
        life["report_period_s"] = step_s * rng.choice([0.5, 1.0, 3.3])
    if "uneven" in on:
        ranks = len(case.ranked.slowness)
        capacity, most = case.layout.kv_capacity_tokens, case.layout.max_batch
        ranked["slowness"] = 1.0 + np.round(rng.random(ranks), 2)
        ranked["kv_capacity_tokens"] = np.full(ranks, capacity) - rng.integers(0, 30, ranks)
        ranked["kv_capacity_tokens"][0] = capacity
        ranked["max_batch"] = np.full(ranks, most) + rng.integers(0, 3, ranks)
        extras["uneven"] = 1
    if "few_rows" in on:
        ranked["rows"] = int(rng.integers(1, 8))
    if "graphs" in on:
        extras["graph_sizes"] = np.unique(rng.integers(1, 12, 3))
    if "ffn" in on:
        names = ("overhead", "ffn_per_mean", "ffn_per_max", "comm_fixed", "comm_per_mean", "comm_per_max")
        extras |= {name: float(np.round(rng.random(), 3)) for name in names}
        if rng.random() < 0.5:
            extras["skew"] = 1.0 + np.round(rng.random(CURSOR), 3)
    if "speculation" in on:
        draws["drafts"] = rng.integers(0, 5, rng.choice([1, n])).astype(np.int32)
        draws["accepted"] = rng.integers(0, 5, CURSOR).astype(np.int32)
        draws["phase"] = rng.integers(0, CURSOR, n).astype(np.int32)
        extras["query_reads"] = float(rng.choice([0.0, 0.37, 1.0]))
    if "changes" in on:
        case.changes = changes(case, rng, step_s)
        life |= {"retry_s": step_s * rng.choice([0.0, 1.5]), "most_tries": int(rng.integers(0, 4))}
    case.life = case.life._replace(**life)
    case.ranked = case.ranked._replace(**ranked)
    case.extras = case.extras._replace(**extras)
    case.draws = case.draws._replace(**draws)
    case.prefill_prices = prefill_cost(rng, bool(rng.random() < 0.5))
    return case


def conversations(session, rng, step_s):
    """Turns of a session follow each other."""
    n = len(session)
    next_turn, first, last_of = np.full(n, -1, np.int32), [], {}
    for q, s in enumerate(session.tolist()):
        if s >= 0 and s in last_of:
            next_turn[last_of[s]] = q
        else:
            first.append(q)
        if s >= 0:
            last_of[s] = q
    think_s = step_s * rng.choice([0.0, 0.5, 7.0], n)
    return {
        "sessions": 1,
        "first_rows": np.array(first, np.int32),
        "next_turn": next_turn,
        "think_s": think_s,
    }


def prefill(rng, step_s, n):
    return {
        "cached_tokens": rng.integers(0, 40, rng.choice([1, n])),
        "prefill_s": step_s * rng.choice([0.0, 0.5]),
        "prefill_s_per_token": step_s * 0.01,
        "prefill_instances": int(rng.integers(1, 3)),
        "prefill_ranks": int(rng.integers(1, 4)),
        "chunk_tokens": int(rng.integers(1, 60)),
    }


def prefill_cost(rng, one_barrier):
    terms = tuple(
        PrefillTerm(
            f"t{i}",
            per_token=float(np.round(rng.random(), 3)) * 0.1,
            per_100k_pairs=float(np.round(rng.random(), 3)) * 50,
            saturations=(Saturation(int(rng.integers(1, 140)), float(np.round(rng.random(), 3)) * 90),),
        )
        for i in range(int(rng.integers(1, 3)))
    )
    barrier = "step" if one_barrier else "layer"
    return PrefillCost(terms, constant=float(np.round(3 * rng.random(), 2)), barrier=barrier).prices()


def changes(case, rng, step_s):
    """Ranks and instances that go and mostly come back, noticed at once, later or never."""
    arrival_s = case.work.arrival_s
    until_s = step_s * 30 if case.settings.saturated else float(arrival_s[-1]) + 10 * step_s
    rows = []
    for _ in range(int(rng.integers(1, 5))):
        instance = int(rng.integers(case.layout.instances))
        rank = int(rng.integers(-1, case.layout.ranks_per_instance))
        kind, back = (DIE, RETURN) if rng.random() < 0.7 else (DRAIN, RESUME)
        goes_s = until_s * float(rng.choice([0.0, rng.random()]))
        stall_s = step_s * float(rng.choice([0.0, 0.7, 4.0]))
        returns_s = goes_s + step_s * 8 * float(rng.random())
        rows.append((goes_s, kind, instance, rank, stall_s))
        if rng.random() < 0.8:
            rows.append(
                (goes_s + step_s * float(rng.choice([0.0, 2.0])), kind + NOTICED, instance, rank, 0.0)
            )
            if rng.random() < 0.9:
                rows.append((returns_s + step_s * 3, back + NOTICED, instance, rank, 0.0))
        if rng.random() < 0.8:
            rows.append((returns_s, back, instance, rank, float(rng.choice([0.0, step_s]))))
    return changes_of(*sorted(rows, key=lambda row: row[0]))
