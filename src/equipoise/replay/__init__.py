"""Replay: a trace through a pool under a policy, priced by a step cost."""

from __future__ import annotations

from equipoise.replay.engine import SnapshotPlan, replay
from equipoise.replay.pool import Pool
from equipoise.replay.result import Percentiles, ReplayResult, Snapshots

__all__ = ["Percentiles", "Pool", "ReplayResult", "SnapshotPlan", "Snapshots", "replay"]
