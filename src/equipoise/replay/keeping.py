"""What the kernel keeps of a step: its row in the series, and the ranks one by one where asked."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.replay.layout import ENDED, SERIES

__all__ = ["next_row", "take_snapshot"]


@jitable
def next_row(series, ended, now, instance):  # type: ignore[no-untyped-def]
    """Row of the series a step goes to; when all rows are full, neighbours are added up and the rows halve.

    A merged row keeps the earlier start; its instance is -1 where it holds steps of several.
    """
    rows = ended[ENDED.SERIES_ROWS]
    if rows > 0 and series[rows - 1, SERIES.STEPS] < ended[ENDED.SERIES_STEPS]:
        if series[rows - 1, SERIES.INSTANCE] != instance:
            series[rows - 1, SERIES.INSTANCE] = -1
        return rows - 1
    if rows == len(series):
        for i in range(rows // 2):
            same = series[2 * i, SERIES.INSTANCE] == series[2 * i + 1, SERIES.INSTANCE]
            instances = series[2 * i, SERIES.INSTANCE] if same else -1.0
            for c in range(series.shape[1]):
                keep = c == SERIES.START_S
                series[i, c] = series[2 * i, c] if keep else series[2 * i, c] + series[2 * i + 1, c]
            series[i, SERIES.INSTANCE] = instances
        series[rows // 2 :] = 0.0
        rows //= 2
        ended[ENDED.SERIES_STEPS] *= 2
    series[rows, SERIES.START_S] = now
    series[rows, SERIES.INSTANCE] = instance
    ended[ENDED.SERIES_ROWS] = rows + 1
    return rows


@jitable
def take_snapshot(out, number, instance, now, end, batch, context, saturated):  # type: ignore[no-untyped-def]
    """Keep B, C and K of every rank of one step."""
    k = out.ended[ENDED.SNAPSHOTS]
    out.snapshot_step[k, 0], out.snapshot_step[k, 1] = number, instance
    out.snapshot_s[k, 0], out.snapshot_s[k, 1] = now, end - now
    for r in range(
        len(batch)
    ):  # assigning rows would compile numpy's errors for shapes that differ, for six seconds
        out.snapshot_batch[k, r], out.snapshot_context[k, r] = batch[r], context[r]
        for s in range(saturated.shape[1]):
            out.snapshot_saturated[k, r, s] = saturated[r, s]
    out.ended[ENDED.SNAPSHOTS] += 1
