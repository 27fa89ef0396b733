"""From a `Deployment` and a trace to the arrays of a run; all randomness is drawn here, the same for every policy."""

from __future__ import annotations

import math

import numpy as np

from equipoise.cost.prefill import PrefillCost, PrefillPrices, PrefillTerm
from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.fleet.config import MOST_ROWS, Deployment
from equipoise.fleet.kernel.layout import (
    ACKNOWLEDGED,
    BY_INSTANCE,
    BY_REQUEST,
    DELAYED,
    DIE,
    DRAIN,
    ERASED,
    EXACT,
    EXTRAPOLATED,
    LEDGER,
    NO_PREEMPTION,
    NO_PREFILL,
    NOTICED,
    ON_RANKS,
    PREFILL_POOL,
    RECOMPUTE,
    RESUME,
    RETURN,
    SWAP,
    Changes,
    Draws,
    Extras,
    Life,
    Ranked,
)
from equipoise.fleet.kernel.state import RING
from equipoise.replay.layout import PoolLayout
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints, SmallInts

__all__ = ["changes_of", "draws_of", "extras_of", "life_of", "prefill_prices_of", "ranked_of"]

KNOWS = {
    "exact": EXACT,
    "ledger": LEDGER,
    "acknowledged": ACKNOWLEDGED,
    "erased": ERASED,
    "extrapolated": EXTRAPOLATED,
}
PREFILL = {"none": NO_PREFILL, "delay": DELAYED, "pool": PREFILL_POOL, "ranks": ON_RANKS}
PREEMPTION = {"none": NO_PREEMPTION, "recompute": RECOMPUTE, "swap": SWAP}
CHANGE = {"drain": DRAIN, "resume": RESUME, "die": DIE, "return": RETURN}
ABORTS, SKEW, SPEED, ACCEPTED, PHASE = range(1, 6)
"""Streams of a seed: one a purpose, so that switching one thing on leaves the draws of the others."""


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0xF1EE7, purpose)))


def following_turns(session: Ints) -> SmallInts:
    """Row of the next request of the same conversation, -1: none."""
    order = np.argsort(session, kind="stable")
    grouped = session[order]
    found = np.full(len(session), -1, dtype=np.int32)
    follows = (grouped[1:] == grouped[:-1]) & (grouped[1:] >= 0)
    found[order[:-1][follows]] = order[1:][follows]
    return found


def cached_prefix(trace: Trace) -> Ints:
    """Context tokens of each request that its predecessor's context and answer hold; 0 for a first turn.

    A trace begins in the middle of conversations: a later turn whose predecessor lies before it was served, too. What
    it adds is not known; it is taken to be as much as the later turns of the trace add on average.
    """
    following = following_turns(np.asarray(trace.session))
    cached = np.zeros(len(trace), dtype=np.int64)
    before = np.flatnonzero(following >= 0)
    after = following[before]
    held = trace.context_tokens[before] + trace.output_tokens[before]
    # One token at least is computed: the one whose logits start the answer.
    cached[after] = np.minimum(held, trace.context_tokens[after] - 1)
    orphans = (np.asarray(trace.session) >= 0) & (np.asarray(trace.turn) > 0)
    orphans[after] = False
    if len(after) and orphans.any():
        added = max(1, round(float((trace.context_tokens[after] - cached[after]).mean())))
        cached[orphans] = np.maximum(trace.context_tokens[orphans] - added, 0)
    return cached


def life_of(deployment: Deployment, trace: Trace, *, sessions: bool, saturated: bool, seed: int) -> Life:
    """The way of the requests.

    Raises
    ------
    InputError
        ``sessions`` of a trace without conversations; prefill before the pool in ``saturated`` mode.
    """
    n = len(trace)
    prefill, memory, information = deployment.prefill, deployment.memory, deployment.information
    following = np.zeros(0, np.int32)
    first_rows = np.arange(0 if saturated else n, dtype=np.int32)
    if sessions:
        if not (np.asarray(trace.session) >= 0).any():
            raise InputError(
                "no request belongs to a conversation",
                where=f"trace {trace.name!r}",
                fix="use mode 'timed', or a trace with a session column",
            )
        following = following_turns(np.asarray(trace.session))
        starts = np.ones(n, dtype=bool)
        starts[following[following >= 0]] = False
        first_rows = np.flatnonzero(starts).astype(np.int32)
    if saturated and prefill.where in ("delay", "pool"):
        raise InputError(
            f"prefill.where = {prefill.where!r} in saturated mode",
            fix="a pool kept full has no arrivals: use mode 'timed' or 'sessions', or prefill.where 'none' or 'ranks'",
        )
    leaves_after = np.full(1, np.iinfo(np.int64).max >> 1)
    share = deployment.clients.abort_share
    if share > 0:
        draws = _stream(seed, ABORTS).random((2, n))
        part = 1 + np.floor(draws[1] * trace.output_tokens).astype(np.int64)
        leaves_after = np.where(draws[0] < share, part, leaves_after[0])
    cached = np.zeros(1, np.int64)
    if prefill.where != "none" and prefill.prefix_cache:
        cached = cached_prefix(trace)
    patience = deployment.clients.patience_s
    return Life(
        sessions=int(sessions),
        first_rows=first_rows,
        next_turn=following,
        think_s=np.ascontiguousarray(trace.think_s) if sessions else np.zeros(0),
        cached_tokens=cached,
        leaves_after=leaves_after,
        patience_s=math.inf if patience is None else float(patience),
        prefill=PREFILL[prefill.where],
        prefill_s=float(prefill.fixed_s),
        prefill_s_per_token=float(prefill.s_per_token),
        prefill_instances=prefill.instances,
        prefill_ranks=prefill.ranks,
        chunk_tokens=prefill.chunk_tokens,
        transfer_s=float(deployment.transfer.fixed_s),
        transfer_s_per_token=float(deployment.transfer.s_per_token),
        block_tokens=memory.block_tokens,
        block_shift=memory.block_tokens.bit_length() - 1,
        preemption=PREEMPTION[memory.preemption],
        swap_s_per_token=float(memory.swap_s_per_token),
        freeze_steps=memory.freeze_steps,
        retry_s=float(deployment.losses.retry_s),
        most_tries=deployment.losses.most_tries,
        split=BY_INSTANCE if information.split == "instance" else BY_REQUEST,
        report_period_s=float(information.period_s),
    )


def ranked_of(deployment: Deployment, layout: PoolLayout, seed: int) -> Ranked:
    """Ranks one by one."""
    width = layout.ranks_per_instance
    ranks = layout.instances * width
    capacity = np.full(ranks, layout.kv_capacity_tokens)
    max_batch = np.full(ranks, layout.max_batch)
    slowness = np.ones(ranks)
    for part in deployment.hardware:
        chosen = slice(part.first * width, (part.last + 1) * width)
        if part.kv_capacity_tokens is not None:
            capacity[chosen] = part.kv_capacity_tokens
        if part.max_batch is not None:
            max_batch[chosen] = part.max_batch
        slowness[chosen] = 1.0 / part.speed
    if deployment.step.rank_speed_sigma > 0:
        sigma = deployment.step.rank_speed_sigma
        slowness *= np.exp(sigma * _stream(seed, SPEED).standard_normal(ranks) - sigma**2 / 2)
    limit = int(max_batch.max())
    return Ranked(capacity, max_batch, slowness, rows=min(limit, MOST_ROWS))


def extras_of(deployment: Deployment, cost: StepCost, ranked: Ranked, seed: int) -> Extras:
    """Prices beyond attention, in the cost's unit."""
    step, unit = deployment.step, cost.us_per_unit
    skew = np.zeros(0)
    if step.ep_skew > 1 or step.ep_skew_sigma > 0:
        sigma = step.ep_skew_sigma
        drawn = np.exp(sigma * _stream(seed, SKEW).standard_normal(RING) - sigma**2 / 2)
        skew = np.maximum(1.0, step.ep_skew * drawn)  # nobody is faster than an even spread
    return Extras(
        overhead=step.overhead_us / unit,
        graph_sizes=np.array(step.graph_sizes, dtype=np.int64),
        ffn_per_mean=step.ffn_us_per_mean_token / unit,
        ffn_per_max=step.ffn_us_per_max_token / unit,
        comm_fixed=step.comm_us / unit,
        comm_per_mean=step.comm_us_per_mean_token / unit,
        comm_per_max=step.comm_us_per_max_token / unit,
        skew=skew,
        query_reads=float(deployment.speculation.query_reads),
        uneven=int((ranked.slowness != 1.0).any()),
    )


def draws_of(deployment: Deployment, requests: int, seed: int) -> Draws:
    """How many drafts are accepted: a ring of draws, and where each request begins to read it."""
    speculation = deployment.speculation
    none = np.zeros(0, np.int32)
    if speculation.drafts == 0:
        return Draws(none, none, none)
    chance = _stream(seed, ACCEPTED).random(RING)
    survival = np.array(speculation.survival)
    accepted = (chance[:, None] < survival[None, :]).sum(axis=1)
    return Draws(
        drafts=np.array([speculation.drafts], dtype=np.int32),
        accepted=accepted.astype(np.int32),
        phase=_stream(seed, PHASE).integers(0, RING, requests, dtype=np.int32),
    )


def changes_of(deployment: Deployment) -> Changes:
    """What happens, and when routers notice, in order of time (then as given)."""
    found: list[tuple[float, int, int, int, float]] = []
    for change in deployment.changes:
        kind, rank = CHANGE[change.what], -1 if change.rank is None else change.rank
        found.append((change.at_s, kind, change.instance, rank, change.stall_s))
        found.append((change.at_s + change.notice_s, kind + NOTICED, change.instance, rank, 0.0))
    found.sort(key=lambda row: row[0])
    column = list(zip(*found, strict=True)) or [()] * 5

    def whole(values: tuple[object, ...]) -> Ints:
        return np.array(values, dtype=np.int64)

    def real(values: tuple[object, ...]) -> Floats:
        return np.array(values, dtype=np.float64)

    return Changes(real(column[0]), whole(column[1]), whole(column[2]), whole(column[3]), real(column[4]))


def prefill_prices_of(deployment: Deployment, cost: StepCost) -> PrefillPrices:
    """What prompt tokens cost: the cost's own prefill model, or so many seconds a token.

    Raises
    ------
    InputError
        Something computes prompts in steps, and neither is given.
    """
    prefill = cost.prefill
    if prefill is None and deployment.prefill.s_per_token > 0:
        per_token = deployment.prefill.s_per_token * 1e6 / cost.us_per_unit
        prefill = PrefillCost(
            (PrefillTerm("prompt", per_token=per_token),), unit=cost.unit, us_per_unit=cost.us_per_unit
        )
    needed = deployment.prefill.where in ("pool", "ranks") or deployment.memory.preemption == "recompute"
    if prefill is None:
        if needed:
            raise InputError(
                f"cost {cost.name!r} has no prefill model, and prompts are to be computed",
                fix="use a cost with [prefill], or give prefill.s_per_token",
            )
        empty = np.zeros(0)
        return PrefillPrices(0.0, 0, empty, empty, np.zeros((0, 0)), np.zeros(0, np.int64))
    return prefill.prices()
