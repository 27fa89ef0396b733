"""What is kept of the steps: totals after the warm-up, the series, snapshots."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.fleet.kernel.layout import COUNTS
from equipoise.fleet.kernel.state import BATCH, CONTEXT, QUERIES, TALLY
from equipoise.fleet.kernel.world import more_in, out_in, pool_in, ranked_in, settings_in, state_in
from equipoise.replay.keeping import next_row, take_snapshot
from equipoise.replay.layout import ENDED, SERIES, TOTALS

__all__ = ["account_step"]


@jitable
def account_step(world, instance, cost, ideal, own_work, tokens, now, end, draining):  # type: ignore[no-untyped-def]
    """Account for a step that an instance has started, its loads in ``step`` and ``step_k``.

    Parameters
    ----------
    world, instance : int
    cost, ideal, own_work : float
        See `equipoise.fleet.kernel.price.price_step`.
    tokens : int
        What it will yield.
    now, end : float
        Seconds.
    draining : bool
        The load is falling for good: such steps are not counted.
    """
    settings, ranked, state, out, more = (
        settings_in(world),
        ranked_in(world),
        state_in(world),
        out_in(world),
        more_in(world),
    )
    width = pool_in(world).ranks_per_instance
    totals, ended, series, tally = out.totals, out.ended, out.series, state.tally
    total_b, total_c, max_b, max_c, over, queries = 0, 0, 0, 0, 0, 0
    for r in range(width):
        total_b += state.step[BATCH, r]
        total_c += state.step[CONTEXT, r]
        max_b = max(max_b, state.step[BATCH, r])
        max_c = max(max_c, state.step[CONTEXT, r])
        queries += state.step[QUERIES, r]
        rank = instance * width + r
        over += state.ranks[rank].resident > ranked.kv_capacity_tokens[rank]
    more.counts[COUNTS.QUERY_TOKENS] += queries
    ended[ENDED.PEAK_RUNNING] = max(ended[ENDED.PEAK_RUNNING], tally[TALLY.IN_POOL])
    turned_over = ended[ENDED.FINISHED] >= settings.warmup_turnovers * ended[ENDED.PEAK_RUNNING]
    if tally[TALLY.COUNTING] and not turned_over:  # the pool outgrew what had turned over: it begins anew
        totals[:] = 0.0
        series[:, SERIES.COUNTED] = 0.0
        more.parts[:] = 0.0
        more.counts[COUNTS.COUNTED_TOKENS] = 0
    tally[TALLY.COUNTING] = turned_over
    counted = turned_over and not draining
    started = tally[TALLY.STARTED]
    if counted:
        if totals[TOTALS.STEPS] == 0:
            totals[TOTALS.FIRST_S], totals[TOTALS.FIRST_STEP] = now, started
        totals[TOTALS.LAST_S] = max(totals[TOTALS.LAST_S], end)
        totals[TOTALS.LAST_STEP] = started
        totals[TOTALS.STEPS] += 1
        totals[TOTALS.COST] += cost
        totals[TOTALS.IDEAL] += ideal
        totals[TOTALS.WORK] += own_work
        totals[TOTALS.MAX_BATCH] += max_b
        totals[TOTALS.MEAN_BATCH] += total_b / width
        totals[TOTALS.MAX_CONTEXT] += max_c
        totals[TOTALS.MEAN_CONTEXT] += total_c / width
        totals[TOTALS.TOKENS] += tokens
        totals[TOTALS.OVER_CAPACITY] += over
        for j in range(len(state.part)):
            more.parts[j] += state.part[j]
        more.counts[COUNTS.COUNTED_TOKENS] += tokens
    row = next_row(series, ended, now, instance)
    series[row, SERIES.STEPS] += 1
    series[row, SERIES.COUNTED] += counted
    series[row, SERIES.COST] += cost
    series[row, SERIES.IDEAL] += ideal
    series[row, SERIES.WORK] += own_work
    series[row, SERIES.MAX_BATCH] += max_b
    series[row, SERIES.MEAN_BATCH] += total_b / width
    series[row, SERIES.MAX_CONTEXT] += max_c
    series[row, SERIES.MEAN_CONTEXT] += total_c / width
    series[row, SERIES.QUEUED] += tally[TALLY.WAITING]
    series[row, SERIES.OVER_CAPACITY] += over
    since = started - settings.snapshot_first
    if (
        ended[ENDED.SNAPSHOTS] < len(out.snapshot_step)
        and since >= 0
        and since % settings.snapshot_every == 0
    ):
        take_snapshot(
            out, started, instance, now, end, state.step[BATCH], state.step[CONTEXT], state.step_k[0]
        )
    tally[TALLY.STARTED] = started + 1
