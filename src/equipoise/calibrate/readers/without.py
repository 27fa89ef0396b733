"""A log without context lengths: refused with the fix, or accepted where the caller says so."""

from __future__ import annotations

import numpy as np

from equipoise.calibrate.readers.format import Job
from equipoise.calibrate.readers.rows import Columns
from equipoise.errors import CalibrationError

__all__ = ["accept_without_context", "refuse_without_context"]


def refuse_without_context(job: Job, columns: Columns, why: str) -> None:
    """Where no row with decoding requests has a context: raise, or set it to unknown.

    Parameters
    ----------
    job : Job
    columns : Columns
        ``batch`` and ``context_tokens``; the latter becomes -1 where it is unknown.
    why : str
        What shows it, in words.
    """
    decode = columns["batch"] > 0
    if not decode.any() or (columns["context_tokens"][decode] > 0).any():
        return
    first = int(np.flatnonzero(decode)[0])
    accept_without_context(job, f"{job.files[int(columns['file'][first])]}:{columns['line'][first]}", why)
    columns["context_tokens"] = np.where(decode, -1, columns["context_tokens"])


def accept_without_context(job: Job, where: str, why: str, fix: str = "") -> None:
    """Raise, unless the caller accepts a fit without a context term."""
    if not job.without_context:
        raise CalibrationError(
            f"a log without context lengths: {why}",
            where=where,
            fix=f"{fix}use a source that has them (such as ForwardPassMetrics), or fit without a context term with "
            f"without_context=True (--without-context)",
        )
    job.ledger.note(f"Context lengths are unknown: {why}.")
