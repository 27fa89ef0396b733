"""Step logs and measured tables of many kinds become `StepRecords`: `read` tells the format and hands over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.calibrate.readers.aic import aiconfigurator_tables
    from equipoise.calibrate.readers.reading import detect, formats, read

__all__ = ["aiconfigurator_tables", "detect", "formats", "read"]

__getattr__ = lazy(
    __name__,
    {
        "aic": ("aiconfigurator_tables",),
        "reading": ("detect", "formats", "read"),
    },
)
