"""What holds of any fleet, whatever is switched on: laws of the slow twin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from fleet_cases import quick
from fleet_strategies import fleets
from hypothesis import event, given

from equipoise.fleet.kernel import layout as fleet
from equipoise.fleet.kernel.layout import COUNTS, PARTS
from equipoise.replay.layout import ENDED, SERIES, STUCK, TOTALS


@quick(90)
@given(fleets())
def test_requests_and_time_are_accounted_for(case):
    if case is None:
        return
    out, more = case.run()
    requests_are_accounted_for(case, out, more)
    time_is_accounted_for(out, more)


def requests_are_accounted_for(case, out, more):
    """Every request has one end, and the counts are those of the ends."""
    ended, counts, n = out.ended, more.counts, len(case.work.context_tokens)
    event(f"error {ended[ENDED.ERROR]}")
    by_status = np.bincount(more.status, minlength=6)
    assert by_status.sum() == n
    assert by_status[fleet.FINISHED] == ended[ENDED.FINISHED]
    assert by_status[fleet.REJECTED] == counts[COUNTS.REJECTED] == ended[ENDED.REJECTED]
    for status, count in (("ABORTED",) * 2, ("FAILED",) * 2, ("DROPPED",) * 2):
        assert by_status[getattr(fleet, status)] == counts[getattr(COUNTS, count)]
    finished = more.status == fleet.FINISHED
    assert case.work.output_tokens[finished].sum() == ended[ENDED.FINISHED_TOKENS]
    if ended[ENDED.ERROR]:
        return
    if case.settings.drain:
        assert by_status[fleet.NOT_ENDED] == 0
        assert ended[ENDED.RESIDUE] == ended[ENDED.RUNNING] == ended[ENDED.QUEUED] == 0
        assert ended[ENDED.ARRIVED] == n - by_status[fleet.DROPPED]
        if case.settings.keep_requests:
            assert more.tokens.sum() == ended[ENDED.TOKENS]


def time_is_accounted_for(out, more):
    """The clock never goes back, and the parts of the time add up."""
    rows = out.series[: out.ended[ENDED.SERIES_ROWS]]
    assert (np.diff(rows[:, SERIES.START_S]) >= 0).all()
    parts, totals = more.parts, out.totals
    np.testing.assert_allclose(parts[: PARTS.SWAP + 1].sum(), totals[TOTALS.COST], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(rows[:, SERIES.STEPS].sum(), out.ended[ENDED.STEPS])
    slack = 1e-9 * (1 + totals[TOTALS.COST])
    assert totals[TOTALS.IDEAL] <= totals[TOTALS.COST] + slack
    assert parts[PARTS.ATTENTION_IDEAL] <= parts[PARTS.ATTENTION] + slack
    assert (parts[[PARTS.PADDING, PARTS.MIXED, PARTS.SWAP]] >= -slack).all()
    assert more.counts[COUNTS.COUNTED_TOKENS] == totals[TOTALS.TOKENS]


@quick(90)
@given(fleets(drain=True))
def test_a_request_goes_forward_in_time(case):
    if case is None or not case.settings.keep_requests:
        return
    out, more = case.run()
    if out.ended[ENDED.ERROR]:
        return
    # In saturated mode a request queues before its prompt is there: the load is what is kept, not the clock.
    joined = (more.came_s, more.queued_s) if not case.settings.saturated else ()
    for way in (
        (*joined,),
        (more.came_s, out.start_s, more.first_s, more.ended_s),
        (more.placed_s, more.ended_s),
    ):
        for before, after in pairwise(way):
            both = ~np.isnan(before) & ~np.isnan(after)
            assert (before[both] <= after[both]).all()
    assert not np.isnan(more.ended_s).any()
    finished = more.status == fleet.FINISHED
    assert (more.tokens[finished] == case.work.output_tokens[finished]).all()
    assert np.array_equal(out.finish_s[finished], more.ended_s[finished])
    assert np.isnan(out.finish_s[~finished]).all()
    assert (more.tokens <= case.work.output_tokens).all()


@quick(50)
@given(fleets(always=("preemption", "blocks"), never=("few_rows",), drain=True))
def test_preemption_keeps_ranks_within_capacity(case):
    if case is None or case.life.preemption == fleet.NO_PREEMPTION:
        return
    out, more = case.run()
    assert out.totals[TOTALS.OVER_CAPACITY] == 0
    event(f"preempted {bool(more.counts[COUNTS.PREEMPTIONS])}")
    if more.counts[COUNTS.PREEMPTIONS] and not more.counts[COUNTS.LOST]:
        recomputed, swapped = more.counts[[COUNTS.RECOMPUTED_TOKENS, COUNTS.SWAPPED_TOKENS]]
        assert (recomputed > 0) == (case.life.preemption == fleet.RECOMPUTE)
        assert (swapped > 0) == (case.life.preemption == fleet.SWAP)


@quick(60)
@given(fleets(never=("changes", "few_rows")))
def test_nothing_is_lost_where_nothing_changes(case):
    if case is None:
        return
    out, more = case.run()
    assert more.counts[COUNTS.LOST] == more.counts[COUNTS.LOST_TOKENS] == 0
    assert out.ended[ENDED.ERROR] in (0, STUCK)


@quick(40)
@given(fleets())
def test_a_run_repeats_itself(case):
    if case is None:
        return
    first, again = case.run(), case.run()
    for a, b in zip(first, again, strict=True):
        assert [x.tobytes() for x in a] == [x.tobytes() for x in b]
