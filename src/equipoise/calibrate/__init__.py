"""Calibration: from what an engine logs, or from measured tables, to a step cost with honest error bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.calibrate.decode_fit import fit
    from equipoise.calibrate.planted import plant
    from equipoise.calibrate.records import Drop, Flag, StepRecords
    from equipoise.calibrate.result import FitResult, fits_summary

__all__ = ["Drop", "FitResult", "Flag", "StepRecords", "fit", "fits_summary", "plant"]

__getattr__ = lazy(
    __name__,
    {
        "decode_fit": ("fit",),
        "planted": ("plant",),
        "records": ("Drop", "Flag", "StepRecords"),
        "result": ("FitResult", "fits_summary"),
    },
)
