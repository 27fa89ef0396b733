"""Replays a trace against a real engine, policy by policy, and keeps what was measured. Needs the extra ``serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.live.parts import LiveFolder, read_folder
    from equipoise.live.plan import LivePlan
    from equipoise.live.rows import Outcome
    from equipoise.live.run import LiveRun
    from equipoise.live.steps import steps_of

__all__ = ["LiveFolder", "LivePlan", "LiveRun", "Outcome", "read_folder", "steps_of"]

__getattr__ = lazy(
    __name__,
    {
        "parts": ("LiveFolder", "read_folder"),
        "plan": ("LivePlan",),
        "rows": ("Outcome",),
        "run": ("LiveRun",),
        "steps": ("steps_of",),
    },
)
