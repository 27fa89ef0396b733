"""Steps that an engine logged itself, in the form of the table ``steps``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from equipoise.calibrate.readers import read
from equipoise.live.rows import TABLES, empty

__all__ = ["steps_of_logs"]


def steps_of_logs(
    paths: Sequence[str], kv_capacity_tokens: int | None = None
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Read step logs of any format that calibration reads.

    Parameters
    ----------
    paths : sequence of str
    kv_capacity_tokens : int, optional
        Of a rank, for logs that give only the share in use.

    Returns
    -------
    tuple of (DataFrame, tuple of str)
        Table ``steps`` with source ``log``, and what was odd about the logs. Steps that stand for several are left
        out: one row is one step.

    Raises
    ------
    CalibrationError
        A log cannot be read.
    """
    frames, notes = [empty("steps")], []
    for records in read(list(paths), kv_capacity_tokens=kv_capacity_tokens):
        single = records.select(np.flatnonzero((records.steps == 1.0) & (records.context_tokens >= 0)))
        left = len(records) - len(single)
        notes += list(records.notes)
        if left:
            notes.append(f"{left} of {len(records)} rows of the step logs are no single step with a context.")
        frame = pl.DataFrame(
            {
                "instance": single.instance,
                "step": single.step,
                "rank": single.rank,
                "clock_s": single.clock_s,
                "batch": single.batch,
                "context_tokens": single.context_tokens,
                "prefill_tokens": single.prefill_tokens,
                "time_ms": single.time_s * 1e3,
                "source": ["log"] * len(single),
            }
        )
        frames.append(frame.select(pl.col(n).cast(d) for n, d in TABLES["steps"].items()))
    return pl.concat(frames), tuple(dict.fromkeys(notes))
