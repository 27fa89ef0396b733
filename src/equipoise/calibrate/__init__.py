"""Calibration: from what an engine logs, or from measured tables, to a step cost with honest error bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.calibrate.calibration import Calibration, complete, schema, summarize
    from equipoise.calibrate.decode_fit import fit
    from equipoise.calibrate.knobs import BestZ, Knobs, best_z
    from equipoise.calibrate.planted import plant
    from equipoise.calibrate.records import Drop, Flag, StepRecords
    from equipoise.calibrate.result import FitResult, fits_summary

__all__ = [
    "BestZ",
    "Calibration",
    "Drop",
    "FitResult",
    "Flag",
    "Knobs",
    "StepRecords",
    "best_z",
    "complete",
    "fit",
    "fits_summary",
    "plant",
    "schema",
    "summarize",
]

__getattr__ = lazy(
    __name__,
    {
        "calibration": ("Calibration", "complete", "schema", "summarize"),
        "decode_fit": ("fit",),
        "knobs": ("BestZ", "Knobs", "best_z"),
        "planted": ("plant",),
        "records": ("Drop", "Flag", "StepRecords"),
        "result": ("FitResult", "fits_summary"),
    },
)
