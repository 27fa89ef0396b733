"""Storms: aborts, deaths, drains, full ranks, lost patience and speculation at once. What no storm may break.

The kernel runs them; every test also says what must have happened at all for it to prove something.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from fleet_cases import quick
from fleet_proofs import run_case
from fleet_strategies import fleets
from hypothesis import Phase, given, settings
from test_fleet_twins import run_kernel

from equipoise.fleet.kernel.layout import (
    ABORTED,
    COUNTS,
    DIE,
    DRAIN,
    DROPPED,
    EXTRAPOLATED,
    FAILED,
    FINISHED,
    NO_PREEMPTION,
    NOT_ENDED,
    NOTICED,
    ON_RANKS,
    REJECTED,
    RESUME,
    RETURN,
)
from equipoise.policies.api import placement
from equipoise.policies.least_tokens import SPEC as LEAST_TOKENS
from equipoise.replay.layout import ENDED, SERIES

pytestmark = pytest.mark.proof

STORM = ("leaving", "changes", "preemption", "speculation")
STEPS = 1 << 13


def weather(check, *, examples=60, always=STORM, never=("few_rows",), keep=True, timed=False):
    """Run `check` on stormy cases and the kernel's outcomes; returns how often what happened in them."""
    seen = Counter()

    @settings(quick(examples), phases=[Phase.generate])  # a storm is a seed: there is nothing to shrink
    @given(fleets(always=always, never=never, drain=True))
    def run(case):
        if case is None or (timed and case.settings.saturated):
            return
        case.settings = case.settings._replace(keep_requests=int(keep), snapshot_first=0, snapshot_every=1)
        case.series_rows, case.snapshots = STEPS, STEPS
        out, more = run_case(case, run_kernel)
        if out.ended[ENDED.ERROR]:
            seen["errors"] += 1
            return
        assert out.ended[ENDED.SERIES_STEPS] <= 1
        seen["runs"] += 1
        seen.update({name: int(more.counts[i] > 0) for name, i in COUNTS._asdict().items()})
        check(case, out, more, seen)

    run()
    assert seen["runs"] > 0.6 * examples * (0.6 if timed else 1)
    assert seen["errors"] < 0.1 * examples
    return seen


def leaves(case):
    """Tokens after which each client leaves, or has all."""
    return np.minimum(case.work.output_tokens, case.life.leaves_after)


def rows_of(out):
    return out.series[: out.ended[ENDED.SERIES_ROWS]]


def test_every_request_and_token_is_accounted_for():
    def check(case, out, more, seen):
        n, ended, counts = len(case.work.context_tokens), out.ended, more.counts
        status = np.bincount(more.status, minlength=6)
        assert status[NOT_ENDED] == 0
        assert status.sum() == n == ended[ENDED.ARRIVED] + status[DROPPED]
        for which, count in (
            (FINISHED, ended[ENDED.FINISHED]), (REJECTED, ended[ENDED.REJECTED]), (REJECTED, counts[COUNTS.REJECTED]),
            (ABORTED, counts[COUNTS.ABORTED]), (FAILED, counts[COUNTS.FAILED]), (DROPPED, counts[COUNTS.DROPPED]),
        ):  # fmt: skip
            assert status[which] == count
        assert ended[ENDED.RESIDUE] == ended[ENDED.RUNNING] == ended[ENDED.QUEUED] == 0
        # tokens: what steps gave is what requests got
        assert more.tokens.sum() == ended[ENDED.TOKENS]
        finished, left = more.status == FINISHED, more.status == ABORTED
        assert case.work.output_tokens[finished].sum() == ended[ENDED.FINISHED_TOKENS]
        stays = leaves(case)
        assert (more.tokens[finished] == case.work.output_tokens[finished]).all()
        assert (more.tokens <= stays).all()
        in_service = left & (more.tokens == stays)
        impatient = left & ~in_service
        assert np.isfinite(case.life.patience_s) or not impatient.any()
        # dispatches: each was lost or ended on its rank
        on_ranks = finished.sum() + in_service.sum() + counts[COUNTS.OUTGROWN]
        assert counts[COUNTS.DISPATCHED] == counts[COUNTS.LOST] + on_ranks
        # losses: every one is a try, and one too many is a failure
        most = case.life.most_tries
        assert more.tries.sum() == counts[COUNTS.LOST]
        assert (more.tries <= most + 1).all()
        assert (more.status[more.tries == most + 1] == FAILED).all()
        assert more.preemptions.sum() == counts[COUNTS.PREEMPTIONS]
        never = np.isnan(out.start_s)
        assert (more.tokens[never] == 0).all()
        assert np.isnan(more.first_s[never]).all()
        seen["impatient"] += impatient.any()
        seen["left in service"] += in_service.any()
        seen["lost for good"] += (more.tries == most + 1).any()

    seen = weather(check, examples=70, always=(*STORM, "patience"))
    seen += weather(check, examples=50, always=("leaving", "sessions"), never=("few_rows", "preemption"))
    ways = ("LOST", "PREEMPTIONS", "DROPPED", "REJECTED")
    for what in (*ways, "impatient", "left in service", "lost for good"):
        assert seen[what] >= 2, what


def test_a_request_goes_forward_in_time():
    def check(case, out, more, seen):
        n = len(case.work.context_tokens)
        times = [more.came_s, more.queued_s, more.placed_s] if not case.settings.saturated else []
        # a start may be of an earlier try than the last queueing
        again = more.tries > 0
        for before, after in (
            *pairwise(times),
            (more.came_s, out.start_s),
            (out.start_s, more.first_s),
            (more.first_s, more.ended_s),
            (more.placed_s, more.ended_s),
        ):
            both = ~np.isnan(before) & ~np.isnan(after)
            # lost while it waited for prefill the second time, a request keeps its former place in time
            if before is more.queued_s and after is more.placed_s:
                both &= ~(again & (more.status != FINISHED))
            assert (before[both] <= after[both]).all()
        once = ~again & ~np.isnan(out.start_s)
        assert (more.placed_s[once] <= out.start_s[once]).all()
        took = ~np.isnan(more.first_s)
        assert (out.start_s[took] < more.first_s[took]).all()  # no step is free
        assert (took == (more.tokens > 0)).all()
        rows = rows_of(out)
        assert (np.diff(rows[:, SERIES.START_S]) >= 0).all()
        last = np.full(case.layout.instances, -np.inf)
        for start_s, cost, p in zip(
            rows[:, SERIES.START_S], rows[:, SERIES.COST], rows[:, SERIES.INSTANCE], strict=True
        ):
            if not len(case.changes.time_s):  # a death voids a step, a stall makes it longer
                assert start_s >= last[int(p)] * (1 - 1e-12)
            last[int(p)] = start_s + cost * case.settings.seconds_per_unit
            assert cost > 0
        if not case.settings.saturated and not case.life.sessions:
            assert np.array_equal(more.came_s, case.work.arrival_s)
        seen["again"] += again.any()
        assert n == len(more.came_s)

    seen = weather(check)
    assert seen["again"] >= 10


def periods(case, begins, ends):
    """For every rank, when it was in a state that changes of one kind begin and changes of another end."""
    width, changes = case.layout.ranks_per_instance, case.changes
    found = [[] for _ in range(case.layout.instances * width)]
    since = [None] * len(found)
    for time_s, kind, instance, rank in zip(
        changes.time_s.tolist(), changes.kind.tolist(), changes.instance.tolist(), changes.rank.tolist(), strict=True
    ):  # fmt: skip
        for r in range(width) if rank < 0 else [rank]:
            r += instance * width
            if kind in begins and since[r] is None:
                since[r] = time_s
            elif kind in ends and since[r] is not None:
                found[r].append((since[r], time_s))
                since[r] = None
    for r, start_s in enumerate(since):
        if start_s is not None:
            found[r].append((start_s, np.inf))
    return found


def test_nothing_runs_on_a_dead_rank_and_nothing_is_sent_to_a_closed_one():
    def check(case, out, more, seen):
        width = case.layout.ranks_per_instance
        dead, closed = (
            periods(case, begins, ends)
            for begins, ends in (
                ((DIE,), (RETURN,)),
                ((DIE + NOTICED, DRAIN + NOTICED), (RETURN + NOTICED, RESUME + NOTICED)),
            )
        )
        count = out.ended[ENDED.SNAPSHOTS]
        assert count == out.ended[ENDED.STEPS]
        starts, instance = out.snapshot_s[:count, 0], out.snapshot_step[:count, 1]
        for r, gone in enumerate(dead):
            batch = out.snapshot_batch[:count, r % width]
            here = instance == r // width
            for from_s, to_s in gone:
                inside = here & (starts > from_s) & (starts < to_s)
                assert not batch[inside].any()
                seen["steps beside the dead"] += inside.any()
        served = (more.status == FINISHED) | ((more.status == ABORTED) & (more.tokens == leaves(case)))
        for q in np.flatnonzero(served):
            for from_s, to_s in dead[out.rank[q]]:
                # its last stay on a rank holds no death of it, and did not begin in one
                assert not more.placed_s[q] < from_s < more.ended_s[q]
                assert not from_s < more.placed_s[q] < to_s
        for q in np.flatnonzero(out.rank >= 0):
            for from_s, to_s in closed[out.rank[q]]:
                assert not from_s < more.placed_s[q] < to_s
                seen["closed"] += 1

    seen = weather(check, examples=90)
    for what in ("LOST", "steps beside the dead", "closed"):
        assert seen[what] >= 10, what


def test_ranks_stay_within_capacity_and_batch():
    """With preemption on no step runs above a rank's memory; without, the steps that do are counted."""

    def check(case, out, more, seen):
        rows, width, count = rows_of(out), case.layout.ranks_per_instance, out.ended[ENDED.SNAPSHOTS]
        context, batch = out.snapshot_context[:count], out.snapshot_batch[:count]
        first = out.snapshot_step[:count, 1][:, None] * width + np.arange(width)
        assert (batch <= case.ranked.max_batch[first]).all()
        # decoding rows alone are a lower bound of what is held, block by block
        over = (context > case.ranked.kv_capacity_tokens[first]).sum(axis=1)
        assert (over <= rows[:, SERIES.OVER_CAPACITY]).all()
        assert np.array_equal(rows[:, SERIES.MAX_BATCH], batch.max(axis=1))
        assert np.array_equal(rows[:, SERIES.MEAN_CONTEXT], context.sum(axis=1) / width)
        if case.life.preemption != NO_PREEMPTION:
            assert not rows[:, SERIES.OVER_CAPACITY].any()
            # nor do they end above it: every row that decodes grows by a token at least
            assert (context + batch <= case.ranked.kv_capacity_tokens[first]).all()
            seen["kept within"] += 1
            seen["full"] += bool((context > 0.8 * case.ranked.kv_capacity_tokens[first]).any())
        else:
            seen["over"] += bool(rows[:, SERIES.OVER_CAPACITY].any())

    seen = weather(check, examples=90, always=(*STORM, "blocks"))
    for what in ("kept within", "full", "PREEMPTIONS", "over"):
        assert seen[what] >= 2, what


def waiting_at(times_s, more, more_than_once):
    """The fewest and the most that wait at routers at a moment: those who join or leave just then may count or not."""
    left = np.where(np.isnan(more.placed_s), more.ended_s, more.placed_s)
    known = ~np.isnan(more.queued_s) & ~more_than_once
    joined, left = np.sort(more.queued_s[known]), np.sort(left[known])
    before, after = (np.searchsorted(joined, times_s, side=side) for side in ("left", "right"))
    gone_before, gone_after = (np.searchsorted(left, times_s, side=side) for side in ("left", "right"))
    return np.maximum(before - gone_after, 0), after - gone_before


def test_the_queue_at_every_step_follows_from_the_requests():
    """Little's law at all times: the curve of those who wait, counted from when each joined and left.

    Requests that were lost waited more than once and keep the last time only: with them the curve is a lower bound.
    """

    def check(case, out, more, seen):
        rows = rows_of(out)
        # A request that waits again has left its former `placed_s` behind.
        again = more.tries > 0
        low, high = waiting_at(rows[:, SERIES.START_S], more, again)
        queued = rows[:, SERIES.QUEUED]
        assert (queued >= low).all()
        if not again.any():
            assert (queued <= high).all()
            alone = low == high
            seen["exact"] += alone.sum()
            seen["some wait"] += (queued[alone] > 0).sum()

    seen = weather(check, always=("leaving",), never=("few_rows", "changes"), timed=True, examples=90)
    assert seen["exact"] > 1500
    assert seen["some wait"] > 30
    seen = weather(check, timed=True, examples=40)
    assert seen["LOST"] >= 8


def test_the_batch_at_every_step_follows_from_the_requests():
    """Who runs on which rank at which step, from start, end and rank of every request."""

    def check(case, out, more, seen):
        if more.counts[COUNTS.LOST] or more.counts[COUNTS.PREEMPTIONS] or case.life.prefill == ON_RANKS:
            return
        count, width = out.ended[ENDED.SNAPSHOTS], case.layout.ranks_per_instance
        served = ~np.isnan(out.start_s)
        ranks, start_s, end_s = out.rank[served], out.start_s[served], more.ended_s[served]
        for k in range(count):
            now, p = out.snapshot_s[k, 0], out.snapshot_step[k, 1]
            running = ranks[(start_s <= now) & (now < end_s)]
            here = running[running // width == p] % width
            assert np.array_equal(out.snapshot_batch[k], np.bincount(here, minlength=width))
            seen["steps"] += 1

    seen = weather(check, examples=100, always=("leaving", "speculation"), never=("few_rows", "changes"))
    assert seen["steps"] > 2000


least_tokens = LEAST_TOKENS.place


@placement
def watching(ranks, requests, prices, params, memory, out):
    """Least tokens, and the smallest numbers it was ever shown."""
    for r in range(len(ranks.batch)):
        memory.ints[0] = min(memory.ints[0], ranks.batch[r])
        memory.ints[1] = min(memory.ints[1], ranks.context_tokens[r])
        memory.ints[2] = min(memory.ints[2], ranks.unseen_requests[r])
        memory.ints[3] = max(memory.ints[3], ranks.free_slots[r] * (ranks.free_tokens[r] < 0))
        for s in range(len(prices.saturation_tokens)):
            memory.ints[4] = min(memory.ints[4], ranks.saturated_tokens[r, s])
        memory.ints[5] = max(memory.ints[5], ranks.batch[r])
        memory.ints[6] += 1
    least_tokens(ranks, requests, prices, params, memory, out)


def test_no_picture_is_negative():
    """Whatever is lost, late or shared: no router sees fewer than no requests or tokens on a rank."""
    pictures = Counter()

    @settings(quick(90), phases=[Phase.generate])
    @given(fleets(always=("changes", "information", "leaving"), never=("few_rows",), drain=True))
    def run(case):
        if case is None:
            return
        case.place, kept = watching, []
        case.settings = case.settings._replace(tells_finished=0)
        case.memory_ints = np.zeros((len(case.memory_ints), 8), np.int64)
        case.memory_floats = np.zeros((len(case.memory_ints), 0))

        def keeping(*arguments):
            kept.append(arguments[13])
            run_kernel(*arguments)

        _, more = run_case(case, keeping)
        lowest, highest = kept[0].min(axis=0), kept[0].max(axis=0)
        seen_as = lowest[[0, 1, 2, 4]]
        if case.settings.knows == EXTRAPOLATED:  # an estimate may be above what a report counts
            seen_as = lowest[[0, 2]]
        assert (seen_as >= 0).all()
        pictures["views"] += highest[6]
        pictures["largest"] = max(pictures["largest"], highest[5])
        pictures[f"lost, knows {case.settings.knows}"] += more.counts[COUNTS.LOST] > 0

    run()
    assert pictures["views"] > 1000
    assert pictures["largest"] > 3
    assert all(pictures[f"lost, knows {k}"] >= 3 for k in range(5))
